"""Random problems through a kernel driver, each result against the operator's rounding steps.

The driver is plugins/tests/kernels/driver.cpp, on a GPU or interpreted; outputs are poisoned before
a launch and lie between guards that are compared after it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_export.op.spec import BFLOAT16, FLOAT, FLOAT16, NormSpec
from toolbox import driver
from toolbox.command import say
from toolbox.driver import BF16, F16, F32, FP8, INT8, Array, Job

LENGTHS = (1, 2, 3, 7, 8, 16, 31, 64, 65, 96, 111, 128, 199, 256, 512, 768, 1000, 1024, 2048, 2560)
LENGTHS += (4096, 4104, 5120, 6144, 8192, 8200, 12288, 16384, 16392, 32768, 49152, 65536, 65544)
LENGTHS += (131072, 131073, 262144, 1048576)
_MOST_ELEMENTS, _FEW_ELEMENTS = 1 << 18, 1 << 17
MOST_FAILED_LAUNCHES = 20
SANITIZERS = ("memcheck", "racecheck", "synccheck")
_STASH = {F16: FLOAT16, BF16: BFLOAT16}


@dataclasses.dataclass(slots=True)
class Correctness:
    """What the problems came to."""

    problems: int = 0
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)
    seconds: float = 0.0
    failed_launches: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)

    def line(self) -> str:
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(self.kinds.items()))
        return f"{self.problems} problems, {len(self.wrong)} wrong, {self.seconds:.0f} s ({kinds})"


def drawn(seed: int, problems: int, *, few: bool = False) -> Iterator[tuple[str, Job]]:
    """Yield problems and what to call each; ``few``: elements, for a slow sanitizer."""
    rng = np.random.default_rng(seed)
    for number in range(problems):
        yield f"problem {number} of seed {seed}", draw(rng, few=few)


def run(
    command: Sequence[str | Path], jobs: Iterable[tuple[str, Job]], *, end: float = math.inf
) -> Correctness:
    """Judge each problem; none at all is a fault. After a failed launch another driver goes on.

    Args:
        command: the driver, perhaps under another program.
        jobs: with the name of each.
        end: on the monotonic clock; no problem is begun after it.
    """
    outcome = Correctness()
    start = time.perf_counter()
    process = driver.Driver(*command)
    for name, job in jobs:
        if time.monotonic() > end or outcome.failed_launches > MOST_FAILED_LAUNCHES:
            break
        outcome.problems += 1
        outcome.kinds[f"{job.spec.kind} {job.quantize}"] += 1
        try:
            driver.check(job, process.run(job))
        except (AssertionError, driver.RefusalError) as error:
            first = str(error).strip().splitlines()[0]
            outcome.wrong.append(f"{name}, {describe(job)}: {first}")
            if isinstance(error, driver.LaunchError):
                outcome.failed_launches += 1
                process.close()
                process = driver.Driver(*command)
        if outcome.problems % 500 == 0:
            say(f"{outcome.problems} problems, {len(outcome.wrong)} wrong")
    if code := process.finish():
        outcome.wrong.append(f"the driver, or the program around it, ended with {code}")
    if not outcome.problems:
        outcome.wrong.append("no problem was run")
    outcome.seconds = time.perf_counter() - start
    return outcome


def sanitized(
    machine: Any, tool: str, program: Path, jobs: Iterable[tuple[str, Job]], *, end: float
) -> Correctness:
    """Judge problems under a tool of compute-sanitizer; what that finds is wrong, too.

    Its words go to a file, as stdout has the answers of the driver.

    Args:
        machine: where it is run.
        tool: of ``SANITIZERS``.
        program: the driver.
        jobs, end: as for ``run``.
    """
    sanitizer, log = machine.program("compute-sanitizer"), machine.logs / f"{tool}.log"
    if sanitizer is None:
        return Correctness(wrong=["compute-sanitizer is neither in CUDA_HOME nor on PATH"])
    log.unlink(missing_ok=True)
    options = ["--tool", tool, "--error-exitcode", "99", "--log-file", log]
    outcome = run([sanitizer, *options, program], jobs, end=end)
    if not log.is_file():
        outcome.wrong.append(f"{sanitizer} wrote no {log}: it did not run")
    elif outcome.wrong:
        errors = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
        outcome.wrong.append(f"{log}: {errors[0].strip('= ') if errors else 'no error in it'}")
    return outcome


def draw(rng: np.random.Generator, *, few: bool = False) -> Job:
    """A problem that the kernels take, with its inputs."""

    def chance(share: float) -> bool:
        return bool(rng.random() < share)

    most = _FEW_ELEMENTS if few else _MOST_ELEMENTS
    n = int(rng.choice([n for n in LENGTHS if not few or n <= most]))
    dtype = (F32, F16, BF16)[int(rng.integers(3))]
    if chance(0.2):
        return _rotary(rng, dtype)
    kind = ("RMSNorm", "SkipRMSNorm", "GatedRMSNorm")[int(rng.integers(3))]
    rows = int(min(rng.choice([1, 2, 3, 5, 17, 64, 300]), max(1, most // n)))
    half = dtype != F32
    stash = _STASH[dtype] if half and chance(0.15) else FLOAT
    before = chance(0.4)
    rounded = not before and chance(0.2)
    divisors = [d for d in (1, 2, 8, 16, 64, 128, 256, 1024) if n % d == 0 and n // d > 1]
    group = n // int(rng.choice(divisors)) if divisors and chance(0.2) else 0
    partial = int(rng.integers(1, n + 1)) if not group and chance(0.15) else 0
    association = 0
    if stash != FLOAT and not group and chance(0.5):
        association = int(rng.choice([1, 2])) if rounded else 2
    whole = not (group or partial or association)
    beside = [d for d in (2, 3, 5, 17, 64, 100) if rows % d == 0] if whole else []
    has_scale, outside = chance(0.85), chance(0.15)
    spec = NormSpec(
        kind=kind,
        epsilon=float(rng.choice([0.0, 1e-6, 1e-5, 0.5])),
        scale_offset=1.0 if has_scale and chance(0.3) else 0.0,
        epsilon_outside=outside,
        epsilon_clamp=not outside and chance(0.15),
        scale_before_cast=before,
        round_rstd=rounded,
        stash_type=stash,
        group_size=group,
        partial_size=partial,
        association=association,
        activation="sigmoid" if chance(0.3) else "silu",
        gate_first=kind == "GatedRMSNorm" and chance(0.5),
    )
    quantize = ("none", "none", "static", "per_row")[int(rng.integers(4))]
    weight_type = F32 if chance(0.3) else dtype
    return Job(
        spec=spec,
        x=_rows(rng, (rows, n), dtype),
        other=None if kind == "RMSNorm" else _rows(rng, (rows, n), dtype),
        scale=_normal(rng, (n,), 0.3, 1.0).astype(weight_type) if has_scale else None,
        bias=_normal(rng, (n,), 0.5).astype(weight_type) if chance(0.2) else None,
        quantize=quantize,
        codes=FP8 if chance(0.5) else INT8,
        quant_scale=float(rng.choice([0.01, 0.03, 1.0])),
        misaligned=int(rng.choice([0, 0, 0, 1, 3])),
        inner=int(rng.choice(beside)) if beside and chance(0.2) else 1,
    )


def _rotary(rng: np.random.Generator, dtype: np.dtype[np.generic]) -> Job:
    """Heads and tokens in either order, with angles of the tokens, of all, or of each row."""
    n = int(rng.choice([64, 80, 96, 128, 256, 512, 30, 1000]))
    part = n // 2 if n % 4 == 0 and rng.random() < 0.3 else 0
    batch, heads, tokens = (int(rng.choice(sizes)) for sizes in ((1, 2), (1, 3, 8, 33), (1, 5, 64)))
    leading, of_table = (
        ((batch, tokens, heads), (tokens, 1)),
        ((batch, heads, tokens), (batch, 1, tokens)),
        ((batch, heads, tokens), (tokens,)),
        ((batch, heads, tokens), ()),
        ((batch, heads, tokens), (batch, heads, tokens)),
    )[int(rng.integers(5))]
    width = (part or n) // int(rng.choice([1, 2]))
    types = (F32, dtype)
    angles = rng.uniform(0, 2 * np.pi, (*of_table, width))
    table = types[int(rng.integers(2))]
    rounding = ({}, {"scale_before_cast": True, "scale_offset": 1.0}, {"round_rstd": True})
    return Job(
        spec=NormSpec(
            kind="RotaryRMSNorm",
            rotary_dim=part,
            rotary_interleaved=bool(rng.random() < 0.5),
            **rounding[int(rng.integers(3))],
        ),
        x=_rows(rng, (batch * heads * tokens, n), dtype),
        scale=_normal(rng, (n,), 0.3, 1.0).astype(dtype),
        bias=_normal(rng, (n,), 0.5).astype(dtype) if rng.random() < 0.2 else None,
        tables=(np.cos(angles).astype(table), np.sin(angles).astype(table)),
        leading=leading,
        misaligned=int(rng.choice([0, 0, 0, 1, 3])),
    )


def _normal(
    rng: np.random.Generator, shape: tuple[int, ...], spread: float, middle: float = 0.0
) -> Array:
    return rng.standard_normal(shape) * spread + middle


def _rows(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype[np.generic]) -> Array:
    """Ordinary rows, some tiny, some huge; now and then one of zeros, or with a NaN or infinity."""
    largest = 1e4 if dtype == F16 else 1e14  # squares of a row sum below the largest f32
    scales = rng.choice([1.0, 1.0, 1.0, 1e-3, 1e-7, largest / 8], size=(shape[0], 1))
    with np.errstate(over="ignore"):
        values = (rng.standard_normal(shape) * scales).astype(dtype)
    for row in range(shape[0]):
        fate = rng.random()
        if fate < 0.03:
            values[row] = 0
        elif fate < 0.05:
            values[row, rng.integers(shape[1])] = rng.choice([np.nan, np.inf, -np.inf])
    return values


def describe(job: Job) -> str:
    """The problem in a line: shapes and types of its arrays, and what is not the default."""
    arrays = {"scale": job.scale, "bias": job.bias, "cos": job.tables and job.tables[0]}
    parts = [f"{job.spec.kind} {job.x.shape} {job.x.dtype}", f"epsilon={job.spec.epsilon}"]
    parts += [f"{name}={value}" for name, value in job.spec.non_default().items()]
    parts += [f"{k} {v.shape} {v.dtype}" for k, v in arrays.items() if v is not None]
    fields = ("leading", "quantize", "codes", "misaligned", "inner")
    return " ".join([*parts, *(f"{name}={getattr(job, name)}" for name in fields)])
