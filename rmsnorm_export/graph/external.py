"""External data: the checks of its locations, and the policies for where it goes on saving.

A hard link to a file elsewhere, which an archive may bring along, reads that file as a symbolic
link does, and does not say where it is. So a file with names that are not in the folder is refused.
"""

from __future__ import annotations

import dataclasses
import errno
import ntpath
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import onnx
import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.graph.tensors import TensorSlot
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.system.files import Transaction, copy_contents, same_contents
from rmsnorm_export.system.reading import open_regular

WEIGHTS_POLICIES: tuple[WeightsPolicy, ...] = get_args(WeightsPolicy)
UsedPolicy = Literal["none", "reference", "copy", "embed"]


@dataclasses.dataclass(frozen=True, slots=True)
class ExternalFile:
    """A file of external data.

    Attributes:
        location: as the model writes it.
        path: the file, symbolic links resolved.
        size: bytes.
        links: names that the file has on its file system.
    """

    location: str
    path: str
    size: int
    links: int


def adopt_external(slots: Sequence[TensorSlot], folder: Path | None) -> list[ExternalFile]:
    """Check every external tensor and bind it to an absolute folder; no data is opened.

    A tensor gets a new object where its folder changes, so a tensor shared with the caller's model
    is left as it was.

    Args:
        slots: tensors of a private model.
        folder: folder of the model file; None: the tensors know theirs, or nobody does, and then
            only what can be told from the location is checked.

    Returns:
        The distinct files; none for tensors whose folder is not known.

    Raises:
        InputError: naming tensor and location: a location that is absolute, leaves the folder or
            is not a file, or a file that is too short.
    """
    files: dict[tuple[str, str], ExternalFile] = {}
    for slot in slots:
        tensor = slot.tensor
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        location = os.fspath(tensor.location)
        if not isinstance(location, str):
            raise _bad(slot, repr(location), "is not a string", "export the model again")
        base = str(folder) if folder else os.fspath(tensor.base_dir)
        base = os.path.abspath(base) if base else ""
        if (base, location) not in files:
            _check_location(slot, location)
            if base:
                files[base, location] = _locate(slot, location, base)
        size = files[base, location].size if base else None
        _check_range(slot, tensor, location, size)
        if base != tensor.base_dir:
            slot.put(moved(tensor, location, base))
    return list({file.path: file for file in files.values()}.values())


def moved(tensor: ir.ExternalTensor, location: str, folder: str) -> ir.ExternalTensor:
    """The same tensor at another location; offset and length stay."""
    return stored_at(tensor, location, folder, tensor.offset, tensor.length)


def stored_at(
    tensor: ir.TensorProtocol, location: str, folder: str, offset: int | None, length: int | None
) -> ir.ExternalTensor:
    """The tensor as one whose data lies in a file."""
    return ir.ExternalTensor(
        location,
        offset,
        length,
        ir.DataType(tensor.dtype),
        **_description(tensor),
        base_dir=folder,
    )


def computed_by(tensor: ir.TensorProtocol, read: Callable[[], ir.TensorProtocol]) -> ir.LazyTensor:
    """The tensor as one whose data is made whenever it is written, and not kept."""
    return ir.LazyTensor(read, dtype=ir.DataType(tensor.dtype), **_description(tensor), cache=False)


def _description(tensor: ir.TensorProtocol) -> dict[str, Any]:
    return {
        "shape": ir.Shape(tensor.shape.numpy()),
        "name": tensor.name or "",
        "doc_string": tensor.doc_string,
        "metadata_props": dict(tensor.metadata_props),
    }


def _check_location(slot: TensorSlot, location: str) -> None:
    normal = os.path.normpath(location).split(os.sep)
    if not location or "\0" in location:
        reason = "is not a file name"
    # Windows spellings are refused everywhere: the file may be used there next.
    elif os.path.isabs(location) or ntpath.isabs(location) or ntpath.splitdrive(location)[0]:
        reason = "is an absolute path"
    elif ".." in normal or ntpath.normpath(location).startswith(".."):
        reason = "leaves the folder of the model"
    else:
        return
    fix = "keep the data file in the folder of the model, under a relative location"
    raise _bad(slot, location, reason, fix)


