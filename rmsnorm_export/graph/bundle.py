"""A folder of graphs that belong together: read, and written whole with weights once.

transformers' exporter writes ``export.json``, which names the file of each component and what its
runner needs to call it, beside the graphs, their weights and the configs. Other exporters write the
graphs and configs alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Collection, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.encode import LARGE_BYTES, Swap, encode, too_large, write_tensor
from rmsnorm_export.graph.external import stored_at
from rmsnorm_export.graph.load import LoadedModel, load_model, no_gc
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.graph.save import save_model
from rmsnorm_export.graph.structures import structure_anew
from rmsnorm_export.graph.tensors import MAX_PROTO_BYTES, memory_of, tensor_slots
from rmsnorm_export.printable import first_line, plural, quoted, short
from rmsnorm_export.runtime.input_sizes import names_in
from rmsnorm_export.runtime.inputs import declared_tensor, given_inputs
from rmsnorm_export.runtime.sizes import DIMENSION, INPUT, Dims, Given, Shapes, SizeKind, Use, read
from rmsnorm_export.strict import parse_json
from rmsnorm_export.system.files import copy_file, refusals_as
from rmsnorm_export.system.folders import Stage
from rmsnorm_export.system.reading import file_within, read_json, read_text
from rmsnorm_export.system.shown import Shown

EXPORT_FILE = "export.json"
"""Of transformers: the components of a folder, and what its runner needs to call them."""

_PAGE, _MAPPED = 4096, 1 << 20
"""Tensors from a MiB on begin on a page, so that a runtime can map them."""

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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A folder of graphs.

    Attributes:
        folder: absolute.
        files: the file of each component, in the order in which they run.
        manifest: what is in ``export.json``; None without it.
    """

    folder: Path
    files: Mapping[str, Path]
    manifest: Mapping[str, Any] | None

    def save(
        self,
        path: str | os.PathLike[str],
        models: Mapping[str, tuple[ir.Model, LoadedModel]],
        *,
        weights: WeightsPolicy = "auto",
        anew: bool = False,
        force: bool = False,
    ) -> tuple[Path, ...]:
        """Write new graphs of the components to a folder, with the manifest and the configs.

        Weights that several components share stay in one file. The folder may be this one: its
        weights stay where they are then.

        Args:
            path: of the folder, which appears whole or not at all.
            models: the graph of each component, and where it came from.
            weights: as for ``Result.save``.
            anew: with ``auto``, store what the graphs have now, each tensor once: most weights are
                others than in the source.
            force: replace an export that is in the folder.

        Returns:
            The files that were written.

        Raises:
            UsageError: the folder exists, is not empty, and ``force`` is not given.
            InputError: it cannot be written.
        """
        here = os.path.isdir(path) and os.path.samefile(path, self.folder)
        placed: dict[tuple[str, str], str] = {}
        taken = None
        anew = anew and weights == "auto"
        if here and weights != "embed" and not anew:
            taken = {file.name for file in self.files.values()} | {EXPORT_FILE}
            for _, source in models.values():
                placed |= {(str(source.folder), place): place for place in source.external}
        with new_folder(path, force=force, taken=taken) as folder:
            before = {entry.name for entry in folder.iterdir()}
            if anew:
                write_models(
                    {self.files[name].stem: one for name, (one, _) in models.items()}, folder
                )
            for name, (model, source) in models.items() if not anew else ():
                target = folder / self.files[name].name
                save_model(model, target, source=source, weights=weights, placed=placed)
                if self.manifest is not None:  # transformers looks for it, be it empty
                    target.with_name(f"{target.name}.data").touch()
            if self.manifest is not None:
                write_manifest(folder, self.manifest)
            for entry in sorted(self.folder.iterdir()) if not here else ():
                follows = entry.suffix in _COMPANIONS and entry.name != EXPORT_FILE
                if follows and entry.is_file() and not (folder / entry.name).exists():
                    copy_file(_companion(entry), folder / entry.name)
            written = sorted({entry.name for entry in folder.iterdir()} - before)
        return tuple(Path(os.path.abspath(path), name) for name in written)

    def sizes(
        self, shapes: Shapes | None, dims: Dims | None, use: Use
    ) -> Mapping[str, tuple[Shapes | None, Dims | None]]:
        """What of shapes and dimensions concerns each component.

        Raises:
            UsageError: a name that none of them has, or that cannot be read.
        """
        names: dict[str, dict[SizeKind, set[str]]] = {}
        for name, file in self.files.items():
            inputs = [declared_tensor(value) for value in given_inputs(load_model(file).model)]
            sizes = (size for one in inputs for size in one.shape or ())
            names[name] = {
                INPUT: {one.name for one in inputs},
                DIMENSION: {known for size in sizes for known in names_in(size)},
            }
        parts: dict[SizeKind, list[Given]] = {}
        for kind, value in ((INPUT, shapes), (DIMENSION, dims)):
            single = value is None or isinstance(value, str | Mapping)
            each: Any = [value] if single else value
            if not use.ranges or kind is DIMENSION:  # only ranges of inputs are told apart
                each = [value]
            parts[kind] = [
                read(part if kind is INPUT else None, part if kind is DIMENSION else None, use)
                for part in each
                if part
            ]
            for _, given in (key for part in parts[kind] for key in part):
                if not any(given in known[kind] for known in names.values()):
                    every = sorted(set().union(*(known[kind] for known in names.values())))
                    raise UsageError(
                        f"No component of the folder has this {kind}.",
                        found=quoted(given),
                        fix=f"use some of {short(', '.join(every), 300)}",
                    )

        def of(kind: SizeKind, known: Collection[str]) -> Any:
            kept = [
                {name: rows for (_, name), rows in part.items() if name in known}
                for part in parts[kind]
            ]
            kept = [one for one in kept if one]
            return None if not kept else kept[0] if len(kept) == 1 else kept

        return {
            name: (of(INPUT, known[INPUT]), of(DIMENSION, known[DIMENSION]))
            for name, known in names.items()
        }


