"""Modules as ONNX files: three exporters, three types, kept in the cache.

What an exporter cannot do is an entry too, with the reason, so that a missing case shows.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rmsnorm_export import printable
from rmsnorm_export.compare.pytorch import to_array
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.torch.export.failure import collected
from toolbox.corpus import cache

EXPORTERS = ("dynamo18", "dynamo23-plain", "torchscript17")
"""``torch.onnx.export``: TorchDynamo at opset 18 with its optimizer, TorchDynamo at opset 23 with
``optimize=False``, and TorchScript at opset 17."""

Example = tuple[torch.nn.Module, dict[str, torch.Tensor], int]
"""A module, its example inputs by name, and its RMSNorm calls in one forward pass."""


@dataclasses.dataclass(frozen=True, slots=True)
class Export:
    """One module as one ONNX file, and what PyTorch computes.

    Attributes:
        key: unique readable name.
        path: the ONNX file; None when no exporter could make it.
        reason: why, or "".
        norms: how many RMSNorms the file holds.
        tensors: file of the example inputs and PyTorch's outputs.
    """

    key: str
    path: pathlib.Path | None
    reason: str
    norms: int
    tensors: pathlib.Path

    def inputs(self) -> dict[str, Array]:
        """Return the example inputs by the names that the graph gives them."""
        return {k: to_array(v) for k, v in torch.load(self.tensors)["inputs"].items()}

    def output(self) -> Array:
        """Return what PyTorch gives for ``inputs()``."""
        return to_array(torch.load(self.tensors)["output"])


def cached(
    kind: str,
    key: str,
    depends: str,
    make: Callable[[], Example],
    attempts: Sequence[tuple[str, Sequence[int]]],
) -> Export:
    """Return an export, made when it is asked for first, then from the cache.

    Args:
        kind, key: of the entry.
        depends: on what it depends besides its key and the code here.
        make: the module.
        attempts: exporters with the axes that are symbolic in every input; the first that can.
    """

    def fill(folder: pathlib.Path) -> None:
        module, inputs, norms = make()
        reason, left = "", attempts
        try:
            with torch.no_grad():
                tensors = {"inputs": inputs, "output": module(*inputs.values())}
            torch.save(tensors, folder / "tensors.pt")
        except RuntimeError as error:  # some mix types that PyTorch's own kernels do not take
            reason, left = f"PyTorch cannot run it: {_first_line(error)}", ()
        for exporter, axes in left:
            try:
                export_module(module, inputs, folder / "model.onnx", exporter, axes)
                reason = ""
                break
            except Exception as error:  # the reason is the entry
                reason = _first_line(error)
        (folder / "about.json").write_text(json.dumps({"norms": norms, "reason": reason}))

    sources = cache.source_hash("weights", "exporters")
    folder = cache.entry(kind, key, f"{key} {depends} {sources}", fill)
    about = json.loads((folder / "about.json").read_text())
    path = folder / "model.onnx"
    return Export(key, path if path.exists() else None, **about, tensors=folder / "tensors.pt")


def export_module(
    module: torch.nn.Module,
    inputs: dict[str, torch.Tensor],
    path: pathlib.Path,
    exporter: str,
    dynamic_axes: Sequence[int],
) -> None:
    """Export with one of ``EXPORTERS``, its chatter silenced; axes that an input lacks are fixed.

    Raises:
        Exception: whatever the exporter raises.
    """
    axes = {name: [a for a in dynamic_axes if a < t.ndim] for name, t in inputs.items()}
    options: dict[str, Any] = {"input_names": list(inputs), "dynamo": exporter != "torchscript17"}
    if exporter == "torchscript17":
        label = {0: "batch", 1: "sequence"}
        options["opset_version"] = 17
        options["dynamic_axes"] = {k: {a: label[a] for a in ax} for k, ax in axes.items()}
    else:
        options |= {"external_data": False, "verbose": False, "optimize": exporter == "dynamo18"}
        options["opset_version"] = 18 if exporter == "dynamo18" else 23
        if dynamic_axes:
            shapes = (dict.fromkeys(ax, torch.export.Dim.DYNAMIC) for ax in axes.values())
            options["dynamic_shapes"] = tuple(shapes)
    with collected(), torch.no_grad():
        torch.onnx.export(module, tuple(inputs.values()), str(path), **options)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {printable.first_line(error)}"
