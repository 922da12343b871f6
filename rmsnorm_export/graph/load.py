"""Read a model from a path, bytes, a ModelProto or an onnx_ir model, and make bytes of one.

Weights are left where they are.

Everything that could later give a traceback or wrong numbers is checked here, in time linear in the
nodes; harmless oddities (nodes out of order, negative dimensions) are put right in the private
copy and noted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import logging
import mmap
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped,unused-ignore]

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.external import adopt_external
from rmsnorm_export.graph.order import forget_negative_dims, sort_graphs
from rmsnorm_export.graph.pieces import Identity, Piece, bytes_of, parse, serialized, total_size
from rmsnorm_export.graph.tensors import MAX_PROTO_BYTES, check_tensor, tensor_slots
from rmsnorm_export.graph.wellformed import check_depth, check_graphs, check_proto, check_versions
from rmsnorm_export.printable import first_line, quoted, short
from rmsnorm_export.system.files import refusals_as
from rmsnorm_export.system.reading import map_file, open_regular, read_file

_EXPORT = (
    "rmsnorm-export export makes an ONNX file of file.py:function, a .pt2 file, a config.json or a "
    "Hugging Face folder"
)

Source = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model that was read and is well-formed.

    Attributes:
        model: a private copy; tensors stored inside an ``ir.Model`` or on disk are shared, never
            written.
        description: where it came from, safe to print.
        external: distinct locations of external data, as the file writes them, sorted.
        notes: oddities that were accepted or put right.
        path: absolute path of the file; None when it came from memory.
        identity: of the file when it was read: inode, size and time.
        folder: where the external data lies; None where there is none, or several.
        moved: external data is in Hugging Face's cache, where its locations are links: in ``model``
            they are names of files in ``folder``.
        origin: the source, where that was bytes or a ModelProto; never changed.
    """

    model: ir.Model
    description: str
    external: tuple[str, ...]
    notes: tuple[str, ...]
    folder: str | None
    path: Path | None = None
    identity: Identity | None = None
    origin: bytes | onnx.ModelProto | None = None
    moved: bool = False

    def to_bytes(self) -> bytes:
        """Serialise the model as it was: nothing is put right, external data stays in ``folder``.

        One whose external data was ``moved`` is written as it was read.

        Raises:
            InputError: the file went away, or is another than the one that was checked; or the
                model in memory is larger than 2 GiB, or has external data in no single known
                folder.
        """
        if self.external and self.folder is None:
            what = "The external data of the model is in no single folder that is known."
            found = f"{self.description} with data in {', '.join(map(quoted, self.external[:3]))}"
            fix = "give the path of the model, with all data in one folder"
            raise InputError(what, found=found, fix=fix)
        if self.path is not None and not self.moved:
            fix = "do not move or change it until the work is over"
            with refusals_as("The model file cannot be read again.", self.path, fix=fix):
                content = read_file(self.path, MAX_PROTO_BYTES)
                if _identity(self.path) != self.identity:
                    raise OSError("it was changed while it was in use")
            return content
        if isinstance(self.origin, bytes):
            return self.origin
        return serialize(self.model if self.origin is None else self.origin)


@contextlib.contextmanager
def no_gc() -> Iterator[None]:
    """Run a block without Python's cyclic garbage collector.

    A graph is hundreds of thousands of live objects in cycles: the collector scans them over and
    over while it grows and frees none. The previous state is restored; what was made inside goes
    straight to the oldest generation, or the next allocation would scan it all.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def load_model(source: Source) -> LoadedModel:
    """Read a model without loading weights, and check it.

    Args:
        source: path of an .onnx file, which is mapped as long as the model is used: it may be
            replaced, and not be written into; the bytes of one (what ``-`` gives: the caller reads
            standard input); a ModelProto; or an onnx_ir model. Objects are never changed.

    Raises:
        InputError: the source cannot be read, is not an ONNX model, or is not well-formed.
        UsageError: ``source`` is of another type.
    """
    with no_gc():
        if isinstance(source, ir.Model):
            return _checked(_copy(source), "an onnx_ir.Model", [])
        if isinstance(source, onnx.ModelProto):
            check_depth(source)
            proto = onnx.ModelProto()
            proto.CopyFrom(source)
            return _from_proto(proto, "an onnx.ModelProto", {}, origin=source)
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
            return _from_bytes(data, "bytes in memory", origin=data)
        if not isinstance(source, str | os.PathLike):
            what, fix = "This is no source of a model.", "give a path, bytes or a model in memory"
            raise UsageError(what, found=f"a {type(source).__name__}", fix=fix)
        shown = short(str(source), 300)
        fix = _fix(shown, "give the path of an .onnx file, with large weights beside it")
        with refusals_as("The model file cannot be read.", shown, fix=fix):
            path = Path(os.path.abspath(source))
            identity = _identity(path)
            content = map_file(path, MAX_PROTO_BYTES)
        return _from_bytes(content, shown, path=path, identity=identity)


def _copy(source: ir.Model) -> ir.Model:
    """Return a copy that has the same tensors."""
    if check_graphs(source):
        return source.clone()
    # clone() needs sorted nodes, and the caller's must not be sorted: copied by protobuf.
    with _refused():
        copy = _deserialize(ir.serde.serialize_model(source))
    for old, new in zip(tensor_slots(source), list(tensor_slots(copy)), strict=True):
        new.put(old.tensor)
    return copy


def model_files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the file of a model and those of its external data.

    Raises:
        InputError: it is no model that can be read.
    """
    file = Path(os.path.abspath(path))
    with refusals_as("The model file cannot be read.", file, fix="check the path"):
        places = _locations(file, *_identity(file))
    return (file, *(file.parent / place for place in places))


