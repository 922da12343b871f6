"""From times to timings: ratios to raw, with the verdict; and whether all fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmsnorm_export.benchmark.result import AGAIN, RAW, Timing, Trial, Verdict
from rmsnorm_export.benchmark.rounds import Times, samples
from rmsnorm_export.benchmark.statistics import LEAST_DIFFERENCE, judge, quartiles, ratio_of
from rmsnorm_export.errors import UsageError
from rmsnorm_export.system.machine import memory_available


def timings(
    names: Sequence[str], times: Sequence[Times], provider: str, case: str
) -> Iterator[Timing]:
    """Times as ratios to those of the first name, judged by those of the second."""
    floor = max(ratio_of(samples(times[1], times[0])).reach, LEAST_DIFFERENCE)
    fixed: dict[str, Verdict] = {RAW: "baseline", AGAIN: "noise floor"}
    for name, mine in zip(names, times, strict=True):
        ratio = ratio_of(samples(mine, times[0]))
        flat = [one for block in mine for one in block]
        low, middle, high = quartiles(flat)
        yield Timing(
            variant=name,
            provider=provider,
            case=case,
            rounds=len(flat),
            openings=len(mine),
            median_ms=middle * 1e3,
            q1_ms=low * 1e3,
            q3_ms=high * 1e3,
            ratio=ratio.ratio,
            low=ratio.low,
            high=ratio.high,
            floor=floor,
            verdict=fixed.get(name) or judge(ratio, floor),
        )


def check_memory(trials: Sequence[Trial]) -> None:
    """All sessions are open at once, raw's twice.

    Raises:
        UsageError: they do not fit into the memory that is free.
    """
    sizes = [
        trial.peak_mib - trial.base_mib
        for trial in (*trials[:1], *trials)
        if trial.peak_mib is not None and trial.base_mib is not None
    ]
    free = memory_available()
    if free is not None and sum(sizes) * 2**20 > free:
        raise UsageError(
            "The variants do not fit into memory together.",
            found=f"{sum(sizes) / 1024:.1f} GiB for {len(sizes)} sessions,"
            f" {free / 2**30:.1f} GiB are free",
            fix="name fewer of --targets and --peers, or give smaller --shapes",
        )