def _companion(entry: Path) -> Path:
    """The file that goes with the graphs; a link could take a file of the user's along."""
    path = file_within(entry.parent, entry.name)
    if path is None:
        raise InputError(
            "A file of the folder is a link to one outside of it.",
            found=short(str(entry), 300),
            fix="copy the file into the folder, or remove the link",
        )
    return path


def is_state(name: str) -> bool:
    """Whether an input or output of a decoder's graph is a part of the cache."""
    return state_name(name).startswith(("past_key_values.", "cache_params."))


def state_name(name: str) -> str:
    """What an input and the output that follows it have in common: the path of the cache's leaf."""
    return re.sub(r"^(input|output)\.", "", name)


def open_folder(folder: str | os.PathLike[str]) -> Bundle:
    """The graphs of a folder, see `bundle_at`.

    Raises:
        InputError: it is no folder of ONNX graphs, or its manifest and its files disagree.
    """
    bundle = bundle_at(folder)
    if bundle is None:
        raise InputError(
            "This is no folder of ONNX graphs.",
            found=short(os.fspath(folder), 300),
            fix="give a folder that export --task generation, or another exporter, has made",
        )
    return bundle


def bundle_at(source: object) -> Bundle | None:
    """The folder of graphs that a path names, with a manifest or a config.json; None where it names
    something else.

    Raises:
        InputError: its manifest cannot be used, or says something else than its files.
    """
    if not isinstance(source, str | os.PathLike):
        return None
    try:
        folder = Path(os.path.abspath(source))
        if not folder.is_dir():
            return None
        manifest = folder / EXPORT_FILE
        if not manifest.is_file():
            entries = sorted(entry for entry in folder.iterdir() if entry.is_file())
            if any(entry.suffix in _WEIGHTS for entry in entries):  # of a PyTorch model
                return None
            graphs = {entry.stem: entry for entry in entries if entry.suffix == ".onnx"}
            described = (folder / "config.json").is_file()
            return Bundle(folder, graphs, None) if graphs and described else None
    except (OSError, ValueError):
        return None
    return _with_manifest(folder, manifest)


