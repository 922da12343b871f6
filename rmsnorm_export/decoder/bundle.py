"""A folder of graphs that belong together: read, and written whole with weights once.

transformers' exporter writes ``export.json``, which names the file of each component and what its
runner needs to call it, beside the graphs, their weights and the configs. Here it is handed on, and
names no class that is looked up. Other exporters write the graphs and configs alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.external import embed, placed, store
from rmsnorm_export.graph.load import load_model, no_gc, serialize
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.graph.tensors import LARGE_BYTES, lent_slots
from rmsnorm_export.options import MOST_INT32
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.runtime.inputs import graph_inputs, read_npz
from rmsnorm_export.runtime.sizes import Dims, Given, Inputs, Shapes, Use, read, sized_names
from rmsnorm_export.system.files import StrPath, copy_file, next_state, output_path, refusals_as
from rmsnorm_export.system.reading import inside, read_json
from rmsnorm_export.system.shown import Shown

EXPORT_FILE = "export.json"
"""Of transformers: the components of a folder, and what its runner needs to call them."""

GENAI_FILE = "genai_config.json"
"""Of onnxruntime-genai: the file of the decoder, and the names of its inputs and outputs."""

TOKENIZER = "tokenizer.json"
"""Of tokenizers, which transformers saves beside a model."""

_WEIGHTS = ".safetensors"
"""Of the models of PyTorch that are loaded."""

_COMPANIONS = (".json", ".txt", ".model", ".tiktoken", ".jinja", ".md")
"""Configs, tokenizers and chat templates, which go with the graphs."""
_TEMPLATES = "additional_chat_templates"
"""Of transformers: the folder of those with a name."""

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

    def parts(self) -> Mapping[str, Any]:
        return self.results


class _ExportConfig(msgspec.Struct):
    static_cache: Annotated[int, msgspec.Meta(ge=2, le=MOST_INT32)] | None = None


class _Metadata(msgspec.Struct):
    export_config: _ExportConfig | None = None
    export_dtype: str | None = None


class _Component(msgspec.Struct):
    file: str
    metadata: _Metadata


class _Manifest(msgspec.Struct):
    """The part of ``export.json`` that is used."""

    export_format: Literal["onnx"]
    components: Annotated[dict[str, _Component], msgspec.Meta(min_length=1)]


class _GenaiDecoder(msgspec.Struct):
    filename: str | msgspec.UnsetType = msgspec.UNSET
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}


class _GenaiModel(msgspec.Struct):
    decoder: _GenaiDecoder


class _GenaiSearch(msgspec.Struct):
    past_present_share_buffer: bool = False


class _GenaiConfig(msgspec.Struct):
    """The part of ``genai_config.json`` that is used."""

    model: _GenaiModel
    search: _GenaiSearch = msgspec.field(default_factory=_GenaiSearch)


_Read = TypeVar("_Read", _Manifest, _GenaiConfig)


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

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What is recorded of the last component; {} without a manifest."""
        components = (self.manifest or {}).get("components", {})
        every: list[Mapping[str, Any]] = [entry["metadata"] for entry in components.values()]
        return every[-1] if every else {}

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
        names = {
            component: sized_names(graph_inputs(load_model(file).model).values())
            for component, file in self.files.items()
        }
        every = set().union(*names.values())
        for _, name in set(sizes).union(*rows) - every:
            what = "No component of the folder has an input or dimension of this name."
            fix = f"use some of {short(', '.join(sorted(name for _, name in every)), 300)}"
            raise UsageError(what, found=quoted(name), fix=fix)
        return {
            component: ([own for one in rows if (own := _of(keys, one))] or None, _of(keys, sizes))
            for component, keys in names.items()
        }

    def given(self, inputs: Sequence[Inputs]) -> Mapping[str, Sequence[Inputs]]:
        """Return which of the given inputs, that have its names, each component takes.

        Raises:
            UsageError: some have the names of none.
        """
        every = [(one, {*(one if isinstance(one, Mapping) else read_npz(one))}) for one in inputs]
        names = {key: {*graph_inputs(load_model(file).model)} for key, file in self.files.items()}
        for _, keys in every:
            if keys not in names.values():
                what = "No component of the folder has inputs of these names."
                each = (f"{one}: {', '.join(sorted(own))}" for one, own in names.items())
                fix = f"give all of one component, {short('; '.join(each), 400)}"
                raise UsageError(what, found=short(", ".join(sorted(keys)), 300), fix=fix)
        return {key: [one for one, keys in every if keys == own] for key, own in names.items()}


