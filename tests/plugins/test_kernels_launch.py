"""What is launched: the kernel of every length, as nvcc builds it, and what ``refusal`` refuses."""

from __future__ import annotations

import dataclasses
import re
import shutil
from typing import Any

import pytest

from rmsnorm_export.op.spec import NormSpec
from tests.plugins import kernel_build
from tests.plugins.kernel_cases import job_for, rotary_job
from tests.sample import sampled
from tests.tools.tables import table
from toolbox.driver import BF16, F16, F32, Driver, RefusalError

REFUSED: dict[str, dict[str, list[dict[str, Any]]]] = table(__file__)
NORM, ROTARY = REFUSED["norm"], REFUSED["rotary"]


@pytest.mark.parametrize("sentence", [*NORM, *ROTARY])
def test_refused(driver: Driver, sentence: str) -> None:
    job = job_for(64, F16) if sentence in NORM else rotary_job(64, F16)
    for fields in [*NORM.get(sentence, ()), *ROTARY.get(sentence, ())]:
        with pytest.raises(RefusalError, match=sentence):
            driver.run(job, **fields)


def test_tables_that_do_not_broadcast(driver: Driver) -> None:
    for leading, of_table, sentence in (
        ((2, 3), (2,), "must broadcast"),
        ((2, 3), (2, 2, 3), "must broadcast"),
        ((2, 3, 2, 3), (1, 3, 1, 3), "at most two runs"),
    ):
        with pytest.raises(RefusalError, match=sentence):
            driver.run(rotary_job(64, F16, axes=(leading, of_table)))


def test_taken(driver: Driver) -> None:
    """The ends of the range, and, as in ``NormSpec.canonical``, what cannot matter."""
    for n in (1, 1 << 20):
        driver.run(job_for(n, F32, rows=1))
    plain, moot = {"round_rstd": True}, {"round_rstd": True, "association": 1}
    y, same = (driver.run(job_for(64, F16, attributes)).y for attributes in (plain, moot))
    assert y.tobytes() == same.tobytes()
    assert NormSpec(round_rstd=True, association=1).canonical(10).association == 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH: install g++ 11 or later")
def test_every_row_has_a_kernel() -> None:
    """By a program that knows the launch table, and nothing of CUDA."""
    source = kernel_build.DRIVER.with_name("launch_table_test.cpp")
    flags = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-I", kernel_build.KERNELS)
    command, of = ["g++", *flags, source, "-o", source.stem], (kernel_build.KERNELS, source.parent)
    assert kernel_build.run([kernel_build.made(source.stem, command, of=of)]) == ""


def test_the_host_asks_the_device_once(driver: Driver) -> None:
    """Of the second launch of a kind the runtime is asked nothing; of another cluster it is."""
    for n in (64, 4096, 65536):
        job = job_for(n, BF16, rows=1, most_cluster=8)
        driver.run(job)
        assert driver.run(job).queries == 0
    first = driver.run(dataclasses.replace(job, most_cluster=4))
    assert first.queries > 0
    assert first.cluster == 4


@pytest.mark.parametrize(
    ("kind", "n", "dtype"), [("RMSNorm", 65536, F32), ("SkipRMSNorm", 16384, BF16)]
)
def test_another_context_of_the_device(driver: Driver, kind: str, n: int, dtype: Any) -> None:
    """It knows nothing of the cluster, or the shared memory, that was allowed in the first."""
    job = job_for(n, dtype, {"kind": kind}, rows=1)
    first = driver.checked(job)
    for context in (1, 0, 1):
        outcome = driver.checked(dataclasses.replace(job, context=context))
        assert (outcome.cluster, outcome.threads) == (first.cluster, first.threads)
    assert outcome.queries == 0


_ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)'")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 110, 120)
_KERNELS = {"f32": 39, "f16": 64, "bf16": 64}
"""How many a type has: those of any norm, of the usual ones, and with a rotary embedding."""


@pytest.mark.slow
@pytest.mark.skipif(kernel_build.find_nvcc() is None, reason=kernel_build.NO_NVCC)
@sampled("dtype, sm", [(dtype, sm) for dtype in _KERNELS for sm in _ARCHITECTURES], {("f32", 90)})
def test_no_stack_frame_and_no_spill(dtype: str, sm: int) -> None:
    """A stack frame is how a register array that is indexed at run time shows: correct, and several
    times slower. It depends on the architecture."""
    report = kernel_build.ptxas_report(f"rmsnorm_{dtype}.cu", sm)
    assert "warning" not in report
    faults = [one[0] for one in _MEMORY.finditer(report) if set(one.groups()) != {"0"}]
    assert not faults, (faults, report)
    assert len(_ENTRY.findall(report)) == _KERNELS[dtype]
