"""bench.gpu without a GPU: its judge and what it times, by interpreted kernels."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import subprocess
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from rmsnorm_export.op.spec import IN_KERNELS, NormSpec
from tests import warm
from tests.plugins import kernel_build
from tests.plugins.kernel_cases import job_for
from toolbox import abi, driver
from toolbox.command import module_command, module_environment

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")

import torch

from bench.gpu import correct, kernels, speed, steps, tune
from bench.gpu.__main__ import main
from bench.gpu.machine import Built, Machine
from tests.plugins import interpreted

needs_compiler = pytest.mark.skipif(
    kernel_build.missing_compiler() is not None, reason=str(kernel_build.missing_compiler())
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """With kernels that are interpreted, in the folder ``built``, and a clock that is made up."""
    warm.server()
    (tmp_path / "built").mkdir()
    interpreted.built(tmp_path / "built")
    return interpreted.machine(tmp_path)


def _results(tmp_path: Path, machine: Machine, *words: str) -> tuple[dict[str, Any], str]:
    """Run a check that finds nothing wrong; return its facts and its page."""
    out = ["--built", str(tmp_path / "built"), "--out", str(tmp_path), "--seed", "7"]
    assert main([*words, *out], machine) == 0
    path = tmp_path / f"gpu_{words[0]}.json"
    facts = json.loads(path.read_text())
    assert (facts["wrong"], facts["not run"]) == ([], [])
    return facts, path.with_suffix(".md").read_text()


@needs_compiler
def test_every_step_without_a_gpu(tmp_path: Path, machine: Machine) -> None:
    """The whole check of the kernels."""
    results, page = _results(tmp_path, machine, "kernels")
    assert results["steps"] == [s.name for s in kernels.steps(machine, None)]
    assert len(results["checked"]) == len(results["steps"]) - 2  # the device and the speed are seen
    assert len(re.findall(r"\d+ \w+RMSNorm|\d+ RMSNorm", results["checked"][-1])) >= 6
    works = {(row["op"], row["rows"], row["n"], row["dtype"]) for row in results["rows"]}
    assert works == set(map(dataclasses.astuple, speed.grid(machine.largest)))
    assert all("seconds" in row["contenders"]["ours"] for row in results["rows"])
    for tool in correct.SANITIZERS:
        assert "ERROR SUMMARY: 0 errors" in (tmp_path / f"{tool}.log").read_text()
    assert "clusters of 16" in page
    assert "| ours, us |" in page


@needs_compiler
def test_variants_are_tuned_without_a_gpu(tmp_path: Path, machine: Machine) -> None:
    results, page = _results(tmp_path, machine, "tune")
    works = {(row["op"], row["rows"], row["n"]) for row in results["rows"]}
    assert len(works) >= 2 * 4
    assert len(results["rows"]) == len(works) * (machine.variants + 1 + tune.FINALISTS + 1)
    assert "## What launch_table.h would say" in page


@needs_compiler
def test_every_variant_is_right() -> None:
    """Each of the kernels on rows of a length; a shape that misses half of a row is wrong."""
    machine = interpreted.Interpreted(largest=4096, lengths=(1024,))
    built = Built(kernel_build.library(), Path(), kernel_build.tune_library())
    bench, told = tune._Bench(machine, built), []

    def timed(op: Any, way: tune.Variant) -> dict[str, Any]:
        work = speed.Work(op, 4, 1024, "bfloat16")
        tune._timed(bench, work, way, lambda *line: told.append(line))
        return told[-1][1]

    every = {(way.vectors, way.manner): way for way in tune.variants(1024) if way.rounds == 2}
    for op, way in itertools.product(tune._OPS, every.values()):
        assert "seconds" in timed(op, way), told[-1]
    assert len(told) == 2 * 3 * 16
    whole = every[2, tune.USUAL]
    half = whole._replace(lanes=whole.lanes // 2)
    assert "every row written: False" in timed("norm", half)["remark"]
    assert told[-2][0] == "wrong"


def test_the_choice_follows_the_times(tmp_path: Path) -> None:
    """Of a length where one shape is fastest for many rows and slow for one, another is taken."""
    shapes = {way.vectors: way for way in tune.shapes(4096) if way[3:5] == (1, 1)}
    rows = [
        {"op": "norm", "rows": count, "n": 4096, "copied": 1e-5, "seconds": [factor * time_] * 3}
        | {"way": [*shapes[v]._replace(streams=streams)]}
        for streams, factor in ((False, 2), (True, 1))  # by .cs stores, which today has not
        for v, times in ((1, (1, 3)), (2, (1.1, 1)), (4, (2, 2)))
        for count, time_ in zip((65536, 1), times, strict=True)
    ]
    report = steps.Report(tmp_path, "gpu_tune", "made up", tune.tables)
    report.facts["rows"] = rows
    page = report.write()
    assert "| 8,192 | 2 | 256 | 256 | 1 | 1 | 1.10 |" in page


@needs_compiler
def test_what_a_sanitizer_finds_is_wrong(tmp_path: Path) -> None:
    """Its words go to a file: on stdout they would be taken for the driver's."""
    machine = interpreted.machine(tmp_path, found="racecheck")
    machine = dataclasses.replace(machine, logs=tmp_path)
    for tool, wrong in (("memcheck", 0), ("racecheck", 2)):
        jobs, options = correct.drawn(1, 2, few=True), {"end": math.inf}
        outcome = correct.sanitized(machine, tool, kernel_build.driver(), jobs, **options)
        assert (outcome.problems, len(outcome.wrong)) == (2, wrong), outcome.wrong
    nothing = correct.sanitized(machine, "memcheck", kernel_build.driver(), [], **options)
    assert "no problem was run" in nothing.wrong


