"""Every kernel, as nvcc's PTX on a CPU, on problems of every kind: what is wrong, and what ran.

  python -m tests.plugins.interpret 80 90 100     problems for each architecture
  python -m tests.plugins.interpret 90 --count    instructions an element instead: no time, but a
                                                  figure to compare versions by

Exit code 1 when a result is wrong, or the interpreter complains: of a race, a lost message, an
access beyond a tensor or before griddepcontrol.wait.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import time
from collections.abc import Iterator

import numpy as np

from bench.gpu import correct
from rmsnorm_export.op.spec import NormSpec
from tests.plugins import kernel_build
from tests.plugins.kernel_cases import LAYOUTS, rotary_job
from toolbox.command import parser
from toolbox.driver import BF16, F16, F32, FP8, INT8, Driver, Job, check

_SHORT = (8, 16, 24, 64, 128, 136, 256, 264, 512, 1024, 1032, 2048, 4096, 4104, 5120, 8192, 8200)
_LONG = (12288, 16384, 16392, 20480, 32768, 32776, 65536, 65544, 131072, 131080, 262144)
_WIDE = {"scale_before_cast": True}
_ORDERS = ({}, _WIDE, _WIDE | {"scale_offset": 1.0}, {"epsilon_outside": True})
_CODES = (("none", FP8), *itertools.product(("static", "per_row"), (FP8, INT8)))
_KINDS = ("RMSNorm", "SkipRMSNorm", "GatedRMSNorm")
COUNTED = (256, 4096, 16384, 65536)


def _job(rng: np.random.Generator, n: int, dtype: np.dtype, **fields: object) -> Job:
    rows = int(max(1, min(rng.integers(1, 40), (1 << 17) // n)))
    x, other = (correct._rows(rng, (rows, n), dtype) for _ in range(2))
    kind, order = fields.pop("kind"), fields.pop("order", {})
    second = other if kind != "RMSNorm" else None
    scale = (rng.standard_normal(n) * 0.3 + 1).astype(dtype)
    spec = NormSpec(kind=kind, epsilon=1e-6, **order)
    return Job(spec=spec, x=x, other=second, scale=scale, quant_scale=0.03, **fields)


def stratified(rng: np.random.Generator) -> Iterator[tuple[str, Job]]:
    """Yield problems of every instance of a kernel, of some lengths each."""
    for dtype, kind, order, (quantize, codes) in itertools.product(
        (F32, F16, BF16), _KINDS, _ORDERS, _CODES
    ):
        options = {"quantize": quantize, "codes": codes}
        for n in (*rng.choice(_SHORT, 2, replace=False), rng.choice(_LONG)):
            job = _job(rng, int(n), dtype, kind=kind, order=order, **options)
            yield f"{kind} {quantize}", dataclasses.replace(job, has_sum=bool(rng.random() < 0.8))
    for dtype, order, interleaved, table in itertools.product(
        (F32, F16, BF16),
        _ORDERS,
        (False, True),
        (F32, None),
    ):
        n, axes = int(rng.choice([64, 96, 128, 256])), LAYOUTS[int(rng.integers(len(LAYOUTS)))]
        attributes = {**order, "rotary_interleaved": interleaved}
        options = {"axes": axes, "table": table, "half": n == 64}
        yield "rotary", rotary_job(n, dtype, attributes, **options)


def kernels_of(sm: int) -> set[str]:
    """Return the names of the kernels whose PTX is there for an architecture."""
    names: set[str] = set()
    for built in kernel_build.kernels():
        target = ""
        for word in re.findall(rb"\.target (\w+)|\.entry (\w+)\(", built.read_bytes()):
            target = word[0].decode() or target
            if word[1] and target == f"sm_{sm}":
                names.add(word[1].decode())
    return names


def _run(sm: int, seconds: float) -> int:
    """Run problems on one architecture; return how many are wrong."""
    rng, end = np.random.default_rng(sm), time.monotonic() + seconds
    driver, ran, wrong, done = Driver(kernel_build.driver()), set(), 0, 0
    every_sort = [*stratified(rng)]
    random.Random(sm).shuffle(every_sort)  # where the time is over early, some of each ran
    jobs = itertools.chain(every_sort, correct.drawn(sm, 10**9))
    for name, job in jobs:
        if time.monotonic() > end:
            break
        job, done = dataclasses.replace(job, sm=sm, schedule=done + 1), done + 1
        try:
            outcome = driver.run(job)
            ran.add(outcome.kernel)
            check(job, outcome)
        except AssertionError as error:
            wrong += 1
            print("WRONG", name, correct.describe(job), str(error).strip().splitlines()[0])
    every = {name for name in kernels_of(sm) if "compiled_for" not in name}
    driver.finish()
    print(
        f"sm_{sm}: {done} problems, {wrong} wrong; {len(ran & every)} of {len(every)} kernels ran"
    )
    for name in sorted(every - ran):
        print("  not run:", name)
    return wrong


def _count(sm: int) -> None:
    """Print PTX instructions of a lane for each element, of bf16."""
    driver, rng = Driver(kernel_build.driver()), np.random.default_rng(0)
    columns = [(kind, "none") for kind in _KINDS] + [("RMSNorm", "static"), ("RMSNorm", "per_row")]
    print(f"sm_{sm:<7}", *(f"{kind.removesuffix('RMSNorm') or 'Norm'} {q}" for kind, q in columns))
    for n in COUNTED:
        x, other = (correct._rows(rng, ((1 << 20) // n, n), BF16) for _ in range(2))
        figures = []
        for kind, quantize in columns:
            job = _job(rng, n, BF16, kind=kind, quantize=quantize)
            second = None if job.other is None else other
            outcome = driver.checked(dataclasses.replace(job, x=x, other=second, sm=sm))
            figures.append(f"{outcome.instructions * 32 / x.size:12.2f}")
        print(f"{n:<9}", *figures)
    driver.finish()


def main() -> int:
    options = parser("tests.plugins.interpret", __doc__)
    options.add_argument("architectures", nargs="*", type=int, default=kernel_build.INTERPRETED)
    options.add_argument("--seconds", type=float, default=240, help="for each  [default: 240]")
    options.add_argument("--count", action="store_true")
    arguments = options.parse_args()
    if reason := kernel_build.missing_compiler():
        print(reason)
        return 6
    if arguments.count:
        for sm in arguments.architectures:
            _count(sm)
        return 0
    return int(sum(_run(sm, arguments.seconds) for sm in arguments.architectures) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
