"""The interpreter of PTX: what a GPU would do silently, it says; and what the whole of it runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.plugins import interpret, kernel_build
from toolbox.driver import Driver, check

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


@pytest.mark.thorough
@pytest.mark.parametrize("sm", kernel_build.INTERPRETED)
def test_every_kernel_runs(driver: Driver, sm: int) -> None:
    """But those of rows so long that only other tests have them."""
    ran = set()
    for _, job in interpret.stratified(np.random.default_rng(sm)):
        outcome = driver.run(dataclasses.replace(job, sm=sm))
        check(job, outcome)
        ran.add(outcome.kernel)
    assert len(ran) > 0.9 * len(interpret.kernels_of(sm))
