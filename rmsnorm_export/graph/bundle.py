"""A folder of graphs that belong together: read, and written whole with weights once.

transformers' exporter writes ``export.json``, which names the file of each component and what its
runner needs to call it, beside the graphs, their weights and the configs. Other exporters write the
graphs and configs alone.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.folder import EXPORT_FILE, new_folder, write_models
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.graph.structures import structure_anew
from rmsnorm_export.printable import first_line, quoted, short
from rmsnorm_export.runtime.inputs import declared_tensor, given_inputs
from rmsnorm_export.runtime.sizes import DIMENSION, INPUT, Dims, Given, Shapes, Use, names_in, read
from rmsnorm_export.strict import parse_json
from rmsnorm_export.system.files import copy_file, read_text
from rmsnorm_export.system.reading import file_within
from rmsnorm_export.system.shown import Shown

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_COMPANIONS = (".json", ".txt", ".model", ".jinja", ".md")
"""Configs, tokenizers and chat templates, which go with the graphs."""

_FIX = "export the model again, or put back the files as they were exported"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Components(Shown):
    """Outcome of a command for a folder of graphs: that of each component.

    Attributes:
        path: of the folder that was read or, where the command makes one, written.
        results: by the name of the component, in the order in which they run.
    """

    path: Path
    results: Mapping[str, Any]


class _Metadata(msgspec.Struct):
    export_config: dict[str, Any] | None = None
    in_spec: str | None = None
    out_spec: str | None = None


class _Component(msgspec.Struct):
    file: Annotated[str, msgspec.Meta(pattern=r"^[^/\\]+\.onnx$")]
    metadata: _Metadata


class _Manifest(msgspec.Struct):
    """The part of ``export.json`` that is used."""

    export_format: Literal["onnx"]
    components: Annotated[dict[str, _Component], msgspec.Meta(min_length=1)]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A folder of graphs.

    Attributes:
        folder: absolute.
        files: the file of each component, in the order in which they run.
        manifest: the content of ``export.json``; None without it.
    """

    folder: Path
    files: Mapping[str, Path]
    manifest: Mapping[str, Any] | None

    def save(
        self,
        path: str | os.PathLike[str],
        models: Mapping[str, ir.Model],
        *,
        weights: WeightsPolicy = "auto",
        force: bool = False,
    ) -> tuple[Path, ...]:
        """Write new graphs of the components to a folder, with the manifest and the configs.

        Weights that several components share stay in one file. The folder may be this one: its
        weights stay where they are then, but with ``copy`` and ``embed``.

        Args:
            path: of the folder, which appears whole or not at all.
            models: the graph of each component.
            weights: as for ``Result.save``.
            force: replace an export that is in the folder.

        Returns:
            The files that were written.

        Raises:
            UsageError: the folder exists, is not empty, and ``force`` is not given.
            InputError: it cannot be written.
        """
        here = os.path.isdir(path) and os.path.samefile(path, self.folder)
        if weights == "reference" and not here:
            what = "Weights can be referenced in place only from the folder that they are in."
            fix = "write the output into the folder of the source, or use --weights copy"
            raise UsageError(what, found=short(os.fspath(path), 300), fix=fix)
        in_place = here and weights in ("auto", "reference")
        named = {self.files[name].stem: model for name, model in models.items()}
        with new_folder(path, force=force, keep_old=in_place) as folder:
            write_models(named, folder, "reference" if in_place else weights, self.manifest)
            if not here:
                self._copy_companions(folder)
            written = sorted(entry.name for entry in folder.iterdir())
        return tuple(Path(os.path.abspath(path), name) for name in written)

    def _copy_companions(self, folder: Path) -> None:
        for entry in sorted(self.folder.iterdir()):
            follows = entry.suffix in _COMPANIONS and entry.is_file()
            if not follows or (folder / entry.name).exists() or entry.name == EXPORT_FILE:
                continue
            path = file_within(entry.parent, entry.name)
            if path is None:
                what = "A file of the folder is a link to one outside of it."
                fix = "copy the file into the folder, or remove the link"
                raise InputError(what, found=short(str(entry), 300), fix=fix)
            copy_file(path, folder / entry.name)

    def sizes(
        self, shapes: Shapes | None, dims: Dims | None, use: Use
    ) -> Mapping[str, tuple[Shapes | None, Dims | None]]:
        """Return what of shapes and dimensions concerns each component.

        Raises:
            UsageError: a name that none of them has, or that cannot be read.
        """
        several = use.ranges and not isinstance(shapes, str | Mapping | None)
        profiles: Any = shapes if several else [shapes]
        rows, sizes = [read(one, None, use) for one in profiles], read(None, dims, use)
        names = {component: _sizes_of(file) for component, file in self.files.items()}
        every = set().union(*names.values())
        for _, name in set(sizes).union(*rows) - every:
            what = "No component of the folder has an input or dimension of this name."
            fix = f"use some of {short(', '.join(sorted(name for _, name in every)), 300)}"
            raise UsageError(what, found=quoted(name), fix=fix)
        return {
            component: ([own for one in rows if (own := _of(keys, one))] or None, _of(keys, sizes))
            for component, keys in names.items()
        }