@functools.lru_cache(64)
def _locations(path: Path, *_: int) -> tuple[str, ...]:
    """Read where the external data of a file is, once for each of its states."""
    loaded = load_model(path)
    for value in loaded.model.graph.initializers.values():
        value.const_value = None  # a graph is in cycles, and would hold its weights for long
    return loaded.external


def _identity(path: Path) -> Identity:
    with open_regular(path) as file:
        state = os.fstat(file.fileno())
    return state.st_ino, state.st_size, state.st_mtime_ns


def _fix(name: str, otherwise: str) -> str:
    """Return what to do: to export a file that ``export`` takes, by its name."""
    return _EXPORT if re.search(r"\.(py|pt2?|pth|safetensors|json)(:\w+)?$", name) else otherwise


def _from_bytes(
    data: bytes | mmap.mmap,
    description: str,
    *,
    path: Path | None = None,
    identity: Identity | None = None,
    **source: Any,
) -> LoadedModel:
    large: dict[str, ir.TensorProtocol] = {}
    try:
        proto, large = parse(data, None if path is None or identity is None else (path, identity))
        problem = "" if proto.HasField("graph") else "protobuf without a graph"
    except DecodeError:
        problem = "no whole protobuf message: it is cut short, damaged, or nested too deeply"
    if problem:
        found = f"{description}: {len(data)} bytes, {problem}"
        fix = "give the .onnx file itself, no checkpoint, engine or Git LFS pointer; or get it anew"
        raise InputError("The file is not an ONNX model.", found=found, fix=_fix(description, fix))
    return _from_proto(proto, description, large, path=path, identity=identity, **source)


def _from_proto(
    proto: onnx.ModelProto, description: str, large: dict[str, ir.TensorProtocol], **source: Any
) -> LoadedModel:
    notes = check_proto(proto)
    try:
        model = _deserialize(proto)
    except Exception as error:
        found = short(first_line(_root_of(error), 400), 400)
        fix = "check the file with onnx.checker and export it again"
        raise InputError("The graph in the file cannot be read.", found=found, fix=fix) from error
    for name, tensor in large.items():
        model.graph.initializers[name].const_value = tensor
    return _checked(model, description, notes, **source)


def _checked(
    model: ir.Model, description: str, notes: list[str], path: Path | None = None, **source: Any
) -> LoadedModel:
    notes += check_versions(model.ir_version, dict(model.graph.opset_imports))
    if not check_graphs(model):
        sort_graphs(model)
        notes.append("nodes were not in topological order; they were sorted")
    if count := forget_negative_dims(model):
        notes.append(f"negative dimensions of {count} values are read as unknown")
    slots = list(tensor_slots(model))
    for slot in slots:
        check_tensor(slot)
    places = adopt_external(slots, path and path.parent)
    folders = {folder for folder, _ in places}
    moved = any(location != name for (_, location), name in places.items())
    if "" in folders:
        notes.append("external data was not checked: the folder of the model is not known")
    external = tuple(sorted({location for _, location in places}))
    folder = next(iter(folders)) or None if len(folders) == 1 else None
    words = tuple(notes)
    return LoadedModel(model, description, external, words, folder, path, moved=moved, **source)


def _deserialize(proto: onnx.ModelProto) -> ir.Model:
    """Read protobuf, warnings about broken graphs kept off stderr: they become errors and notes."""
    logger = logging.getLogger("onnx_ir.serde")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = ir.serde.deserialize_model(proto)
            # An output that is an input, which may be declared with less, is read last.
            for declared, value in zip(proto.graph.input, model.graph.inputs, strict=True):
                if value.is_graph_output():
                    ir.serde.deserialize_value_info_proto(declared, value)
            return model
    finally:
        logger.setLevel(level)


def serialize(model: ir.Model | onnx.ModelProto) -> bytes:
    """Return the bytes of a model, external data left where it is.

    Raises:
        InputError: as `parts_of`.
    """
    return b"".join(map(bytes_of, parts_of(model)))


def parts_of(model: ir.Model | onnx.ModelProto) -> list[Piece]:
    """Return what `serialize` puts together, large weights as they are.

    Raises:
        InputError: protobuf cannot hold the model, or it is larger than 2 GiB.
    """
    parts: list[Piece] | None = None
    with contextlib.suppress(EncodeError, ValueError), _refused():
        parts = serialized(model) if isinstance(model, ir.Model) else [model.SerializeToString()]
    if parts is None or total_size(parts) > MAX_PROTO_BYTES:
        what, found = "The model is too large for one file.", "more than 2 GiB of protobuf"
        fix = "keep large constants as initializers, so that they can become external data"
        raise InputError(what, found=found, fix=fix)
    return parts


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except ir.serde.SerdeError as error:
        what, fix = "The model cannot be written as protobuf.", "repair the program that wrote it"
        raise InputError(what, found=first_line(_root_of(error)), fix=fix) from error


def _root_of(error: BaseException) -> BaseException:
    """Return the cause of an error at the end of its chain: onnx_ir wraps whatever goes wrong."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error