def _locate(slot: TensorSlot, location: str, base: str) -> ExternalFile:
    real_base = os.path.realpath(base)
    path = os.path.realpath(os.path.join(base, location))
    if not path.startswith(os.path.join(real_base, "")):
        raise _bad(
            slot,
            location,
            f"leaves the folder of the model by a symbolic link to {short(path, 200)}",
            "put the data file itself into the folder of the model",
        )
    try:
        info = os.stat(path)
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        reason = "does not exist" if missing else f"cannot be read ({error.strerror})"
        raise _bad(slot, location, reason, f"put the data file into {short(base, 200)}") from error
    if not stat.S_ISREG(info.st_mode):
        raise _bad(slot, location, "is not an ordinary file", "put the data file there")
    if info.st_nlink > _names(info, {real_base, os.path.dirname(path)}):
        raise _bad(
            slot,
            location,
            "has another name outside the folder of the model: it is a hard link",
            "put a copy of the data file in its place; the copy has one name",
        )
    return ExternalFile(location, path, info.st_size, info.st_nlink)


def _names(info: os.stat_result, folders: set[str]) -> int:
    """How many of the names of a file are in these folders; 1 is not looked for."""
    if info.st_nlink == 1:
        return 1
    entries = (entry for folder in folders for entry in os.scandir(folder))
    return sum(
        entry.inode() == info.st_ino and entry.is_file(follow_symlinks=False) for entry in entries
    )


def _check_range(
    slot: TensorSlot, tensor: ir.ExternalTensor, location: str, size: int | None
) -> None:
    offset, length = tensor.offset or 0, tensor.length
    needed = tensor.nbytes
    if offset < 0 or (length or 0) < 0:
        reason = f"has a negative offset or length ({offset}, {length})"
    elif length and length != needed:
        reason = f"stores {length} bytes for a shape that needs {needed} bytes"
    elif size is not None and offset + needed > size:
        reason = f"is too short: {size} bytes, while {needed} are needed from offset {offset}"
    else:
        return
    raise _bad(slot, location, reason, "export the model again, or fetch its data file again")


def _bad(slot: TensorSlot, location: str, reason: str, fix: str) -> InputError:
    return InputError(
        "The external data of a tensor cannot be used.",
        found=f"tensor {quoted(slot.name)}: location {quoted(location, 200)} {reason}",
        fix=fix,
    )


def place_weights(
    slots: Sequence[TensorSlot],
    target: Path,
    policy: WeightsPolicy,
    files: Transaction,
    placed: dict[tuple[str, str], str] | None = None,
) -> Placement:
    """Put the external data where a model saved at ``target`` needs it, under temporary names.

    No file that exists is written: a location whose name is taken by other data gets a new name.

    Args:
        slots: tensors of the model.
        target: absolute path of the output.
        policy: see ``WeightsPolicy``.
        files: owner of the temporary files.
        placed: locations that are settled already, see ``save_model``.

    Raises:
        UsageError: ``reference`` from another folder, or the output would replace the weights.
        InputError: data that is not there, or no room for it.
        OSError: writing failed.
    """
    placement = Placement(target, policy, files, placed)
    for slot in slots:
        if isinstance(slot.tensor, ir.ExternalTensor):
            placement.place(slot, slot.tensor)
    return placement


