"""A model that ends ONNX Runtime ends none of the processes that load or run it here."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hostile.registry import HOSTILE
from onnx.reference import ReferenceEvaluator
from recognize.text_models import TARGETS
from spellings.choices import SINGLE, single
from spellings.look_alikes import LOOK_ALIKES
from spellings.place import build

import rmsnorm_export as rx
from rmsnorm_export.errors import ExitCode, VerificationError
from rmsnorm_export.runtime import session
from rmsnorm_export.system.process import Fork
from tests.sample import sampled
from tests.tools.runtimes import halves

ENDED = "ONNX Runtime itself ended with signal 11 (SIGSEGV)"


@pytest.fixture(scope="module")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a user that ends the installed ONNX Runtime where it optimizes the graph."""
    path = tmp_path_factory.mktemp("deadly") / "deadly.onnx"
    onnx.save(halves.build("wide | read by another kernel | fixed"), path)
    load = f"import onnxruntime; onnxruntime.InferenceSession({str(path)!r})"
    code = subprocess.run([sys.executable, "-c", load], check=False, capture_output=True).returncode
    if code != -signal.SIGSEGV:
        pytest.skip(f"this ONNX Runtime loads the model (exit code {code}): find another one")
    return path


@pytest.fixture(scope="module")
def harmless(deadly: Path) -> Path:
    path = deadly.with_name("harmless.onnx")
    onnx.save(halves.build("half | product | fixed"), path)
    return path


COMMANDS = {
    "verify harmless deadly": ExitCode.VERIFICATION,
    "verify deadly deadly": ExitCode.VERIFICATION,
    "bench deadly --seconds 0.1": ExitCode.INPUT,
    "bench deadly --seconds 0.1 --provider cpu": ExitCode.INPUT,
    "package deadly -o repository": ExitCode.VERIFICATION,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_survives_and_tells(
    command: str, deadly: Path, harmless: Path, tmp_path: Path
) -> None:
    names = {"deadly": str(deadly), "harmless": str(harmless)}
    program = [sys.executable, "-m", "rmsnorm_export"]
    arguments = [names.get(word, word) for word in command.split()]
    done = subprocess.run(
        [*program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == COMMANDS[command], done.stderr
    lines = done.stderr.strip().splitlines()
    assert [line.partition(":")[0] for line in lines[-3:]] == ["error", "found", "fix"]
    assert ENDED in lines[-2]
    assert not (tmp_path / "repository").exists()


def test_a_sound_model_is_compared_with_one_that_ends_it_only_when_optimized(deadly: Path) -> None:
    """A is not optimized: there is something to compare with."""
    with pytest.raises(VerificationError, match="ended with signal 11"):
        rx.verify(deadly, deadly)
    cured = rx.optimize(deadly, target="ort", numerics="upcast")
    assert rx.verify(deadly, cured.model).passed


def test_the_end_at_a_run_is_told() -> None:
    """No run of the installed ONNX Runtime is known to end it: its session is made to."""
    loaded = session.load_session(halves.build(halves.LABELS[0]).SerializeToString())

    class Ending:
        get_inputs, get_outputs = loaded.get_inputs, loaded.get_outputs

        def run(self, *_: object) -> None:
            signal.raise_signal(signal.SIGBUS)

    model = session.Session(Ending)
    for _ in range(2):
        with pytest.raises(VerificationError) as error:
            session.run_session(model, {})
        assert error.value.found.startswith("ONNX Runtime itself ended with signal 7")


def test_a_small_model_after_one_that_ended_the_runtime_is_run() -> None:
    model = ir.from_proto(halves.build("half | product | fixed"))
    feeds = {"input": np.ones(halves.FIXED, np.float32)}
    before = session.run_onnxruntime(model, feeds)
    with pytest.raises(VerificationError, match="ended with signal 11"):
        session._in_fork(signal.raise_signal, signal.SIGSEGV)
    assert np.array_equal(session.run_onnxruntime(model, feeds)["output"], before["output"])


def test_a_process_that_the_caller_forks_has_its_own() -> None:
    model = ir.from_proto(halves.build("half | product | fixed"))
    feeds = {"input": np.ones(halves.FIXED, np.float32)}
    before = session.run_onnxruntime(model, feeds)["output"]
    other = Fork(lambda: lambda: session.run_onnxruntime(model, feeds)["output"])
    assert np.array_equal(other(), before)
    assert np.array_equal(session.run_onnxruntime(model, feeds)["output"], before)


def test_a_session_of_the_caller_is_not_ended_in_a_fork() -> None:
    """There it would wait for threads that are only here: in a process that may hang."""
    code = """
import gc
from rmsnorm_export.runtime import session
from rmsnorm_export.system.process import Fork
from tests.tools.runtimes import halves

gc.disable()
model = halves.build("half | product | fixed").SerializeToString()
cycle = [session.load_session(model, threads=2)]
cycle.append(cycle)
del cycle
print(Fork(lambda: lambda: gc.collect() >= 0)())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr


# Every file that ``optimize`` writes loads in the runtimes that its report names.

ODD = [name for name, case in HOSTILE.items() if case.error is None]


def _onnxruntime(path: str) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _tensorrt_rtx(path: str) -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="pip install tensorrt-rtx")
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network()
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(path):
        raise RuntimeError(parser.get_error(0).desc())


LOADERS = {
    "onnxruntime": _onnxruntime,
    "onnx-reference": ReferenceEvaluator,
    "tensorrt-rtx": _tensorrt_rtx,
}


def refusal(runtime: str, path: Path) -> str:
    """What a runtime says of a file that it does not load, or ""."""
    try:
        LOADERS[runtime](str(path))
    except Exception as error:
        return f"{path.name}: {runtime}: {type(error).__name__} {str(error)[:300]}"
    return ""


def refused(source: onnx.ModelProto | Path, folder: Path) -> list[str]:
    """What runtimes that take the source say of results that its report promises them."""
    if isinstance(source, onnx.ModelProto):
        onnx.save(source, folder / "source.onnx")
        source = folder / "source.onnx"
    takes = {runtime for runtime in LOADERS if not refusal(runtime, source)}
    refusals: list[str] = []
    for target in TARGETS:
        result = rx.optimize(source, target=target)
        path = result.save(folder / f"{target}.onnx", force=True).path
        named = {row.runtime for row in result.report.runs_in if not row.reason}
        refusals += filter(None, (refusal(runtime, path) for runtime in takes & named))
    return refusals


in_parts = sampled("part", range(4), {0})


@in_parts
def test_results_of_the_spellings_load(part: int, tmp_path: Path) -> None:
    for name, value in SINGLE[part::4]:
        assert not refused(build(*single(name, value)).model, tmp_path), (name, value)


@in_parts
def test_results_of_the_look_alikes_load(part: int, tmp_path: Path) -> None:
    for name, alike in [*LOOK_ALIKES.items()][part::4]:
        assert not refused(alike.build().model, tmp_path), name


@pytest.mark.parametrize("name", ODD)
def test_results_of_odd_files_load(name: str, tmp_path: Path) -> None:
    assert not refused(HOSTILE[name].make(tmp_path), tmp_path)