@needs_compiler
def test_an_error_of_a_launch_leaves_later_problems_alone() -> None:
    """Of sm_75 the driver has no code: it says so, and the next one is asked of another driver."""
    jobs = [job_for(64, driver.F32), job_for(64, driver.F32, sm=75), job_for(64, driver.F32)]
    named = [(f"problem {i}", job) for i, job in enumerate(jobs)]
    outcome = correct.run([kernel_build.driver()], named)
    assert (outcome.problems, outcome.failed_launches, len(outcome.wrong)) == (3, 1, 1)
    assert outcome.wrong[0].startswith("problem 1")


def _sleep(*_: Any) -> None:
    time.sleep(60)


def test_a_step_that_does_not_end_is_killed() -> None:
    warm.server()
    told: list[Any] = []
    for name, function, limit in (("ends", print, 120), ("sleeps", _sleep, 2)):
        begun, step = time.monotonic(), steps.Step(name, 1, function)
        steps.within(step, limit, lambda *line: told.append(line))
    assert told == [("wrong", "sleeps: not done after 2 s")]
    assert time.monotonic() - begun < 30


@needs_compiler
@pytest.mark.parametrize(
    ("field", "value"), [("epsilon", 0.7), ("scale_before_cast", True), ("scale_offset", 0.5)]
)
def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch, field: str, value: Any) -> None:
    """The driver is asked for another norm than the one that the judge expects."""
    header = driver._header

    def changed(job: driver.Job, overruled: dict[str, object]) -> bytes:
        if job.spec.round_rstd or job.scale is None:
            return header(job, overruled)
        spec = dataclasses.replace(job.spec, **{field: value})
        return header(dataclasses.replace(job, spec=spec), overruled)

    monkeypatch.setattr(driver, "_header", changed)
    jobs = [named for named in correct.drawn(7, 60, few=True) if named[1].x.size < 1 << 13]
    outcome = correct.run([kernel_build.driver()], jobs)
    assert len(outcome.wrong) >= 2
    assert "ulp outside" in outcome.wrong[0]


