"""bench.gpu without a GPU: its judge and what it times, by kernels on the shim."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from bench.gpu import correct
from rmsnorm_export.op import abi
from rmsnorm_export.op.spec import NormSpec
from tests.plugins import kernel_build
from tests.tools import shim
from tests.tools.lib.command import module_command, module_environment

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")

import torch

from bench.gpu import speed

needs_compiler = pytest.mark.skipif(
    kernel_build.missing_compiler() is not None, reason=str(kernel_build.missing_compiler())
)


def judged(problems: int) -> correct.Correctness:
    driver = [str(kernel_build.shim_driver())]
    return correct.run(driver, problems=problems, seed=7, tell=print, small=True, sm=90)


@needs_compiler
def test_random_problems_hold() -> None:
    outcome = judged(40)
    assert (outcome.wrong, outcome.problems) == ([], 40)
    assert len(outcome.kinds) >= 6


@needs_compiler
@pytest.mark.parametrize(
    ("field", "value"), [("epsilon", 0.7), ("scale_before_cast", True), ("scale_offset", 0.5)]
)
def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch, field: str, value: Any) -> None:
    """The driver is asked for another norm than the one that the judge expects."""
    header = shim._header

    def changed(job: shim.Job, overruled: dict[str, object]) -> bytes:
        if job.spec.round_rstd or job.scale is None:
            return header(job, overruled)
        spec = dataclasses.replace(job.spec, **{field: value})
        return header(dataclasses.replace(job, spec=spec), overruled)

    monkeypatch.setattr(shim, "_header", changed)
    outcome = judged(60)
    assert len(outcome.wrong) >= 2
    assert "ulp outside" in outcome.wrong[0]


def test_the_problems_are_of_every_sort() -> None:
    rng = np.random.default_rng(1)
    jobs = [correct.draw(rng, small=False) for _ in range(300)]
    drawn: set[str] = set()
    for job in jobs:
        defaults = NormSpec(kind=job.spec.kind).attributes()
        drawn |= {k for k, value in job.spec.attributes().items() if value != defaults[k]}
    # A job has its axes flattened: it knows rows, and how many of them lie side by side.
    of_kinds = {"activation", "gate_first", "rotary_dim", "rotary_interleaved"}
    assert drawn >= set(NormSpec().attributes()) - {"axis", "last_axis"} | of_kinds
    assert {job.inner for job in jobs} > {1, 2, 3}
    assert {job.quantize for job in jobs} == set(get_args(shim.How))
    assert max(job.x.shape[1] for job in jobs) > 100_000


@needs_compiler
@pytest.mark.parametrize(("dtype", "rows"), [("bfloat16", 96), ("float16", 4)])
@pytest.mark.parametrize("op", get_args(speed.Op))
def test_what_is_timed_is_right(op: Any, dtype: str, rows: int) -> None:
    """Ours, by the kernels on a CPU, and those of PyTorch; a wrong one would not be timed."""
    work = speed.Work(op, rows, 128, dtype)
    used = speed.buffers(work, torch.Generator("cpu").manual_seed(0))
    makers = speed.contenders(abi.functions(kernel_build.shim_library()))
    for name in ("ours", "ours, low latency", "torch fused", "unfused"):
        result = makers[name](work)(used)
        y = result[0] if isinstance(result, tuple) else result
        assert speed.worst_error(work, used, y) <= speed.BOUNDS[op]
        wrong = y.clone()
        wrong.view(torch.uint8)[-1, 5] ^= 0x30
        assert not speed.worst_error(work, used, wrong) <= speed.BOUNDS[op]
    with pytest.raises(speed.UnavailableError, match="1 to 1048576 elements"):
        makers["ours"](speed.Work("norm", 4, 1 << 21, "float16"))


@pytest.mark.slow
@pytest.mark.skipif(
    kernel_build.find_nvcc() is None, reason="no nvcc: pip install 'rmsnorm-export[plugin]'"
)
def test_nvcc_builds_what_is_timed_and_what_is_checked(tmp_path: Path) -> None:
    """The structures of ctypes are those of the library; the driver has the GPU's memory."""
    objects = [kernel_build.nvcc_object(unit, 90)[0] for unit in kernel_build.UNITS]
    nvcc, plugins = kernel_build.nvcc_command(90), kernel_build.PLUGINS
    library, driver = tmp_path / "library.so", tmp_path / "driver"
    c_api = plugins / "torch" / "c_api.cpp"
    kernel_build.run([*nvcc, "-shared", c_api, *objects, "-o", library])
    memory = ["-I", plugins / "tests" / "gpu"]
    kernel_build.run([*nvcc, *memory, kernel_build.DRIVER, *objects, "-o", driver])
    functions = abi.functions(library)
    for op in get_args(speed.Op):
        speed.ours(functions, abi.THROUGHPUT, speed.Work(op, 4, 128, "bfloat16"))
    # Without a GPU the driver says so at the first allocation, and does not crash.
    row = np.zeros((1, 8), np.float32)
    job = shim._header(shim.Job(spec=NormSpec(), x=row, scale=row[0]), {})
    done = subprocess.run([driver], input=job, capture_output=True, check=False, timeout=60)
    assert done.returncode in (0, 2, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: run bench.gpu")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = module_command("bench.gpu", "--out", str(tmp_path))
    environment = module_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert done.stderr.startswith("error: the kernels cannot run here")
    assert list(tmp_path.iterdir()) == []
