"""Read a model from a path, bytes, a ModelProto or an onnx_ir model, weights left where they are.

Everything that could later give a traceback or wrong numbers is checked here, in time linear in the
nodes; what is merely odd (nodes out of order, negative dimensions) is put right in the private
copy and noted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import stat
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.encode import serialize
from rmsnorm_export.graph.external import adopt_external
from rmsnorm_export.graph.order import sort_graphs
from rmsnorm_export.graph.sniff import looks_like
from rmsnorm_export.graph.tensors import (
    MAX_PROTO_BYTES,
    check_tensor,
    forget_negative_dims,
    tensor_slots,
)
from rmsnorm_export.graph.wellformed import (
    check_graphs,
    check_proto,
    check_versions,
    clash,
    proto_too_deep,
    too_deep,
)
from rmsnorm_export.printable import plural, quoted, short
from rmsnorm_export.system.files import missing_fix, refusals_as
from rmsnorm_export.system.reading import read_file

Source = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model that was read and found well-formed.

    Attributes:
        model: a private copy; tensors stored inside an ``ir.Model`` or on disk are shared, never
            written.
        path: absolute path of the file; None when it came from memory.
        description: where it came from, safe to print.
        external: distinct locations of external data, as the file writes them, sorted.
        size: bytes of the model file (of the protobuf message for bytes and ModelProto; 0 for an
            onnx_ir model); external data not counted.
        external_size: bytes of the external files together; 0 when their folder is not known.
        notes: oddities that were accepted or put right.
        origin: what was given, where that was bytes or a ModelProto; never changed.
        identity: of the file when it was read, by inode, size and time.
    """

    model: ir.Model
    path: Path | None
    description: str
    external: tuple[str, ...] = ()
    size: int = 0
    external_size: int = 0
    notes: tuple[str, ...] = ()
    origin: bytes | onnx.ModelProto | None = None
    identity: tuple[str, int, int, int] | None = None

    @property
    def folder(self) -> str | None:
        """Where the external data lies; None where a model in memory has none."""
        if self.path is not None:
            return str(self.path.parent)
        return next(iter(self._folders()), None)

    def to_bytes(self) -> bytes:
        """The model as it was given, serialised: nothing is put right, external data stays away.

        Raises:
            InputError: the file went away, or is another than the one that was checked; or the
                model in memory is larger than 2 GiB, or has external data in no single known
                folder.
        """
        if self.path is not None:
            fix = "do not move or change it until the work is over"
            with refusals_as("The model file cannot be read again.", self.path, fix=fix):
                content = read_file(self.path, MAX_PROTO_BYTES)
            if _identity(self.path) != self.identity:
                raise InputError(
                    "The model file was changed while it was in use.",
                    found=short(str(self.path), 300),
                    fix=fix,
                )
            return content
        if self.external and self.origin is not None:
            raise InputError(
                "A model in memory with external data does not know its folder.",
                found=f"{self.description} with data in {quoted(self.external[0])}",
                fix="give the path of the model instead",
            )
        if len(self._folders()) > 1:
            raise InputError(
                "The external data of a model in memory lies in several folders.",
                found=", ".join(short(folder, 200) for folder in self._folders()[:3]),
                fix="save the model and give its path",
            )
        if isinstance(self.origin, bytes):
            return self.origin
        return serialize(self.model if self.origin is None else self.origin)

    @contextlib.contextmanager
    def file(self) -> Iterator[Path]:
        """A file of the model as it was given; one of a model in memory lasts for the block.

        Raises:
            UsageError: a model in memory has external data.
            InputError: as `to_bytes`.
        """
        if self.path is not None:
            yield self.path
            return
        if self.external:
            raise UsageError(
                "A model with external data must be given as a file.",
                found=f"{plural(len(self.external), 'location')}, the first is "
                f"{quoted(self.external[0])}",
                fix="save it first, e.g. with result.save(path), and give the path",
            )
        with tempfile.TemporaryDirectory(prefix="rmsnorm-model-") as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(self.to_bytes())
            yield path

    def _folders(self) -> list[str]:
        tensors = (slot.tensor for slot in tensor_slots(self.model) if self.external)
        external = (tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor))
        return sorted({os.path.abspath(tensor.base_dir) for tensor in external})


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
    """Read ``source`` without loading weights, and check it.

    Args:
        source: path of an .onnx file; the bytes of one (what ``-`` gives: the caller reads standard
            input); a ModelProto; or an onnx_ir model. Objects are never changed.

    Raises:
        InputError: the source cannot be read, is not an ONNX model, or is not well-formed.
        UsageError: ``source`` is of another type, or is ``-``.
    """
    with no_gc():
        if isinstance(source, ir.Model):
            return _from_ir(source)
        if isinstance(source, onnx.ModelProto):
            if proto_too_deep(source):
                raise too_deep()
            proto = onnx.ModelProto()
            proto.CopyFrom(source)
            loaded = _from_proto(proto, None, "an onnx.ModelProto", source.ByteSize())
            return dataclasses.replace(loaded, origin=source)
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
            loaded = _from_bytes(data, None, f"{len(data)} bytes in memory")
            return dataclasses.replace(loaded, origin=data)
        if isinstance(source, str | os.PathLike):
            return _from_path(source)
    raise UsageError(
        "The model source is of a type that cannot be read.",
        found=type(source).__name__,
        fix="pass a path, bytes, an onnx.ModelProto or an onnx_ir.Model",
    )