class Placement:
    """What saving does with external data; decided once per data file.

    Attributes:
        swaps: slots and the tensors that stand in for theirs in the saved file.
        pending: finished temporary files and the names that they are to get.
        used: the policy in effect; ``none`` without external data.
        notes: for the report.
    """

    def __init__(
        self,
        target: Path,
        policy: WeightsPolicy,
        files: Transaction,
        placed: dict[tuple[str, str], str] | None = None,
    ) -> None:
        self.target = target
        self.folder = os.path.realpath(target.parent)
        self.policy = policy
        self.files = files
        self.used: UsedPolicy = "none"
        self.notes: list[str] = []
        self.pending: list[tuple[Path, Path]] = []
        self.swaps: list[tuple[TensorSlot, ir.TensorProtocol]] = []
        self._locations = {} if placed is None else placed

    def place(self, slot: TensorSlot, tensor: ir.ExternalTensor) -> None:
        if self.used == "none":
            self.used = "embed" if self.policy == "embed" else "reference"
        location = str(tensor.location)
        base = str(tensor.base_dir)
        key = (base, location)
        if key not in self._locations:
            # Without a folder (a model from memory) the data can only be beside the output.
            file = _locate(slot, location, base or self.folder)
            if file.path == os.path.realpath(self.target):
                raise UsageError(
                    "The output would replace the weights of the model.",
                    found=f"{short(str(self.target), 200)} holds tensor {quoted(slot.name)}",
                    fix="choose another output name",
                )
            self._locations[key] = self._settle(file, base)
        if self.policy == "embed":
            self.swaps.append((slot, embedded(slot, base or self.folder)))
        elif self._locations[key] != location:
            self.swaps.append((slot, moved(tensor, self._locations[key], self.folder)))

    def _settle(self, file: ExternalFile, base: str) -> str:
        """The location of ``file`` for the output; stages a copy when it needs one."""
        if self.policy == "embed" or not base or os.path.realpath(base) == self.folder:
            return file.location
        if self.policy == "reference":
            raise UsageError(
                "Weights can be referenced in place only from the folder that they are in.",
                found=f"{quoted(file.location, 200)} lies in {short(base, 200)}, the "
                f"output in {short(self.folder, 200)}",
                fix="write the output into the folder of the source, or use --weights copy",
            )
        place = self._free_name(file)
        if place is None:
            self.notes.append(f"weights {quoted(file.location)} were already beside the output")
            return file.location
        new = os.path.relpath(place, self.folder)
        temp, how = self._stage(file, place)
        self.pending.append((temp, place))
        self.used = "copy"
        self.notes.append(
            f"weights {quoted(file.location)} ({file.size} bytes) were {how} to {quoted(new)}"
        )
        return new

    def _stage(self, file: ExternalFile, place: Path) -> tuple[Path, str]:
        temp, descriptor = self.files.temp(place)
        try:
            how = copy_contents(file.path, descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return temp, how

    def _free_name(self, file: ExternalFile) -> Path | None:
        """A name that nothing has, the source's if possible; None when the data is there."""
        same = Path(self.folder, os.path.normpath(file.location))
        inside = os.path.realpath(same.parent).startswith(os.path.join(self.folder, ""))
        if inside or os.path.realpath(same.parent) == self.folder:
            if not os.path.lexists(same) and self._is_new(same):
                return same
            if same.is_file() and not same.is_symlink() and same_contents(file.path, str(same)):
                return None
        for number in range(1, 10_000):
            prefix = self.target.stem if number == 1 else f"{self.target.stem}-{number}"
            path = Path(self.folder, f"{prefix}.{same.name}")
            if not os.path.lexists(path) and self._is_new(path):
                return path
        raise InputError(
            "No free name is left for the weights.",
            found=f"10,000 files like {quoted(same.name)} in {short(self.folder, 200)}",
            fix="write to another folder",
        )

    def _is_new(self, path: Path) -> bool:
        taken = {place for _, place in self.pending} | {Path(self.folder, self.target.name)}
        return path not in taken


def embedded(slot: TensorSlot, folder: str) -> ir.TensorProtocol:
    """The external tensor of ``slot`` as one that is stored in the model.

    It reads its bytes whenever it is written, so that one tensor at a time is in memory.

    Args:
        slot: holder of an external tensor.
        folder: of the model that the tensor belongs to; "" when it is not known.

    Raises:
        InputError: the data is not there, or its folder is not known.
        OSError: (when written) the data cannot be read.
    """
    tensor = slot.tensor
    assert isinstance(tensor, ir.ExternalTensor)
    location = os.fspath(tensor.location)
    if not folder:
        raise _bad(slot, str(location), "has no folder", "load the model from its path")
    path = _locate(slot, str(location), folder).path

    def read() -> ir.TensorProtocol:
        with open_regular(path) as file:
            file.seek(tensor.offset or 0)
            data = file.read(tensor.nbytes)
        proto = onnx.TensorProto(data_type=tensor.dtype.value, dims=tensor.shape.numpy())
        proto.raw_data = data
        return ir.serde.TensorProtoTensor(proto)

    return computed_by(tensor, read)
