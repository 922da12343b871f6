"""A PyTorch module as an ONNX file in which every RMSNorm is one node."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.save import SaveResult
from rmsnorm_export.graph.wellformed import NEWEST_OPSET
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.options import keywords
from rmsnorm_export.rewrite.optimize import optimize_model
from rmsnorm_export.rewrite.options import OptimizeOptions, RewriteOptions
from rmsnorm_export.rewrite.result import Report, Result
from rmsnorm_export.system.shown import Shown
from rmsnorm_export.torch.export.trace import OLDEST_OPSET, RECOGNISING, tell, trace
from rmsnorm_export.torch_options import ExportOptions

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class ExportResult(Shown):
    """Outcome of `export`.

    Attributes:
        path: the file that was written.
        model: what is in it.
        report: every norm: its node, its module's path, its class of rewrite.
        saved: size, external data files and notes of the file.
        log: what PyTorch's exporter printed and warned of.
    """

    path: Path
    model: ir.Model
    report: Report
    saved: SaveResult
    log: str

    def _shown(self) -> Report:
        return self.report


def convert(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    options: ExportOptions,
) -> tuple[Result, str]:
    """Return a module with every norm as one node, and the exporter's log; as ``export``."""
    model, log = trace(module, args, dataclasses.replace(options, opset=_opset(options)))
    tell(options.progress, RECOGNISING)
    own = keywords(options, RewriteOptions) | {"target": options.form}
    result = optimize_model(model, OptimizeOptions(**own))
    source = f"PyTorch module {type(module).__module__}.{type(module).__qualname__}"
    report = dataclasses.replace(result.report, source=source)
    return dataclasses.replace(result, report=report), log


def _opset(options: ExportOptions) -> int | None:
    opset, row = options.opset, options.consumer
    oldest = max(OLDEST_OPSET, TARGETS[options.form].min_opset)
    if opset is None:
        # PyTorch's choice may be newer than an old runtime.
        return oldest if oldest > OLDEST_OPSET or (row and row.opset) else None
    if not oldest <= opset <= NEWEST_OPSET:
        raise UsageError(
            f"The opset is out of the range of the target {options.form}.",
            found=f"opset {opset}",
            fix=f"use {oldest} to {NEWEST_OPSET}, or omit it",
        )
    return opset
