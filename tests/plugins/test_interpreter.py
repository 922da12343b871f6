"""The interpreter of PTX: what a GPU would do silently, it says; and what the whole of it runs."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator

import numpy as np
import pytest

from bench.gpu import correct
from rmsnorm_export.op.spec import NormSpec
from tests.plugins import kernel_build
from tests.plugins.kernel_cases import LAYOUTS, TYPES, rotary_job
from toolbox.driver import F32, FP8, INT8, Driver, Job, check

pytestmark = pytest.mark.skipif(
    kernel_build.missing_compiler() is not None, reason=str(kernel_build.missing_compiler())
)

COMPLAINTS = {
    "nothing": "",
    "no barrier": "a race in shared memory",
    "too early": "global memory before griddepcontrol.wait",
    "beyond": "beyond every tensor",
    "misaligned": "misaligned in global memory",
    "two writers": "another thread has written this byte",
    "beyond shared": "beyond shared memory",
    "half a warp": "not by all lanes",
    "half a block": "every warp waits",
}


def test_planted_defects() -> None:
    said = kernel_build.run([kernel_build.defects()])
    lines = dict(line.split(": ", 1) for line in said.splitlines())
    assert lines.keys() == COMPLAINTS.keys()
    for name, complaint in COMPLAINTS.items():
        assert lines[name].startswith(complaint), (name, lines[name])
        assert bool(lines[name]) == bool(complaint)


_SHORT = (8, 16, 24, 64, 128, 136, 256, 264, 512, 1024)
_MIDDLE = (4096, 4104, 5120, 8192)
"""Of half types and of float32 these are all of the second kernel of every form."""
_LONG = (8200, 12288, 16384, 16392, 20480, 32768, 32776, 65536, 65544, 131072, 131080, 262144)
_WIDE = {"scale_before_cast": True}
_ORDERS = ({}, _WIDE, _WIDE | {"scale_offset": 1.0}, {"epsilon_outside": True})
_CODES = (("none", FP8), *itertools.product(("static", "per_row"), (FP8, INT8)))
_KINDS = ("RMSNorm", "SkipRMSNorm", "GatedRMSNorm")


def _every_instance(rng: np.random.Generator) -> Iterator[Job]:
    """Yield problems of every instance of a kernel, of some lengths each."""
    for dtype, kind, order, (quantize, codes) in itertools.product(TYPES, _KINDS, _ORDERS, _CODES):
        spec = NormSpec(kind=kind, epsilon=1e-6, **order)
        for n in map(rng.choice, (_SHORT, _MIDDLE, _LONG)):
            rows = int(max(1, min(rng.integers(1, 40), (1 << 17) // n)))
            x, other = (correct._rows(rng, (rows, int(n)), dtype) for _ in range(2))
            second = other if kind != "RMSNorm" else None
            scale = (rng.standard_normal(int(n)) * 0.3 + 1).astype(dtype)
            own = {"quantize": quantize, "codes": codes, "quant_scale": 0.03}
            has_sum = bool(rng.random() < 0.8)
            yield Job(spec=spec, x=x, other=second, scale=scale, has_sum=has_sum, **own)
    for dtype, order, interleaved, table in itertools.product(
        TYPES, _ORDERS, (False, True), (F32, None)
    ):
        n, axes = int(rng.choice([64, 96, 128, 256])), LAYOUTS[int(rng.integers(len(LAYOUTS)))]
        attributes = {**order, "rotary_interleaved": interleaved}
        yield rotary_job(n, dtype, attributes, axes=axes, table=table, half=n == 64)


def _kernels_of(sm: int) -> set[str]:
    """Return the names of the kernels whose PTX is there for an architecture."""
    names: set[str] = set()
    for built in kernel_build.kernels(sm):
        target = ""
        for word in re.findall(rb"\.target (\w+)|\.entry (\w+)\(", built.read_bytes()):
            target = word[0].decode() or target
            if word[1] and target == f"sm_{sm}":
                names.add(word[1].decode())
    return names


@pytest.mark.thorough
@pytest.mark.parametrize("sm", [80, 90, 100])
def test_every_kernel_runs(sm: int) -> None:
    """But those of rows so long that only other tests have them; warps in an order of their own."""
    driver, ran = Driver(kernel_build.driver(sm)), set()
    for number, job in enumerate(_every_instance(np.random.default_rng(sm))):
        outcome = driver.run(dataclasses.replace(job, sm=sm, schedule=number + 1))
        check(job, outcome)
        ran.add(outcome.kernel)
    driver.close()
    left = _kernels_of(sm) - ran
    assert len(left) < 0.1 * len(_kernels_of(sm))
    assert all("row_long" in name or "compiled_for" in name for name in left)
