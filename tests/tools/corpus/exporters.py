"""Norm classes as ONNX files: three exporters, three types, kept in the cache.

What an exporter cannot do is an entry too, with the reason, so that a missing case shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import logging
import os
import pathlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

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
    """The (type, exporter) pairs in which ``norm`` is in the corpus.

    An RMSNorm is there in all; the other norms, which hold none, in fewer: they cost the same time.
    """
    if norm.is_rmsnorm:
        return list(itertools.product(DTYPES, EXPORTERS))
    if not norm.shape:
        return []
    return list(itertools.product(("float32", "float16"), ("dynamo18", "torchscript17")))


def norm_exports(*, only: str = "", rmsnorm: bool | None = True) -> Iterator[NormExport]:
    """Every norm by every exporter; made when first asked for, then from the cache.

    Args:
        only: a piece of the key (``LlamaRMSNorm-float16-dynamo18``) that has to be in it.
        rmsnorm: True: RMSNorms. False: the other norm classes, which hold none (``expected`` is 0).
            None: both.
    """
    for norm in norm_classes():
        if rmsnorm is not None and norm.is_rmsnorm != rmsnorm:
            continue
        for dtype, exporter in combinations(norm):
            if only in f"{norm.key}-{dtype}-{exporter}":
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
        norm=norm,
        dtype=dtype,
        exporter=exporter,
        path=path if path.exists() else None,
        reason=about["reason"],
        expected=int(norm.is_rmsnorm),
        dynamic=about["dynamic"],
        arrays=folder / "arrays.npz",
    )


def _fill(folder: pathlib.Path, norm: NormClass, dtype: str, exporter: str) -> None:
    module, inputs = norm.make(dtype)
    reason, dynamic = "", False
    try:
        with torch.no_grad():
            save_io(folder / "arrays.npz", inputs, module(*inputs))
    except RuntimeError as error:  # some mix types that PyTorch's own kernels do not take
        reason = f"PyTorch cannot run it: {first_line(error)}"
    for dynamic in () if reason else (True, False):
        try:
            export_module(
                module,
                inputs,
                folder / "model.onnx",
                exporter,
                dynamic_axes=(0, 1) if dynamic else (),
            )
        except Exception as error:  # the reason is the entry
            reason = first_line(error)
            continue
        reason = ""
        break
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
        ValueError: unknown exporter.
        Exception: whatever the exporter raises.
    """
    if exporter not in EXPORTERS:
        raise ValueError(f"exporter must be one of {EXPORTERS}, got {exporter!r}")
    names = list(names) or [f"input{i}" for i in range(len(inputs))]
    axes = [[a for a in dynamic_axes if a < t.ndim] for t in inputs]
    label = {0: "batch", 1: "sequence"}
    common: dict[str, Any] = {"input_names": names}
    with _quiet(), torch.no_grad():
        if exporter == "torchscript17":
            torch.onnx.export(
                module,
                inputs,
                str(path),
                dynamo=False,
                opset_version=17,
                dynamic_axes={
                    n: {a: label[a] for a in ax} for n, ax in zip(names, axes, strict=True)
                },
                **common,
            )
            return
        shapes = tuple(dict.fromkeys(ax, torch.export.Dim.DYNAMIC) for ax in axes)
        torch.onnx.export(
            module,
            inputs,
            str(path),
            dynamo=True,
            opset_version=18 if exporter == "dynamo18" else 23,
            optimize=exporter == "dynamo18",
            dynamic_shapes=shapes if dynamic_axes else None,
            external_data=False,
            verbose=False,
            **common,
        )


def save_io(path: pathlib.Path, inputs: Sequence[torch.Tensor], outputs: Any) -> None:
    """Write inputs as ``in0``... and the tensors of ``outputs`` (one or a tuple) as ``out0``..."""
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    arrays = {f"in{i}": to_numpy(t) for i, t in enumerate(inputs)}
    arrays |= {f"out{i}": to_numpy(t) for i, t in enumerate(outputs)}
    cache.save_arrays(path, arrays)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The values with their type; bfloat16 as ``ml_dtypes.bfloat16``."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _numbered(path: pathlib.Path, prefix: str) -> list[np.ndarray]:
    arrays = _load(path)
    return [arrays[f"{prefix}{i}"] for i in range(len(arrays)) if f"{prefix}{i}" in arrays]


@functools.lru_cache(maxsize=8)
def _load(path: pathlib.Path) -> dict[str, np.ndarray]:
    return cache.load_arrays(path)


def first_line(error: Exception) -> str:
    """Type and first line of an error, short enough for a table."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings, logs and printed progress of the exporter, its C++ parts included."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            _muted(1),
            _muted(2),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _muted(descriptor: int) -> Iterator[None]:
    """Nothing written to a file descriptor gets through."""
    (sys.stdout if descriptor == 1 else sys.stderr).flush()
    kept = os.dup(descriptor)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, descriptor)
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(sink)
