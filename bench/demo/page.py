"""The end of the demo: one model's report as a page, and an engine of it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

import rmsnorm_export as rx
from bench.demo.models import Exported
from rmsnorm_export.show import show_blocks, to_html
from rmsnorm_export.show.text import Line, flat, under


def end(source: Exported, date: str) -> tuple[list[Line], list[str]]:
    """Write page and engine of a model beside it.

    The page holds the report: its sites, their nodes before and after, proofs, refusals, and the
    comparison of the whole model.

    Returns:
        Lines for the reader, and what must not happen.
    """
    path = source.path.with_name(f"{source.path.stem}_portable.onnx")
    result = rx.optimize(source.path, prove=True, drawings=True)
    result.save(path, force=True)
    (name,) = (value.name for value in result.model.graph.inputs)
    compared = rx.verify(source.path, path, inputs={str(name): np.asarray(source.tokens)})
    lines, built = _engine(path)
    names = (source.path.name, path.name)
    after = [] if built is None else under("engine", show_blocks(built, verbose=1))
    after += under("verification", show_blocks(compared, verbose=1, compared=names))
    after += under("how it was made", [date, f"output {path.name}"])
    page = source.path.with_suffix(".html")
    page.write_text(to_html(result.report, after=after), encoding="utf-8")
    problems = [] if compared.passed else [f"the models differ: {compared.reason}"]
    known = built is not None and all(norm.how != "unknown" for norm in built.record.norms)
    if find_spec("tensorrt_rtx") is not None and not known:
        problems.append("TensorRT-RTX: see above")
    return [*lines, "", f"report of this model, for a browser: {page}"], problems


def _engine(path: Path) -> tuple[list[Line], rx.EngineResult | None]:
    """What TensorRT-RTX makes of the file; building needs no GPU."""
    if find_spec("tensorrt_rtx") is None:
        return ['no engine: TensorRT-RTX is not installed (pip install ".[tensorrt-rtx]")'], None
    try:
        built = rx.build_engine(
            path, path.with_suffix(".engine"), backend="tensorrt-rtx", force=True
        )
    except rx.Error as error:
        return [f"no engine: {error.what} {error.found}"], None
    return flat(show_blocks(built)), built
