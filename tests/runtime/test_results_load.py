"""Every file that ``optimize`` writes loads in the runtimes that its report names."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
from hostile_models import HOSTILE
from onnx.reference import ReferenceEvaluator
from recognize.text_models import TARGETS
from spellings.choices import SINGLE, single
from spellings.look_alikes import LOOK_ALIKES
from spellings.place import build

import rmsnorm_export as rx

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


@pytest.mark.parametrize(
    "part", [pytest.param(i, marks=[pytest.mark.thorough] if i else []) for i in range(4)]
)
def test_results_of_the_spellings_load(part: int, tmp_path: Path) -> None:
    for name, value in SINGLE[part::4]:
        assert not refused(build(*single(name, value)).model, tmp_path), (name, value)


def test_results_of_the_look_alikes_load(tmp_path: Path) -> None:
    for name, alike in LOOK_ALIKES.items():
        assert not refused(alike.build().model, tmp_path), name


@pytest.mark.parametrize("name", ODD)
def test_results_of_odd_files_load(name: str, tmp_path: Path) -> None:
    assert not refused(HOSTILE[name].make(tmp_path), tmp_path)
