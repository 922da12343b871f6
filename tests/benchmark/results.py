"""A benchmark as a value, with every kind of row, for the tests of what is made of it."""

from __future__ import annotations

from rmsnorm_export.benchmark.result import AGAIN, RAW, Benchmark, Timing, Variant, Verdict

CASES = ("ids=1x16", "ids=4x128")
_ROWS: tuple[tuple[str, float, Verdict], ...] = (
    (RAW, 1.0, "baseline"),
    (AGAIN, 1.01, "noise floor"),
    ("portable", 1.1, "slower"),
    ("onnx", 1.0, "no difference beyond noise"),
    ("ort", 0.8, "faster"),
)


def timing(variant: str, case: str, ratio: float, verdict: Verdict) -> Timing:
    """A timing with an interval of 2 % on either side."""
    times = (5 * ratio, 4.9 * ratio, 5.2 * ratio, ratio, ratio - 0.02, ratio + 0.02)
    return Timing(variant, "cpu", case, 90, 9, *times, 0.03, verdict)


def benchmark(*, wrong: bool = False) -> Benchmark:
    """Two shapes on the CPU: a fast, a slow and an equal variant, and two that are not ranked."""
    variants = [Variant(name, 12, 2, 0, 0.1) for name in ("portable", "onnx", "ort", "native")]
    return Benchmark(
        source="model<b>.onnx",
        passed=not wrong,
        reason="ort on cpu: logits" if wrong else "",
        providers=("cpu",),
        cases={label: (f"ids int64 {label}",) for label in CASES},
        variants=(Variant(RAW, 20), *variants),
        timings=tuple(timing(n, case, r, v) for case in CASES for n, r, v in _ROWS),
        unranked={
            "plain": "failed: no room",
            "native on cpu": "logits at ids=1x16: largest difference 2, 0.1 allowed",
        },
        numerics="reordered",
        runtime="ONNX Runtime, 2 threads",
        machine="A CPU, 2 cores, 16 GiB, load 0.5 before and 1 after",
        versions={"onnxruntime": "1.2.3"},
        seconds=12.0,
        notes=("a note",),
    )
