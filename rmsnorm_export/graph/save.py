"""Write a model so that a reader sees the old file or the new one, never a part."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.encode import (
    LARGE_BYTES,
    Encoding,
    Swap,
    encode,
    too_large,
    write_tensor,
)
from rmsnorm_export.graph.external import (
    WEIGHTS_POLICIES,
    UsedPolicy,
    embedded,
    place_weights,
    stored_at,
)
from rmsnorm_export.graph.load import LoadedModel, no_gc
from rmsnorm_export.graph.policy import WeightsPolicy as WeightsPolicy
from rmsnorm_export.graph.tensors import MAX_PROTO_BYTES, TensorSlot, tensor_slots
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.system.files import Transaction, is_full

__all__ = ["SaveResult", "WeightsPolicy", "check_output", "save_model", "to_bytes"]

MAX_EMBEDDED_BYTES = MAX_PROTO_BYTES - (1 << 26)
"""Most tensor bytes stored inside a model; 64 MiB are left for the graph itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class SaveResult:
    """What was written.

    Attributes:
        path: absolute path of the model file.
        bytes: its size, external data not counted.
        weights: what was done with external data; ``none`` when there is none.
        data_files: files of external data that this save made.
        notes: for the report.
    """

    path: Path
    bytes: int
    weights: UsedPolicy
    data_files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def save_model(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    source: LoadedModel | None = None,
    weights: WeightsPolicy = "auto",
    force: bool = False,
    placed: dict[tuple[str, str], str] | None = None,
) -> SaveResult:
    """Save ``model`` at ``path``, atomically.

    The model is written to a temporary file in the same folder, synced and renamed. On any error or
    interrupt everything made here is removed again and an old file at ``path`` is intact.

    Args:
        model: left unchanged.
        path: of the output; its folder must exist.
        source: where the model came from, for messages.
        weights: what to do with external data.
        force: replace an existing file at ``path``. Data files are never replaced.
        placed: where external data of other models went already, by its folder and location; what
            this model needs is added. For models of one folder.

    Raises:
        UsageError: the output exists and ``force`` is not given, or ``weights`` does not fit.
        InputError: the place cannot be written, or the model is too large for the policy.
    """
    _check_policy(weights)
    origin = source.path if source is not None else None
    target = check_output(path, source=origin, force=force)
    try:
        with no_gc(), Transaction() as files:
            slots = list(tensor_slots(model))
            placement = place_weights(slots, target, weights, files, placed)
            spilled, spill = _spill(slots, placement.swaps, target, weights, files)
            pending = [*placement.pending, *spill]
            encoding = _encode(model, slots, [*placement.swaps, *spilled])
            temp, descriptor = files.temp(target)
            with os.fdopen(descriptor, "wb") as file:
                encoding.write(file)
                file.flush()
                os.fsync(file.fileno())
            for made, name in pending:
                files.publish(made, name)
            files.publish(temp, target, replace=force, last=True)
    except FileExistsError as error:
        raise _exists(target, origin) from error
    except OSError as error:
        raise _unwritable(os.fspath(path), error, origin) from error
    notes = list(placement.notes)
    if spill:
        notes.append(f"weights over 2 GiB were moved to {quoted(spill[0][1].name)}")
    return SaveResult(
        path=target,
        bytes=encoding.size,
        weights=placement.used,
        data_files=tuple(name for _, name in pending),
        notes=tuple(notes),
    )


def to_bytes(model: ir.Model, *, weights: WeightsPolicy = "auto") -> bytes:
    """The model as protobuf bytes, for standard output.

    A stream has no folder, so external data would be lost: it must be embedded, or ``reference``
    must say that the reader will store the model in the folder of the weights.

    Raises:
        UsageError: external data with ``auto`` or ``copy``.
        InputError: larger than 2 GiB.
    """
    _check_policy(weights)
    with no_gc():
        slots = list(tensor_slots(model))
        external = [slot for slot in slots if isinstance(slot.tensor, ir.ExternalTensor)]
        if external and weights not in ("embed", "reference"):
            raise UsageError(
                "A model on standard output cannot carry external weights along.",
                found=f"{len(external)} external tensors, the first is {quoted(external[0].name)}",
                fix="write to a file, or use --weights embed, or --weights reference when the "
                "output will be stored in the folder of the weights",
            )
        swaps: list[Swap] = []
        if weights == "embed":
            _check_embedded(slots)
            swaps = [
                (slot, embedded(slot, os.fspath(slot.tensor.base_dir)))
                for slot in slots
                if isinstance(slot.tensor, ir.ExternalTensor)
            ]
        stream = io.BytesIO()
        _encode(model, slots, swaps).write(stream)
        return stream.getvalue()


def _encode(model: ir.Model, slots: Sequence[TensorSlot], swaps: Sequence[Swap]) -> Encoding:
    encoding = encode(model, slots, swaps)
    if encoding.size > MAX_PROTO_BYTES:
        raise too_large(f"{encoding.size} bytes")
    return encoding