def test_the_problems_are_of_every_sort() -> None:
    rng = np.random.default_rng(1)
    jobs = [correct.draw(rng) for _ in range(300)]
    drawn: set[str] = set()
    for job in jobs:
        defaults = NormSpec(kind=job.spec.kind).attributes()
        drawn |= {k for k, value in job.spec.attributes().items() if value != defaults[k]}
    # A job has its axes flattened: it knows rows, and how many of them lie side by side.
    of_kinds = {"activation", "gate_first", "rotary_dim", "rotary_interleaved"}
    assert drawn >= set(NormSpec().attributes()) & IN_KERNELS - {"axis", "last_axis"} | of_kinds
    assert {job.inner for job in jobs} > {1, 2, 3}
    assert {job.quantize for job in jobs} == set(get_args(driver.How))
    assert max(job.x.shape[1] for job in jobs) > 100_000


@needs_compiler
@pytest.mark.parametrize(("dtype", "rows"), [("bfloat16", 96), ("float16", 4)])
@pytest.mark.parametrize("op", get_args(speed.Op))
def test_what_is_timed_is_right(op: Any, dtype: str, rows: int) -> None:
    """Ours, by the kernels on a CPU, and those of PyTorch; a wrong one would not be timed."""
    work = speed.Work(op, rows, 128, dtype)
    used = speed.buffers(work, torch.Generator("cpu").manual_seed(0))
    library, on = abi.functions(kernel_build.library()), interpreted.Interpreted()
    peer = speed.PEERS["torch fused"](work).get(op)
    for launch in filter(None, (speed.ours(library, on, work), peer)):
        result = launch(used)
        y = result[0] if isinstance(result, tuple) else result
        assert speed.worst_error(work, used, y) <= speed.BOUNDS[op]
        wrong = y.clone()
        wrong.view(torch.uint8)[-1, 5] ^= 0x30
        assert not speed.worst_error(work, used, wrong) <= speed.BOUNDS[op]
    with pytest.raises(ValueError, match="1 to 1048576 elements"):
        speed.ours(library, on, speed.Work("norm", 4, 1 << 21, "float16"))


@pytest.mark.thorough
@pytest.mark.skipif(
    kernel_build.find_nvcc() is None, reason="no nvcc: pip install 'rmsnorm-export[plugin]'"
)
def test_nvcc_builds_what_is_timed_and_what_is_checked(tmp_path: Path) -> None:
    """The structures of ctypes are those of the library; the driver has the GPU's memory."""
    objects = [kernel_build.nvcc_object(unit, 90) for unit in kernel_build.UNITS]
    nvcc, plugins = kernel_build.nvcc_command(90), kernel_build.PLUGINS
    library, program = tmp_path / "library.so", tmp_path / "driver"
    c_api = plugins / "torch" / "c_api.cpp"
    kernel_build.run([*nvcc, "-shared", c_api, *objects, "-o", library])
    memory = ["-I", plugins / "tests" / "gpu"]
    calls = re.findall(r"__wrap_(\w+)", (plugins / "tests/gpu/driver_memory.h").read_text())
    wraps = [f"-Xlinker=--wrap={call}" for call in calls]
    kernel_build.run([*nvcc, *memory, *wraps, kernel_build.DRIVER, *objects, "-ldl", "-o", program])
    functions = abi.functions(library)
    for op in get_args(speed.Op):
        work = speed.Work(op, 4, 128, "bfloat16")
        speed.ours(functions, interpreted.Interpreted(), work)
    # Without a GPU the driver says so at the first allocation, and does not crash.
    row = np.zeros((1, 8), np.float32)
    job = driver._header(driver.Job(spec=NormSpec(), x=row, scale=row[0]), {})
    done = subprocess.run([program], input=job, capture_output=True, check=False, timeout=60)
    assert done.returncode in (0, 2, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: run bench.gpu")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = module_command("bench.gpu", "--out", str(tmp_path))
    environment = module_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert done.stderr.startswith("error: bench.gpu kernels cannot run here")
    assert list(tmp_path.iterdir()) == []