def _of(keys: set[tuple[Any, str]], sizes: Given) -> Any:
    """Return the sizes of one component, by name; None without any."""
    return {name: size for (kind, name), size in sizes.items() if (kind, name) in keys} or None


def _sizes_of(file: Path) -> set[tuple[Any, str]]:
    """Return the kinds and names of what has sizes in a graph."""
    inputs = [declared_tensor(value) for value in given_inputs(load_model(file).model)]
    sizes = [size for one in inputs for size in one.shape or ()]
    dimensions = {(DIMENSION, name) for size in sizes for name in names_in(size)}
    return dimensions | {(INPUT, one.name) for one in inputs}


def is_state(name: str) -> bool:
    """Return whether an input or output of a decoder's graph is a part of the cache."""
    return state_name(name).startswith(("past_key_values.", "cache_params."))


def state_name(name: str) -> str:
    """Return what an input and the output that follows it share: the path of the cache's leaf."""
    return re.sub(r"^(input|output)\.", "", name)


def open_folder(folder: str | os.PathLike[str]) -> Bundle:
    """Return the graphs of a folder, see `bundle_at`.

    Raises:
        InputError: it is no folder of ONNX graphs, or its manifest and its files disagree.
    """
    bundle = bundle_at(folder)
    if bundle is None:
        fix = "give a folder that export --task generation, or another exporter, has made"
        found = short(os.fspath(folder), 300)
        raise InputError("This is no folder of ONNX graphs.", found=found, fix=fix)
    return bundle


def bundle_at(source: object) -> Bundle | None:
    """Return the folder of graphs that a path names, with a manifest or a config.json; else None.

    Raises:
        InputError: its manifest cannot be used, or says something else than its files.
    """
    if not isinstance(source, str | os.PathLike):
        return None
    try:
        folder = Path(os.path.abspath(source))
        if not folder.is_dir():
            return None
        if (folder / EXPORT_FILE).is_file():
            return _with_manifest(folder)
        entries = sorted(entry for entry in folder.iterdir() if entry.is_file())
    except (OSError, ValueError):
        return None
    graphs = {entry.stem: entry for entry in entries if entry.suffix == ".onnx"}
    of_pytorch = any(entry.suffix in _WEIGHTS for entry in entries)
    if not graphs or of_pytorch or not (folder / "config.json").is_file():
        return None
    return Bundle(folder, graphs, None)


def _with_manifest(folder: Path) -> Bundle:
    what, place = "The manifest of the export cannot be used.", folder / EXPORT_FILE
    text = read_text(place, what, fix=_FIX)
    try:
        content = parse_json(text)
        manifest = msgspec.convert(content, _Manifest)
        files = {name: folder / entry.file for name, entry in manifest.components.items()}
        if len(set(files.values())) < len(files) or not all(map(Path.is_file, files.values())):
            raise ValueError("a component has no file, or two components are in one")
        for entry in content["components"].values():
            for key in {"in_spec", "out_spec"} & entry["metadata"].keys():
                spec = entry["metadata"][key]
                entry["metadata"][key] = spec and structure_anew(spec)
    except ValueError as error:
        found = f"{short(str(place), 300)}: {first_line(error)}"
        raise InputError(what, found=found, fix=_FIX) from error
    return Bundle(folder, files, content)