def _check_policy(weights: WeightsPolicy) -> None:
    if weights not in WEIGHTS_POLICIES:
        raise UsageError(
            "There is no such policy for weights.",
            found=short(str(weights)),
            fix=f"use one of {', '.join(WEIGHTS_POLICIES)}",
        )


def check_output(
    path: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Path:
    """The absolute output path, if a model can be saved there; nothing is made or changed.

    ``save_model`` does this too; call it before work whose result would otherwise be lost.

    Args:
        path: of the output.
        source: path of the input, for the message when both are one file.
        force: an existing file may be replaced.

    Raises:
        UsageError: the output exists and ``force`` is not given, or its name is unusable.
        InputError: it is a folder or a device, or its folder is missing or not writable.
    """
    name = os.fspath(path)
    shown = short(str(name), 300)
    if not name or "\0" in name:
        raise UsageError("The output has no usable name.", found=repr(name), fix="give a file name")
    try:
        target = Path(os.path.abspath(name))
        if target.is_dir() or name.endswith(os.sep):
            raise InputError(
                "The output is a folder.", found=shown, fix="give the name of a file in it"
            )
        if not target.parent.is_dir():
            raise InputError(
                "The folder of the output does not exist.",
                found=short(str(target.parent), 300),
                fix="make the folder first, or check the path",
            )
        if os.path.lexists(target):
            if target.exists() and not stat.S_ISREG(target.stat().st_mode):
                raise InputError(
                    "The output is not an ordinary file.",
                    found=f"{shown} is a device, pipe or socket",
                    fix="give a file name, or - for standard output",
                )
            if not force:
                raise _exists(target, source)
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise InputError(
                "The output cannot be written.",
                found=f"no permission to make files in {short(str(target.parent), 300)}",
                fix="check the folder and its permissions, or write to another one",
            )
    except OSError as error:
        raise _unwritable(name, error) from error
    return target


def _exists(target: Path, source: str | os.PathLike[str] | None) -> UsageError:
    is_input = False
    if source is not None:
        with contextlib.suppress(OSError, ValueError):
            is_input = os.path.samefile(target, source)
    return UsageError(
        "The output is the input file." if is_input else "A file of that name exists already.",
        found=short(str(target), 300),
        fix="choose another name, or use --force to replace it",
    )


def _unwritable(
    path: str, error: OSError, source: str | os.PathLike[str] | None = None
) -> InputError:
    place = short(path, 300)
    if is_full(error.errno):
        beside = "write beside the source, where weights are referenced in place"
        fix = f"free some space, or {beside if source else 'write to another place'}; "
        fix += "nothing was changed"
    else:
        fix = "check the folder and its permissions; nothing was changed"
    return InputError(
        "The output cannot be written.",
        found=f"{place}: {error.strerror or error}",
        fix=fix,
    )


def _is_stored(slot: TensorSlot) -> bool:
    return not isinstance(slot.tensor, ir.ExternalTensor | ir.StringTensor)


def _check_embedded(slots: Sequence[TensorSlot]) -> None:
    total = sum(slot.tensor.nbytes for slot in slots)
    if total > MAX_EMBEDDED_BYTES:
        raise InputError(
            "The weights do not fit into one model file.",
            found=f"{total} bytes; a protobuf file ends at 2 GiB",
            fix="use --weights copy, or write beside the source and use --weights reference",
        )


def _spill(
    slots: Sequence[TensorSlot],
    placed: Sequence[Swap],
    target: Path,
    weights: WeightsPolicy,
    files: Transaction,
) -> tuple[list[Swap], list[tuple[Path, Path]]]:
    """Move initializers to a data file when the model would pass the 2 GiB of protobuf."""
    if weights == "embed":
        _check_embedded(slots)
        return [], []
    total = sum(slot.tensor.nbytes for slot in slots if _is_stored(slot))
    if total <= MAX_EMBEDDED_BYTES:
        return [], []
    taken = {swap.location for _, swap in placed if isinstance(swap, ir.ExternalTensor)}
    name = f"{target.name}.data"
    number = 1
    while os.path.lexists(target.parent / name) or name in taken:
        number += 1
        name = f"{target.name}-{number}.data"
    temp, descriptor = files.temp(target.parent / name)
    swaps: list[Swap] = []
    with os.fdopen(descriptor, "wb") as file:
        for slot in slots:
            tensor = slot.tensor
            if not (_is_stored(slot) and slot.initializer and tensor.nbytes >= LARGE_BYTES):
                continue
            offset = file.tell()
            write_tensor(slot, tensor, file)
            length = file.tell() - offset
            swaps.append((slot, stored_at(tensor, name, str(target.parent), offset, length)))
        file.flush()
        os.fsync(file.fileno())
    return swaps, [(temp, target.parent / name)]