_REMEMBERED = 64
_DATA: dict[tuple[str, int, int, int], tuple[str, ...]] = {}
"""Locations of external data of the files that were read last, by path, inode, size and time."""


def model_files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The file of a model and those of its external data; it is read unless it was just read.

    Raises:
        InputError: it is no model that can be read.
    """
    file = Path(os.path.abspath(path))
    key = _identity(file)
    places = load_model(file).external if key is None or key not in _DATA else _DATA[key]
    return (file, *(file.parent / place for place in places))


def _identity(path: Path) -> tuple[str, int, int, int] | None:
    try:
        info = path.stat()
    except (OSError, ValueError):
        return None
    return str(path), info.st_ino, info.st_size, info.st_mtime_ns


def _from_path(source: str | os.PathLike[str]) -> LoadedModel:
    name = os.fspath(source)
    shown = short(str(name), 300)
    if name == "-":
        raise UsageError(
            "Standard input is read by the command line, not by this function.",
            found="the path '-'",
            fix="pass sys.stdin.buffer.read()",
        )
    try:
        path = Path(os.path.abspath(name))
        info = os.stat(path)
        if stat.S_ISDIR(info.st_mode):
            raise InputError(
                "The model is a folder, not a file.",
                found=shown,
                fix="give the path of the .onnx file in it",
            )
        if not stat.S_ISREG(info.st_mode):
            raise InputError(
                "The model is not an ordinary file.",
                found=f"{shown} is a device, pipe or socket",
                fix="use - to read a model from standard input",
            )
        if info.st_size > MAX_PROTO_BYTES:
            raise InputError(
                "The file is larger than any ONNX model file can be.",
                found=f"{shown} has {info.st_size} bytes; protobuf ends at 2 GiB",
                fix="check that this is the .onnx file and not its weights; large weights are kept "
                "in external data",
            )
        identity = _identity(path)
        data = read_file(path, MAX_PROTO_BYTES)
    except FileNotFoundError as error:
        raise InputError(
            "The model file does not exist.", found=shown, fix=missing_fix(path)
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            "The model file cannot be read.",
            found=f"{shown}: {short(reason)}",
            fix="check the path and its permissions",
        ) from error
    loaded = _from_bytes(data, path, shown)
    if identity is not None:
        if len(_DATA) >= _REMEMBERED:
            _DATA.clear()
        _DATA[identity] = loaded.external
    return dataclasses.replace(loaded, identity=identity)


def _from_bytes(data: bytes, path: Path | None, description: str) -> LoadedModel:
    proto = onnx.ModelProto()
    if not data:
        raise InputError(
            "The model file is empty.", found=f"{description}: 0 bytes", fix="export it again"
        )
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        # The wording is upb's; with another protobuf runtime the general error below is given.
        if "depth" in str(error).lower():
            raise too_deep() from error
        raise _not_onnx(data, description) from error
    if not proto.HasField("graph"):
        raise _not_onnx(data, description, "protobuf without a graph")
    size = len(data)
    del data
    return _from_proto(proto, path, description, size)


def _not_onnx(data: bytes, description: str, otherwise: str = "") -> InputError:
    kind = looks_like(data)
    otherwise = otherwise or "bytes that are no whole protobuf message; it may be cut short"
    return InputError(
        "The file is not an ONNX model.",
        found=f"{description} looks like {kind}" if kind else f"{description}: {otherwise}",
        fix="give the .onnx file; if it is one, export or download it again",
    )


def _from_proto(
    proto: onnx.ModelProto, path: Path | None, description: str, size: int
) -> LoadedModel:
    if not proto.HasField("graph"):
        raise InputError(
            "The model has no graph.", found=description, fix="give a complete ONNX model"
        )
    try:
        opsets = {entry.domain: entry.version for entry in proto.opset_import}
        notes = check_versions(proto.ir_version, opsets)
        notes += check_proto(proto)
        with _quiet_onnx_ir():
            model = ir.serde.deserialize_model(proto)
    except InputError:
        raise
    except Exception as error:  # onnx_ir wraps whatever goes wrong; the cause is at the end
        raise _unreadable(proto, error) from error
    return _checked_model(model, path, description, size, notes, names=False)


def _unreadable(proto: onnx.ModelProto, error: BaseException) -> InputError:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    if isinstance(error, UnicodeDecodeError):
        found = "a name or string that is not UTF-8"
    else:
        found = clash(proto) or str(error).split("\n")[0] or type(error).__name__
    return InputError(
        "The graph in the file cannot be read.",
        found=short(found, 300),
        fix="check the file with onnx.checker and export it again",
    )


def _from_ir(source: ir.Model) -> LoadedModel:
    notes = check_versions(source.ir_version, dict(source.graph.opset_imports))
    if check_graphs(source, names=True):
        model = source.clone()
    else:
        # clone() needs sorted nodes and the caller's model must not be sorted: copy by protobuf.
        with _quiet_onnx_ir():
            model = ir.serde.deserialize_model(ir.serde.serialize_model(source))
    return _checked_model(model, None, "an onnx_ir.Model", 0, notes, names=True)


def _checked_model(
    model: ir.Model,
    path: Path | None,
    description: str,
    size: int,
    notes: list[str],
    *,
    names: bool,
) -> LoadedModel:
    if not check_graphs(model, names=names):
        sort_graphs(model)
        notes.append("nodes were not in topological order; they were sorted")
    negative = forget_negative_dims(model)
    if negative:
        notes.append(f"negative dimensions of {negative} values are read as unknown")
    slots = list(tensor_slots(model))
    for slot in slots:
        check_tensor(slot)
    files = adopt_external(slots, path.parent if path else None)
    tensors = [slot.tensor for slot in slots if isinstance(slot.tensor, ir.ExternalTensor)]
    if tensors and not files:
        notes.append("external data was not checked: the folder of the model is not known")
    if any(file.links > 1 for file in files):
        notes.append(
            "external data has several hard links: ONNX Runtime reads it, onnx and onnx_ir do not"
        )
    return LoadedModel(
        model=model,
        path=path,
        description=description,
        external=tuple(sorted({os.fspath(tensor.location) for tensor in tensors})),
        size=size,
        external_size=sum(file.size for file in files),
        notes=tuple(notes),
    )


@contextlib.contextmanager
def _quiet_onnx_ir() -> Iterator[None]:
    """Keep warnings about broken graphs off stderr: here they become errors and notes."""
    logger = logging.getLogger("onnx_ir.serde")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
