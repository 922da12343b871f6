"""Every file that ``optimize`` writes loads in the runtimes that its report names."""

from __future__ import annotations

import pathlib
from typing import Any

import onnx
import onnxruntime
import pytest
from hostile_models import HOSTILE
from onnx.reference import ReferenceEvaluator
from spellings.choices import FRAME_OPTIONS, SPELLING_OPTIONS, single
from spellings.look_alikes import LOOK_ALIKES
from spellings.place import build

import rmsnorm_export as rx
from tests.tools.corpus import cache

TARGETS = ("portable", "onnx", "ort")
CHOICES = [(name, value) for name, values in {**FRAME_OPTIONS, **SPELLING_OPTIONS}.items()
           for value in values]  # fmt: skip
ODD = [name for name, case in HOSTILE.items() if case.error is None]


def _onnxruntime(model: bytes | str) -> str:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return f"onnxruntime: {str(error)[:300]}"
    return ""


def _reference(model: bytes | str) -> str:
    try:
        ReferenceEvaluator(onnx.load(model) if isinstance(model, str) else model)
    except Exception as error:
        return f"onnx-reference: {type(error).__name__} {str(error)[:300]}"
    return ""


def _tensorrt_rtx(model: bytes | str) -> str:
    trt = pytest.importorskip("tensorrt_rtx", reason="pip install tensorrt-rtx")
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network()
    parser = trt.OnnxParser(network, logger)
    taken = parser.parse_from_file(model) if isinstance(model, str) else parser.parse(model)
    return "" if taken else f"tensorrt-rtx: {parser.get_error(0).desc()[:300]}"


LOADERS = {
    "onnxruntime": _onnxruntime,
    "onnx-reference": _reference,
    "tensorrt-rtx": _tensorrt_rtx,
}


def refused(source: bytes | str, folder: pathlib.Path) -> list[str]:
    """What a runtime that takes the source says of a result that its report promises it."""
    problems: list[str] = []
    takes = {name: not load(source) for name, load in LOADERS.items()}
    for target in TARGETS:
        result = rx.optimize(source, target=target)  # type: ignore[arg-type]
        path = folder / f"{target}.onnx"
        result.save(path, force=True)
        named = {row.runtime for row in result.report.runs_in if not row.reason}
        for name, load in LOADERS.items():
            if takes[name] and name in named and (problem := load(str(path))):
                problems.append(f"{target}: {problem}")
    return problems


@pytest.mark.parametrize(
    "part", [pytest.param(i, marks=[pytest.mark.thorough] if i else []) for i in range(4)]
)
def test_results_of_the_spellings_load(part: int, tmp_path: pathlib.Path) -> None:
    for name, value in CHOICES[part::4]:
        case = build(*single(name, value))
        assert not refused(case.model.SerializeToString(), tmp_path), (name, value)


def test_results_of_the_look_alikes_load(tmp_path: pathlib.Path) -> None:
    for name, alike in LOOK_ALIKES.items():
        assert not refused(alike.build().model.SerializeToString(), tmp_path), name


@pytest.mark.parametrize("name", ODD)
def test_results_of_odd_files_load(name: str, tmp_path: Any) -> None:
    source = HOSTILE[name].make(tmp_path)
    assert not refused(str(source), tmp_path)


@pytest.mark.thorough
def test_results_of_the_cached_exports_load(tmp_path: pathlib.Path) -> None:
    for path in sorted(cache.root().rglob("*.onnx")):
        assert not refused(path.read_bytes(), tmp_path), path
