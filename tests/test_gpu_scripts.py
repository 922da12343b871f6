"""bench.gpu without a GPU: its judge, its library, its report; kernels on the shim."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.plugins import kernel_build
from tests.tools import shim
from tests.tools.lib.command import module_command, module_environment


def gpu(name: str) -> ModuleType:
    """A module of bench/gpu, which may need what is not installed."""
    return importlib.import_module(f"bench.gpu.{name}")


@pytest.fixture(scope="module")
def driver() -> str:
    reason = kernel_build.missing_compiler()
    if reason:
        pytest.skip(reason)
    return str(kernel_build.shim_driver())


def test_random_problems_hold(driver: str) -> None:
    outcome = gpu("correct").run([driver], problems=40, seed=7, tell=print, small=True, sm=90)
    assert (outcome.wrong, outcome.problems) == ([], 40)
    assert len(outcome.kinds) >= 6


@pytest.mark.parametrize("change", [{"epsilon": 0.7}, {"scale_before_cast": True}])
def test_a_wrong_kernel_is_found(
    driver: str, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """The driver is asked for another norm than the one that the judge expects."""
    header = shim._header

    def changed(job: shim.Job, overruled: dict[str, object]) -> bytes:
        if not (job.spec.round_rstd or job.scale is None):
            job = dataclasses.replace(job, spec=dataclasses.replace(job.spec, **change))
        return header(job, overruled)

    monkeypatch.setattr(shim, "_header", changed)
    outcome = gpu("correct").run([driver], problems=60, seed=7, tell=print, small=True, sm=90)
    assert len(outcome.wrong) >= 2
    assert "ulp outside" in outcome.wrong[0]


@pytest.mark.parametrize("op", ["norm", "skip", "fp8", "rotary"])
def test_what_is_timed_is_right(op: str) -> None:
    """Ours, by the kernels on a CPU, and those of PyTorch; a rate that is lost would be wrong."""
    torch = pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
    if (missing := kernel_build.missing_compiler()) is not None:
        pytest.skip(missing)
    bench, peers, work = gpu("bench"), gpu("peers"), gpu("work")
    ours = gpu("library").Library(kernel_build.shim_library()).contenders()
    theirs = [peer for peer in peers.PEERS if peer.name in ("torch fused", "unfused")]
    bound = bench.ROTARY_BOUND if op == "rotary" else bench.ERROR_BOUND
    for dtype, rows in (("bfloat16", 96), ("float16", 4)):
        case = work.Work(op, rows, 128, dtype)
        made = work.buffers(case, torch.Generator("cpu").manual_seed(0))
        for peer in [*ours, *theirs]:
            if op == "fp8" and peer.name == "torch fused":
                with pytest.raises(peers.UnavailableError, match="no quantised output"):
                    peer.make(case)
                continue
            results = peer.make(case)(made)
            y = results[0] if isinstance(results, tuple) else results
            assert work.worst_error(case, made, y) <= bound
        wrong = y.clone()
        wrong.view(torch.uint8)[-1, 5] ^= 0x30
        assert not work.worst_error(case, made, wrong) <= bound


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: run bench.gpu")
    command, environment = module_command("bench.gpu", "--out", str(tmp_path)), module_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 6
    assert done.stderr.splitlines()[0] == "error: there is no GPU to check on"
    assert list(tmp_path.iterdir()) == []
