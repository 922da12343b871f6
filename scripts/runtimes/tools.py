"""What other tools make of our files: each tool on each form, the result run and its norms counted.

    python -m scripts.runtimes.tools     writes docs/other-tools.md

A tool that is not installed has no row. Its result is compared with the raw float32 file in ONNX
Runtime, with its graph optimization on and off.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import sys
import tempfile
from collections.abc import Callable

import numpy as np
import onnx

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.runtime.session import open_session
from scripts.lib.command import ROOT, say
from scripts.lib.tables import markdown_table
from scripts.runtimes import models

PAGE = ROOT / "docs" / "other-tools.md"
Tool = Callable[[onnx.ModelProto, pathlib.Path], onnx.ModelProto]


def _float16(model: onnx.ModelProto, _: pathlib.Path) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    converted: onnx.ModelProto = convert_float_to_float16(model, keep_io_types=True)
    return converted


def _float16_common(model: onnx.ModelProto, _: pathlib.Path) -> onnx.ModelProto:
    from onnxconverter_common.float16 import convert_float_to_float16

    converted: onnx.ModelProto = convert_float_to_float16(model, keep_io_types=True)
    return converted


def _inliner(model: onnx.ModelProto, _: pathlib.Path) -> onnx.ModelProto:
    from onnx import inliner

    return inliner.inline_local_functions(model)


def _version(model: onnx.ModelProto, _: pathlib.Path) -> onnx.ModelProto:
    from onnx import version_converter

    return version_converter.convert_version(model, 24)


def _extract(model: onnx.ModelProto, folder: pathlib.Path) -> onnx.ModelProto:
    onnx.save(model, folder / "whole.onnx")
    onnx.utils.extract_model(folder / "whole.onnx", folder / "part.onnx", ["input"], ["output"])
    return onnx.load(folder / "part.onnx")


def _saved(level: str) -> Tool:
    def save(model: onnx.ModelProto, folder: pathlib.Path) -> onnx.ModelProto:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(folder / "saved.onnx")
        data = model.SerializeToString()
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return onnx.load(folder / "saved.onnx")

    return save


def _prepare(model: onnx.ModelProto, folder: pathlib.Path) -> onnx.ModelProto:
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quant_pre_process(model, str(folder / "prepared.onnx"))
    return onnx.load(folder / "prepared.onnx")


def _quantize(model: onnx.ModelProto, folder: pathlib.Path) -> onnx.ModelProto:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(model, str(folder / "quantized.onnx"))
    return onnx.load(folder / "quantized.onnx")


def _onnxscript(model: onnx.ModelProto, _: pathlib.Path) -> onnx.ModelProto:
    from onnxscript import optimizer

    changed: onnx.ModelProto = optimizer.optimize(model)
    return changed


def _onnxsim(model: onnx.ModelProto, _: pathlib.Path) -> onnx.ModelProto:
    from onnxsim import simplify

    changed: onnx.ModelProto = simplify(model)[0]
    return changed


def _onnxslim(model: onnx.ModelProto, _: pathlib.Path) -> onnx.ModelProto:
    from onnxslim import slim

    changed: onnx.ModelProto = slim(model)
    return changed


TOOLS: tuple[tuple[str, str, Tool, float], ...] = (
    ("float16 converter", "onnxruntime", _float16, models.BOUNDS["float16"]),
    ("float16 converter", "onnxconverter-common", _float16_common, models.BOUNDS["float16"]),
    ("`onnx.inliner`", "onnx", _inliner, models.BOUNDS["float32"]),
    ("`onnx.version_converter` to 24", "onnx", _version, models.BOUNDS["float32"]),
    ("`onnx.utils.extract_model`", "onnx", _extract, models.BOUNDS["float32"]),
    ("basic optimizations, saved", "onnxruntime", _saved("ORT_ENABLE_BASIC"), 1e-4),
    ("extended optimizations, saved", "onnxruntime", _saved("ORT_ENABLE_EXTENDED"), 1e-4),
    ("`quant_pre_process`", "onnxruntime", _prepare, 1e-4),
    ("`quantize_dynamic`", "onnxruntime", _quantize, 0.5),
    ("optimizer", "onnxscript", _onnxscript, models.BOUNDS["float32"]),
    ("`simplify`", "onnxsim", _onnxsim, models.BOUNDS["float32"]),
    ("`slim`", "onnxslim", _onnxslim, models.BOUNDS["float32"]),
)
"""What it does, its package, the call, and how far its result may be from the raw file: rounding
to 8 bits alone moves the outputs by a few tenths."""


def outcome(tool: Tool, form: str, bound: float) -> str:
    """What becomes of a file, in a few words."""
    raw = models.block(TYPE, OPSET)
    source = onnx.load_from_string(rx.optimize(raw, target=form).to_bytes())  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        try:
            changed = tool(source, pathlib.Path(folder))
        except Exception as error:
            return f"the tool fails: {type(error).__name__}"
    try:
        off = _off(changed)
    except rx.Error:
        return "ONNX Runtime does not load it"
    if off > bound:
        return f"wrong by {off:.2g}"
    found = rx.inspect(changed)
    kept, parts = len(found.kept), len(found.fused)
    again = rx.optimize(changed, numerics="upcast")
    words = "one node" if kept == models.NORMS else "plain operators" if not kept else "mixed"
    if form == "plain":
        words = "plain operators" if parts == models.NORMS else words
    if len(again.report.kept) + len(again.report.fused) < models.NORMS:
        return f"{words}; not found again"
    if _off(onnx.load_from_string(again.to_bytes())) > bound:
        return f"{words}; wrong when optimized again"
    return words


TYPE, OPSET = models.TYPES["float32"], 18


def _off(model: onnx.ModelProto) -> float:
    wanted = models.expected(models.block(TYPE, OPSET))
    data, worst = model.SerializeToString(), 0.0
    for optimize in (True, False):
        session = open_session(data, optimize=optimize, threads=1)
        worst = max(
            worst, float(np.abs(session.run(None, {"input": models.feed()})[0] - wanted).max())
        )
    return worst


_HEAD = """\
Made by `python -m scripts.runtimes.tools`: three norms with residual sums in float32, at opset 18,
written for each target, then changed by the tool. Each cell says what the norms are afterwards.
Where it says no more, the result ran in ONNX Runtime with the right numbers, with graph
optimization and without, and `optimize` found every norm in it again.
"""

_FOOT = """\
A float16 converter that runs over the raw file puts the squares into float16: `onnx` and `ort`
then fuse under `--numerics upcast` alone. After `portable` the row is still computed in float32,
and they fuse as `reordered`. ONNX Runtime fuses the converted `portable` file from 1.23 on; it
runs in all of 1.17 to 1.31."""


def page() -> str:
    """The page, for the tools that are installed."""
    rows = []
    for what, package, tool, bound in TOOLS:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            say(f"{package} is not installed: no row")
            continue
        cells = [outcome(tool, form, bound) for form in TARGETS]
        rows.append([f"{package} {version}", what, *cells])
    lines = [
        "# What other tools make of the files",
        "",
        _HEAD,
        *markdown_table(["package", "tool", *TARGETS], rows),
        "",
        _FOOT,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    sys.exit(0)