def companions(folder: Path) -> dict[str, Path]:
    """Map the names of the configs, tokenizers and chat templates of a folder to their files.

    Raises:
        InputError: one is a link to a file outside of the folder.
    """
    files: dict[str, Path] = {}
    for entry in sorted([*folder.iterdir(), *(folder / _TEMPLATES).glob("*")]):
        of_weights = entry.name.endswith(".index.json")
        if entry.suffix not in _COMPANIONS or of_weights or not entry.is_file():
            continue
        name = os.fspath(entry.relative_to(folder))
        files[name] = inside(folder, name)
    return files


def tokenizer_beside(source: object) -> Path | None:
    """Return the tokenizer in the folder of a model's file, if there is one.

    Raises:
        InputError: it is a link to a file outside of the folder.
    """
    if not isinstance(source, str | os.PathLike):
        return None
    folder = Path(source).parent
    return inside(folder, TOKENIZER) if (folder / TOKENIZER).is_file() else None


def copy_missing(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files, by their new names, to a folder that may have some of these names already."""
    for name, path in files.items():
        if not (folder / name).exists():
            (folder / name).parent.mkdir(exist_ok=True)
            copy_file(path, folder / name)


def _of(keys: set[tuple[Any, str]], sizes: Given) -> Any:
    """Return the sizes of one component, by name; None without any."""
    return {name: size for (kind, name), size in sizes.items() if (kind, name) in keys} or None


_FOLLOWED = (("input.", "output."), ("past_key_values.", "present."))
"""The start of the name of an input of a cache, and that of the output that takes its place:
as transformers' exporter marks names that a graph has twice, and as optimum calls them."""


def states_of(graph: ir.Graph) -> dict[str, str]:
    """Map the inputs that are parts of a decoder's cache to the outputs that follow them.

    "" for what the graph reads alone, as the counters of a cache of fixed size.
    """
    names, outputs = [str(v.name) for v in graph.inputs], {str(v.name) for v in graph.outputs}
    states = {
        name: output
        for name in names
        for before, after in _FOLLOWED
        if name.startswith(before) and (output := after + name.removeprefix(before)) in outputs
    }
    caches = {state_name(name).partition(".")[0] for name in states}
    return {n: states.get(n, "") for n in names if state_name(n).partition(".")[0] in caches}


def state_name(name: str) -> str:
    """Return what an input and the output that follows it share: the path of the cache's leaf."""
    return re.sub(r"^present\.", "past_key_values.", re.sub(r"^(input|output)\.", "", name))


def open_folder(folder: StrPath) -> Bundle:
    """Return the graphs of a folder, see `bundle_at`.

    Raises:
        InputError: it is no folder of ONNX graphs, or its manifest and its files disagree.
    """
    bundle = bundle_at(folder)
    if bundle is None:
        fix = "give a folder that export --task generation, or another exporter, has made"
        found = place = short(os.fspath(folder), 300)
        graphs, weights = (sorted(Path(folder).glob(f"*{kind}")) for kind in (".onnx", _WEIGHTS))
        if graphs and weights:
            found += f": {short(graphs[0].name)} beside {short(weights[0].name)}, a PyTorch model's"
            fix = "put the graphs and the config.json into a folder of their own"
        elif graphs:
            found += f": {short(graphs[0].name)}, and no config.json, {GENAI_FILE} or {EXPORT_FILE}"
            fix = "put the config.json of the model into the folder, or give the .onnx file itself"
        elif os.path.isfile(os.path.join(folder, "config.json")):
            found += ": a config.json, and no graph"
            fix = f"export the model first: rmsnorm-export export {shlex.quote(place)} -o OUT"
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
        files = {entry.name: entry for entry in sorted(folder.iterdir()) if entry.is_file()}
    except (OSError, ValueError):
        return None
    graphs = {file.stem: file for file in files.values() if file.suffix == ".onnx"}
    of_pytorch = any(file.suffix == _WEIGHTS for file in files.values())
    others = graphs and not of_pytorch and {"config.json", GENAI_FILE} & files.keys()
    if EXPORT_FILE not in files and not others:
        return None
    for name, file in files.items():
        if file.suffix in (".onnx", *_COMPANIONS):
            inside(folder, name)
    if EXPORT_FILE in files:
        return _with_manifest(folder)
    if GENAI_FILE in files:
        _check_genai(folder)
    return Bundle(folder, graphs, None)


def _check_genai(folder: Path) -> None:
    """Refuse a folder whose graph has not the caches that its ``genai_config.json`` names."""
    what, place = "The folder is not as its genai_config.json says.", folder / GENAI_FILE
    with refusals_as(what, place, fix=_FIX, also=(ValueError,)):
        config = _read_as(read_json(place), _GenaiConfig)
        decoder = config.model.decoder
        if decoder.filename is msgspec.UNSET:
            return  # a pipeline of several graphs, or another kind of model
        if not (file := inside(folder, decoder.filename)).is_file():
            raise ValueError(f"it has no file {quoted(decoder.filename)}")
        graph = load_model(file).model.graph
        for kind in ("key", "value"):
            before = decoder.inputs.get(f"past_{kind}_names")
            after = decoder.outputs.get(f"present_{kind}_names")
            if before is None and after is None:
                continue
            if before is None or after is None:
                raise ValueError(f"it names past or present {kind}s alone, and a cache has both")
            taken, written = _layers(graph.inputs, before), _layers(graph.outputs, after)
            if not taken or taken.keys() != written.keys():
                layers = (", ".join(sorted(every)) or "none" for every in (taken, written))
                raise ValueError(f"of the {kind}s it takes layers {'; it gives '.join(layers)}")
            pairs = {taken[n]: written[n] for n in taken}
            _check_pairs(graph, pairs, shared=config.search.past_present_share_buffer)
        logits = decoder.outputs.get("logits", "logits")
        if logits not in {v.name for v in graph.outputs} - {*states_of(graph).values()}:
            raise ValueError(f"the graph gives no logits of the name {quoted(logits)}")


def _read_as(content: object, kind: type[_Read]) -> _Read:
    """Return the content of a JSON file as a record.

    Raises:
        ValueError: something in it is missing, or of another kind; with its place.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).replace("`", "").partition(" - at ")
        raise ValueError(f"{place.removeprefix('$.') or 'the content'}: {text}") from error


def _check_pairs(graph: ir.Graph, pairs: Mapping[str, str], *, shared: bool) -> None:
    """Refuse a cache that another output continues, and one buffer where the graph makes two.

    Raises:
        ValueError: with the names.
    """
    states, outputs = states_of(graph), {value.name: value for value in graph.outputs}
    for name, output in pairs.items():
        if states.get(name, output) != output:
            raise ValueError(f"{output} is to follow {name}, which {states[name]} does")
        node = outputs[output].producer()
        if shared and node is not None and node.op_type == "Concat":
            raise ValueError(f"{output} is to be in the buffer of {name}, but it is a Concat of it")


def _layers(values: Iterable[ir.Value], pattern: str) -> dict[str, str]:
    """Return the values with names of a pattern with ``%d``, by their numbers."""
    before, _, after = re.escape(pattern).partition("%d")
    matches = (re.fullmatch(rf"{before}(\d+){after}", str(value.name)) for value in values)
    return {match[1]: match[0] for match in matches if match}


def _with_manifest(folder: Path) -> Bundle:
    what, place = "The manifest of the export cannot be used.", folder / EXPORT_FILE
    with refusals_as(what, place, fix=_FIX, also=(ValueError,)):
        content = read_json(place)
        manifest = _read_as(content, _Manifest)
        files = {name: folder / entry.file for name, entry in manifest.components.items()}
        for entry in manifest.components.values():
            if re.fullmatch(r"[^/\\]+\.onnx", entry.file) is None:
                raise ValueError(f"{quoted(entry.file)} is no name of a file NAME.onnx")
        if len(set(files.values())) < len(files) or not all(map(Path.is_file, files.values())):
            names = ", ".join(file.name for file in files.values())
            raise ValueError(f"a component has no file of its own: {names}")
    return Bundle(folder, files, content)


def check_folder(path: StrPath, *, force: bool) -> Path:
    """Return the absolute path of a folder that can be made, or replaced with ``force``.

    Raises:
        UsageError: it exists and is not empty, and ``force`` is not given, or it is no path.
        InputError: it is a file, or its parent is missing.
    """
    folder = Path(os.path.abspath(output_path(path)))
    what, fix = "The output is no folder that can be made.", "check the path, e.g. -o decoder/"
    with refusals_as(what, folder, fix=fix):
        os.stat(os.path.join(folder.parent, ""))
        is_used = os.path.lexists(folder) and any(folder.iterdir())
    if is_used and not force:
        fix = "choose another one, or use --force to replace the export in it"
        raise UsageError("The folder of the output is not empty.", found=str(folder), fix=fix)
    return folder


@contextlib.contextmanager
def new_folder(path: StrPath, *, force: bool, keep_old: bool = False) -> Iterator[Path]:
    """Provide a folder to be filled in the block, which takes its place at the end, or not at all.

    What else is in an existing one stays.

    Args:
        path: of the folder.
        force: it may exist.
        keep_old: the models of an earlier export stay, too, unless the block makes new ones.
            Otherwise those go that its manifest names.

    Raises:
        UsageError, InputError: as `check_folder`; and where it cannot be written.
    """
    final = check_folder(path, force=force)
    replaced: set[str] = set()
    if not keep_old:
        replaced |= {EXPORT_FILE, GENAI_FILE}
        with contextlib.suppress(InputError):  # it has no manifest
            own = [file.name for file in _with_manifest(final).files.values()]
            replaced |= {*own, *(f"{name}.data" for name in own)}
    fix = "check the folder, its permissions and space; nothing was changed"
    writing = refusals_as("The folder cannot be written.", final, fix=fix)
    with writing, next_state(final, replaced) as folder:
        yield folder
        replaced |= {entry.name for entry in folder.iterdir()}


def write_models(
    models: Mapping[str, ir.Model],
    folder: Path,
    weights: WeightsPolicy = "copy",
    manifest: Mapping[str, Any] | None = None,
) -> None:
    """Write ``NAME.onnx`` and ``NAME.onnx.data`` for each model into a folder, and ``export.json``.

    A tensor whose memory, or place in a file, an earlier model has, too, is stored once, in that
    model's data file; so sizes on disk are those of the weights once, however the folder is copied.

    Args:
        models: by name; left unchanged.
        folder: exists, and holds no such files.
        weights: embed: the data files are empty; reference: external data is left where the folder
            is to take the place of its own, and no data file is written.
        manifest: the content of ``export.json``.

    Raises:
        InputError: a graph passes 2 GiB.
        OSError: a file cannot be written.
    """
    stored: dict[Hashable, ir.ExternalTensor] = {}
    for name, model in models.items():
        with no_gc(), lent_slots(model) as slots:
            large = [slot for slot in slots if slot.is_external or slot.nbytes >= LARGE_BYTES]
            if weights == "embed":
                embed(slots, folder)
                large = []
            data = folder / f"{name}.onnx.data"
            if manifest is not None and weights != "reference":
                data.touch()  # transformers looks for it, empty or not
            if weights != "reference":
                places = store(large, data, stored)
                for slot, place in zip(large, places, strict=True):
                    slot.put(placed(slot.tensor, os.fspath(place.location), str(folder), place))
            (folder / f"{name}.onnx").write_bytes(serialize(model))
    if manifest is not None:
        write_json(folder / EXPORT_FILE, manifest)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file that appears with its folder."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
