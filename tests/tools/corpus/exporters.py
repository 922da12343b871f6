"""Norm classes as ONNX files: three exporters, three types, kept in the cache.

What an exporter cannot do is an entry too, with the reason, so that a missing case shows.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rmsnorm_export import printable
from rmsnorm_export.compare.pytorch import to_array
from rmsnorm_export.torch.export.chatter import collected
from tests.tools.corpus import cache
from tests.tools.corpus.norm_classes import DTYPES, NormClass, norm_classes

EXPORTERS = ("dynamo18", "dynamo23-plain", "torchscript17")
"""``torch.onnx.export``: TorchDynamo at opset 18 with its optimizer, TorchDynamo at opset 23 with
``optimize=False``, and TorchScript at opset 17."""

_SOURCES = ("build", "exporters")  # what a file depends on, besides the norm itself


@dataclasses.dataclass(frozen=True, slots=True)
class NormExport:
    """One norm, in one type, by one exporter.

    Attributes:
        norm: what was exported.
        dtype: of weights and inputs.
        exporter: one of ``EXPORTERS``.
        path: the ONNX file; None when the exporter failed.
        reason: why it failed, or "".
        expected: how many RMSNorms the file holds.
        dynamic: whether batch and sequence are symbolic.
        arrays: ``.npz`` file with the example inputs ``in0``, ``in1``... and PyTorch's ``out0``...
    """

    norm: NormClass
    dtype: str
    exporter: str
    path: pathlib.Path | None
    reason: str
    expected: int
    dynamic: bool
    arrays: pathlib.Path

    @property
    def key(self) -> str:
        """Unique readable name."""
        return f"{self.norm.key}-{self.dtype}-{self.exporter}"

    def inputs(self) -> list[np.ndarray]:
        """Example inputs in the order of the graph's inputs."""
        return _numbered(self.arrays, "in")

    def outputs(self) -> list[np.ndarray]:
        """What PyTorch gives for ``inputs()``."""
        return _numbered(self.arrays, "out")


def combinations(norm: NormClass) -> list[tuple[str, str]]:
    """Return the (type, exporter) pairs in which ``norm`` is in the corpus.

    An RMSNorm is there in all; the other norms, which hold none, in fewer: they cost the same time.
    """
    if norm.is_rmsnorm:
        return list(itertools.product(DTYPES, EXPORTERS))
    dtypes = ("float32", "float16") if norm.shape else ()
    return list(itertools.product(dtypes, ("dynamo18", "torchscript17")))


def norm_exports(*, only: str = "", rmsnorm: bool | None = True) -> Iterator[NormExport]:
    """Yield every norm by every exporter; made when first asked for, then from the cache.

    Args:
        only: a piece of the key (``LlamaRMSNorm-float16-dynamo18``) that has to be in it.
        rmsnorm: True: RMSNorms. False: the other norm classes, which hold none (``expected`` is 0).
            None: both.
    """
    for norm in norm_classes():
        for dtype, exporter in combinations(norm):
            chosen = rmsnorm in (None, norm.is_rmsnorm)
            if chosen and only in f"{norm.key}-{dtype}-{exporter}":
                yield export_norm(norm, dtype, exporter)


def export_norm(norm: NormClass, dtype: str, exporter: str) -> NormExport:
    """One entry; see ``norm_exports``."""
    name = f"{norm.key}-{dtype}-{exporter}"
    use = (norm.module, norm.source, norm.arguments, norm.shape, norm.inputs)
    folder = cache.entry(
        "norms",
        name,
        f"{name} {use} {cache.source_hash(*_SOURCES)}",
        lambda folder: _fill(folder, norm, dtype, exporter),
    )
    about = json.loads((folder / "about.json").read_text())
    path = folder / "model.onnx"
    return NormExport(
        norm, dtype, exporter, path if path.exists() else None, about["reason"],
        int(norm.is_rmsnorm), about["dynamic"], folder / "arrays.npz",
    )  # fmt: skip


def _fill(folder: pathlib.Path, norm: NormClass, dtype: str, exporter: str) -> None:
    module, inputs = norm.make(dtype)
    reason, dynamic = "", False
    try:
        with torch.no_grad():
            save_io(folder / "arrays.npz", inputs, module(*inputs))
    except RuntimeError as error:  # some mix types that PyTorch's own kernels do not take
        reason = f"PyTorch cannot run it: {first_line(error)}"
    for dynamic in () if reason else (True, False):
        axes = (0, 1) if dynamic else ()
        try:
            export_module(module, inputs, folder / "model.onnx", exporter, dynamic_axes=axes)
            reason = ""
            break
        except Exception as error:  # the reason is the entry
            reason = first_line(error)
    (folder / "about.json").write_text(json.dumps({"reason": reason, "dynamic": dynamic}))


def export_module(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    path: pathlib.Path,
    exporter: str,
    *,
    dynamic_axes: Sequence[int] = (0, 1),
    names: Sequence[str] = (),
) -> None:
    """Export ``module`` to ``path`` with one of ``EXPORTERS``, its chatter silenced.

    Args:
        module: called with positional ``inputs``.
        inputs: example inputs.
        path: of the file; weights are inside.
        exporter: one of ``EXPORTERS``.
        dynamic_axes: axes that are symbolic in every input; those that an input lacks are skipped.
        names: names of the graph's inputs; the exporter's own when empty.

    Raises:
        Exception: whatever the exporter raises.
    """
    names = list(names) or [f"input{i}" for i in range(len(inputs))]
    axes = [[a for a in dynamic_axes if a < t.ndim] for t in inputs]
    label = {0: "batch", 1: "sequence"}
    common: dict[str, Any] = {"input_names": names, "dynamo": exporter != "torchscript17"}
    if exporter == "torchscript17":
        common["opset_version"] = 17
        common["dynamic_axes"] = {
            name: {a: label[a] for a in ax} for name, ax in zip(names, axes, strict=True)
        }
    else:
        common |= {"external_data": False, "verbose": False, "optimize": exporter == "dynamo18"}
        common["opset_version"] = 18 if exporter == "dynamo18" else 23
        if dynamic_axes:
            shapes = (dict.fromkeys(ax, torch.export.Dim.DYNAMIC) for ax in axes)
            common["dynamic_shapes"] = tuple(shapes)
    with collected(), torch.no_grad():
        torch.onnx.export(module, inputs, str(path), **common)


def save_io(path: pathlib.Path, inputs: Sequence[torch.Tensor], outputs: Any) -> None:
    """Write inputs as ``in0``... and the tensors of ``outputs`` (one or a tuple) as ``out0``..."""
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    arrays = {f"in{i}": to_array(t) for i, t in enumerate(inputs)}
    arrays |= {f"out{i}": to_array(t) for i, t in enumerate(outputs)}
    cache.save_arrays(path, arrays)


@functools.lru_cache(maxsize=8)
def _numbered(path: pathlib.Path, prefix: str) -> list[np.ndarray]:
    arrays = cache.load_arrays(path)
    return [arrays[f"{prefix}{i}"] for i in range(len(arrays)) if f"{prefix}{i}" in arrays]


def first_line(error: Exception) -> str:
    """Return type and first line of an error, short enough for a table."""
    return f"{type(error).__name__}: {printable.first_line(error)}"