def _with_manifest(folder: Path, manifest: Path) -> Bundle:
    text = read_text(manifest, "The manifest of the export cannot be read.", fix=_FIX)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise _unusable(manifest, f"it is not JSON: {first_line(error)}") from error
    entries = _object(content, manifest, "components")
    kind = str(content.get("export_format"))
    records = {str(name): _object(entries, manifest, name) for name in entries}
    metadata = {name: _object(record, manifest, "metadata") for name, record in records.items()}
    for name, facts in metadata.items():
        if facts.get("export_config") is not None:
            _object(facts, manifest, "export_config")
        for key in ("in_spec", "out_spec"):
            if facts.get(key) is not None:
                try:
                    facts[key] = structure_anew(facts[key])
                except (ValueError, LookupError, TypeError, AttributeError) as error:
                    raise _unusable(manifest, f"{key} of {short(name)}: {error}") from error
    places = {name: str(record.get("file")) for name, record in records.items()}
    if kind != "onnx" or not places:
        raise InputError(
            "The folder holds no ONNX graphs.",
            found=f"{short(str(manifest), 300)}: {kind}, {plural(len(places), 'component')}",
            fix="export the model to ONNX, e.g. with rmsnorm-export export --task generation",
        )
    files: dict[str, Path] = {}
    for name, place in places.items():
        if Path(place).name != place or Path(place).suffix != ".onnx":
            raise _unusable(manifest, f"{quoted(place)} is no name of an ONNX file in the folder")
        if folder / place in files.values():
            raise _unusable(manifest, f"two components are in {quoted(place)}")
        files[name] = folder / place
        problem = "there is no such file"
        if files[name].is_file():
            problem = _disagreement(name, load_model(files[name]).model, metadata[name])
        if problem:
            raise InputError(
                "The manifest of the folder and its files disagree.",
                found=f"{name}, {short(str(files[name]), 300)}: {problem}",
                fix=_FIX,
            )
    return Bundle(folder, files, content)


def _object(within: Any, manifest: Path, key: str) -> dict[str, Any]:
    """An object of the manifest, by its key."""
    found = within.get(key) if isinstance(within, dict) else None
    if not isinstance(found, dict):
        raise _unusable(manifest, f"there is no object {quoted(key)} where one belongs")
    return found


def _unusable(manifest: Path, problem: str) -> InputError:
    return InputError(
        "The manifest of the export cannot be used.",
        found=f"{short(str(manifest), 300)}: {problem}",
        fix=_FIX,
    )


def _disagreement(name: str, model: ir.Model, metadata: Mapping[str, Any]) -> str:
    """What a graph and its record differ in; "" where transformers' runner can call the graph."""
    known = metadata.get("kwargs") or {}
    if not isinstance(known, dict):
        return "the kwargs of the manifest are no object"
    for value in given_inputs(model):
        leaf = (value.name or "").removeprefix("input.")
        if known and leaf.partition(".")[0] not in known:
            return f"the manifest has no input {quoted(value.name or '')}"
    states = _states(metadata)
    reads = any(is_state(value.name or "") for value in given_inputs(model))
    if states is not None and reads and not states:
        return "it reads a cache, and the manifest gives it none"
    if states and not reads and name == "decode":
        return "it reads no cache, and the manifest gives it one"
    try:
        spec = parse_json(metadata["out_spec"])[1]
        needed = _leaves(spec) - len(metadata.get("out_constants") or ())
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return ""
    if len(model.graph.outputs) < needed:
        return f"{len(model.graph.outputs)} outputs, {needed} in the manifest"
    return ""


