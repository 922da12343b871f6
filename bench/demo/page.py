"""The end of the demo: one model's report as a page, and an engine of it."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import rmsnorm_export as rx
from bench.demo.models import Exported
from rmsnorm_export.show import section_of, to_html
from rmsnorm_export.show.engine import engine_lines
from rmsnorm_export.show.page import About
from rmsnorm_export.show.text import Line


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """What the demo ends with.

    Attributes:
        page: the report of one model: its sites, their graphs before and after, proofs, refusals,
            and the comparison of the whole model.
        compared: that comparison.
        engine: lines about the engine, or the reason why there is none.
        engine_failed: TensorRT-RTX is installed and built none, or it is not known what became of a
            norm in it.
    """

    page: Path
    compared: rx.Verification
    engine: list[Line]
    engine_failed: bool

    def lines(self) -> list[Line]:
        """For the reader, who may want to open the page."""
        return [*self.engine, "", f"report of this model, for a browser: {self.page}"]

    def problems(self) -> list[str]:
        """What must not happen."""
        found = [] if self.compared.passed else [f"the models differ: {self.compared.reason}"]
        return [*found, "TensorRT-RTX: see above"] if self.engine_failed else found


def end(source: Exported, date: str) -> Ending:
    """Write page and engine of a model beside it.

    Args:
        source: an export of the demo.
        date: when the demo was run, for the page.
    """
    path = source.path.with_suffix(".portable.onnx")
    result = rx.optimize(source.path, prove=True, drawings=True)
    result.save(path, force=True)
    (name,) = (value.name for value in result.model.graph.inputs)
    compared = rx.verify(source.path, path, inputs={str(name): np.asarray(source.tokens)})
    lines, built = _engine(path)
    names = (source.path.name, path.name)
    sections = [section_of(compared, "Verification", compared=names)]
    if built is not None:
        sections.insert(0, section_of(built, "Engine"))
    text = to_html(
        result.report,
        about=About([("Date", date), ("Output", path.name)]),
        sections=sections,
    )
    page = source.path.with_suffix(".html")
    page.write_text(text, encoding="utf-8")
    return Ending(
        page, compared, lines, find_spec("tensorrt_rtx") is not None and not _known(built)
    )


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
    return engine_lines(built), built


def _known(built: rx.EngineResult | None) -> bool:
    """There is an engine, and what became of every norm in it is known."""
    return built is not None and all(norm.how != "unknown" for norm in built.record.norms)
