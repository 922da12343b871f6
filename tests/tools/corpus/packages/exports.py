"""Models of other packages as ONNX files, kept in the cache."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import pathlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tests.tools.corpus import cache, exporters
from tests.tools.corpus.norm_classes import DTYPES
from tests.tools.corpus.packages import count
from tests.tools.corpus.packages.table import PACKAGES, Made, Model, Package
from tests.tools.corpus.packages.vision import without_kernels


@dataclasses.dataclass(frozen=True, slots=True)
class PackageExport:
    """One model of a package, in one type, by one exporter.

    Attributes:
        package, model, dtype, exporter: which.
        path: the ONNX file; None when the exporter failed.
        reason: why it failed, or "".
        norms: norms of one forward pass by kind (see ``count.Kind``), then by class.
        named: classes called like a norm that are none.
        arrays: ``.npz`` file with the example inputs by name.
    """

    package: str
    model: str
    dtype: str
    exporter: str
    path: pathlib.Path | None
    reason: str
    norms: dict[str, dict[str, int]]
    named: tuple[str, ...]
    arrays: pathlib.Path

    @property
    def key(self) -> str:
        """Unique readable name."""
        return f"{self.package}-{self.model}-{self.dtype}-{self.exporter}"

    def expected(self, *kinds: str) -> int:
        """How many norms of these kinds the model has."""
        return sum(sum(self.norms.get(kind, {}).values()) for kind in kinds)

    def inputs(self) -> dict[str, np.ndarray]:
        """Example inputs by name; those that the exporter dropped are there, too."""
        return cache.load_arrays(self.arrays)


class Positional(torch.nn.Module):
    """A model as a function of its tensors in order, with the tensors of its result."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str], rest: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.names, self.rest = model, names, rest

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        out = self.model(**dict(zip(self.names, args, strict=True)), **self.rest)
        while not isinstance(out, torch.Tensor):
            out = out[0]
        return out


def jobs(package: Package, *, light: bool = False) -> Iterator[tuple[Model, str, str]]:
    """What there is to export: model, element type and exporter."""
    for model in package.models():
        if model.light or not light:
            for dtype, exporter in model.exports[: 1 if light else None]:
                yield model, dtype, exporter


def export(package: Package, model: Model, dtype: str, exporter: str) -> PackageExport:
    """One entry, from the cache when it is there."""
    name = f"{package.name}-{model.name}-{dtype}-{exporter}"
    version = importlib.metadata.version(package.name)
    sources = cache.source_hash("exporters", "packages/exports", f"packages/{package.module}")
    folder = cache.entry(
        "packages",
        name,
        f"{name} {version} {sources}",
        lambda folder: _fill(folder, model, dtype, exporter),
    )
    about = json.loads((folder / "about.json").read_text())
    norms = _norms(package, model, f"{version} {sources}")
    path = folder / "model.onnx"
    return PackageExport(
        package=package.name,
        model=model.name,
        dtype=dtype,
        exporter=exporter,
        path=path if path.exists() else None,
        reason=about["reason"],
        norms=norms["calls"],
        named=tuple(norms["named"]),
        arrays=folder / "arrays.npz",
    )


def _norms(package: Package, model: Model, key: str) -> dict[str, Any]:
    """The norms that ``model`` runs, counted in float32 and kept apart from its exports."""
    if model.norms is not None:
        return {"calls": {kind: {"": n} for kind, n in model.norms.items()}, "named": ()}

    def fill(folder: pathlib.Path) -> None:
        positional, args, _ = _positional(model)
        found = dataclasses.asdict(count.count(positional, args))
        (folder / "norms.json").write_text(json.dumps(found))

    folder = cache.entry(
        "package-norms",
        f"{package.name}-{model.name}",
        f"{key} {cache.source_hash('packages/count')}",
        fill,
    )
    found: dict[str, Any] = json.loads((folder / "norms.json").read_text())
    return found


def exports(package: str, *, light: bool = False) -> list[PackageExport]:
    """All entries of a package."""
    row = PACKAGES[package]
    return [export(row, *job) for job in jobs(row, light=light)]


def _made(model: Model) -> Made:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        without_kernels()
        return model.make()


def _positional(model: Model) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], list[str]]:
    module, given = _made(model)
    names = [name for name, value in given.items() if isinstance(value, torch.Tensor)]
    rest = {name: value for name, value in given.items() if name not in names}
    positional = Positional(module, names, rest).eval()
    _enliven(positional)
    return positional, tuple(given[name] for name in names), names


def _fill(folder: pathlib.Path, model: Model, dtype: str, exporter: str) -> None:
    path = folder / "model.onnx"
    arrays, write = (_own if exporter in model.own else _by_torch)(path, model, dtype, exporter)
    cache.save_arrays(folder / "arrays.npz", arrays)
    reason = ""
    for axes in dict.fromkeys((model.dynamic, ())):
        try:
            write(axes)
        except Exception as error:  # the reason is the entry
            reason = reason or exporters.first_line(error)
            path.unlink(missing_ok=True)
            continue
        reason = ""
        break
    (folder / "about.json").write_text(json.dumps({"reason": reason, "norms": None}))


_Job = tuple[dict[str, np.ndarray], Callable[[tuple[int, ...]], None]]
"""The example inputs, and what writes the file with some axes symbolic."""


def _own(path: pathlib.Path, model: Model, _dtype: str, exporter: str) -> _Job:
    source, given = _made(model)
    if isinstance(source, torch.nn.Module):
        _enliven(source)
    arrays = {n: np.asarray(value) for n, value in given.items()}
    return arrays, functools.partial(model.own[exporter], source, given, path)


def _by_torch(path: pathlib.Path, model: Model, dtype: str, exporter: str) -> _Job:
    module, args, names = _positional(model)
    module = module.to(DTYPES[dtype])
    args = tuple(a.to(DTYPES[dtype]) if a.is_floating_point() else a for a in args)
    arrays = {n: exporters.to_numpy(a) for n, a in zip(names, args, strict=True)}

    def write(axes: tuple[int, ...]) -> None:
        exporters.export_module(module, args, path, exporter, dynamic_axes=axes, names=names)

    return arrays, write


def _enliven(model: torch.nn.Module) -> None:
    """Random numbers for what is constant at first: gains, biases, and gates that shut a layer.

    What was zero stays small: biases that swamp a layer's output would make rows over other axes
    alike.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and bool((parameter == parameter.flatten()[0]).all()):
                value = torch.rand(parameter.shape, generator=generator)
                gain = parameter.ndim < 2 and bool(parameter.flatten()[0] != 0)
                parameter.copy_(value + 0.5 if gain else (value - 0.5) * 0.2)