def _states(metadata: Mapping[str, Any]) -> int | None:
    """Tensors of the cache that a graph is called with; None where the manifest does not say."""
    try:
        _, given = parse_json(metadata["in_spec"])[1]["children_spec"]
        named = dict(zip(parse_json(given["context"]), given["children_spec"], strict=True))
        return sum(_leaves(part) for name, part in named.items() if is_state(f"{name}."))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _leaves(spec: Mapping[str, Any]) -> int:
    """Leaves of a structure that ``torch.utils._pytree`` has written."""
    inner = spec["children_spec"]
    return sum(map(_leaves, inner)) if inner or spec["type"] is not None else 1


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write ``export.json``."""
    text = json.dumps(manifest, indent=2) + "\n"
    (folder / EXPORT_FILE).write_text(text, encoding="utf-8")


def check_folder(path: str | os.PathLike[str], *, force: bool) -> Path:
    """The absolute path of a folder that can be made, or replaced with ``force``.

    Raises:
        UsageError: it exists and is not empty, and ``force`` is not given.
        InputError: it is a file, or its parent is missing.
    """
    folder = Path(os.path.abspath(path))
    if not folder.parent.is_dir():
        raise InputError(
            "The folder above the output does not exist.",
            found=str(folder.parent),
            fix="make it first, or check the path",
        )
    if os.path.lexists(folder) and not folder.is_dir():
        raise InputError(
            "The output is no folder.",
            found=f"{folder} is a file",
            fix="give the name of a folder, e.g. -o decoder/",
        )
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(
            "The folder of the output is not empty.",
            found=str(folder),
            fix="choose another one, or use --force to replace the export in it",
        )
    return folder


@contextlib.contextmanager
def new_folder(
    path: str | os.PathLike[str],
    *,
    force: bool,
    taken: Collection[str] | None = None,
) -> Iterator[Path]:
    """A folder to be filled in the block, which takes its place at the end, or not at all.

    What else is in an existing one stays.

    Args:
        path: of the folder.
        force: it may exist.
        taken: names that the block makes anew, with all others there before it; None: what the
            block makes takes the place of an earlier export.

    Raises:
        UsageError, InputError: as `check_folder`; and where it cannot be written.
    """
    final = check_folder(path, force=force)
    writing = refusals_as(
        "The folder cannot be written.",
        final,
        fix="check the folder and its permissions; nothing was changed",
        fix_full="free some space, or write to another place; nothing was changed",
    )
    with writing, Stage(final) as stage:
        if taken is not None:
            stage.keep(taken)
        yield stage.folder
        if taken is None:
            written = {entry.name for entry in stage.folder.iterdir()}
            stage.keep({*written, *_own_files(final)})
        stage.publish()


def _own_files(folder: Path) -> Iterator[str]:
    """Models that an earlier export left there, which its manifest names."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        for entry in read_json(folder / EXPORT_FILE)["components"].values():
            name = Path(str(entry["file"])).name
            yield from (name, f"{name}.data")


def _storage(tensor: ir.TensorProtocol) -> Hashable:
    """What two tensors of the same memory, or of the same part of a file, have in common."""
    if isinstance(tensor, ir.ExternalTensor):
        return os.path.realpath(tensor.path), tensor.offset, tensor.length, tensor.dtype
    return memory_of(tensor) or id(tensor)


def write_models(models: Mapping[str, ir.Model], folder: Path) -> list[Path]:
    """Write ``NAME.onnx`` and ``NAME.onnx.data`` for each model into a folder.

    A tensor whose memory, or place in a file, an earlier model has, too, is stored once, in that
    model's data file; so sizes on disk are those of the weights once, however the folder is copied.

    Args:
        models: by name; left unchanged.
        folder: exists, and holds no such files.

    Returns:
        The files.

    Raises:
        InputError: a graph alone passes 2 GiB, or a tensor's data does not fit its shape.
        OSError: a file cannot be written.
    """
    stored: dict[Hashable, ir.ExternalTensor] = {}
    files: list[Path] = []
    for name, model in models.items():
        path = folder / f"{name}.onnx"
        data = folder / f"{path.name}.data"
        swaps: list[Swap] = []
        with no_gc():
            slots = list(tensor_slots(model))
            with data.open("xb") as file:
                for slot in slots:
                    tensor = slot.tensor
                    if isinstance(tensor, ir.StringTensor) or tensor.nbytes < LARGE_BYTES:
                        continue
                    key = _storage(tensor)
                    if key not in stored:
                        if tensor.nbytes >= _MAPPED:
                            file.write(b"\0" * (-file.tell() % _PAGE))
                        offset = file.tell()
                        write_tensor(slot, tensor, file)
                        length = file.tell() - offset
                        stored[key] = stored_at(tensor, data.name, str(folder), offset, length)
                    kept = stored[key]
                    where = str(kept.location), str(folder)
                    swaps.append((slot, stored_at(tensor, *where, kept.offset, kept.length)))
            encoding = encode(model, slots, swaps)
            if encoding.size > MAX_PROTO_BYTES:
                raise too_large(f"{encoding.size} bytes")
            with path.open("xb") as file:
                encoding.write(file)
        files += [path, data]
    return files
