"""Write a model so that a reader sees the old file or the new one, never a part."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import onnx_ir as ir

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.encode import serialize
from rmsnorm_export.graph.external import placed
from rmsnorm_export.graph.load import no_gc
from rmsnorm_export.graph.place import (
    MAX_EMBEDDED_BYTES,
    away_from,
    bytes_of,
    data_file,
    embed,
    store,
)
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.graph.tensors import LARGE_BYTES, TensorSlot, lent_slots
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.system.files import Transaction, refusals_as, sync

_CHECK = "check the folder, its permissions and space; nothing was changed"

UsedPolicy = Literal["none", "reference", "copy", "embed"]


@dataclasses.dataclass(frozen=True, slots=True)
class SaveResult:
    """Outcome of saving.

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
    weights: WeightsPolicy = "auto",
    force: bool = False,
) -> SaveResult:
    """Save a model, atomically.

    The model is written to a temporary file in the same folder, synced and renamed. On any error or
    interrupt everything made here is removed again and an old file at ``path`` is intact.

    Args:
        model: left unchanged.
        path: of the output; its folder must exist.
        weights: what to do with external data.
        force: replace an existing file at ``path``. Data files are never replaced.

    Raises:
        UsageError: the output exists and ``force`` is not given, or ``weights`` does not fit.
        InputError: the place cannot be written, or the model is too large for the policy.
    """
    _check_policy(weights)
    target = check_output(path, force=force)
    with refusals_as("The output cannot be written.", target, fix=_CHECK):
        try:
            with no_gc(), Transaction() as files, lent_slots(model) as slots:
                used, data_files, notes = _place(slots, target, weights, files)
                data = serialize(model)
                files.publish(files.temp(target, data), target, replace=force, last=True)
        except FileExistsError as error:
            raise _exists(target) from error
    return SaveResult(target, len(data), used, data_files, notes)


def _place(
    slots: Sequence[TensorSlot], target: Path, weights: WeightsPolicy, files: Transaction
) -> tuple[UsedPolicy, tuple[Path, ...], tuple[str, ...]]:
    """Put the tensors of a model where it needs them; no file is replaced.

    Returns:
        ``weights``, ``data_files`` and ``notes`` of the result.
    """
    is_external = any(slot.is_external for slot in slots)
    away = away_from(slots, target)
    if weights == "embed":
        embed(slots, target.parent)
        return "embed" if is_external else "none", (), ()
    if away and weights == "reference":
        raise UsageError(
            "Weights can be referenced in place only from the folder that they are in.",
            found=f"tensor {quoted(away[0].name)} is not in {short(str(target.parent), 200)}",
            fix="write the output into the folder of the source, or use --weights copy",
        )
    own = [slot for slot in slots if not slot.is_external]
    large = [slot for slot in own if slot.initializer and slot.nbytes >= LARGE_BYTES]
    used: UsedPolicy = "copy" if away else "reference" if is_external else "none"
    moving = away + (large if bytes_of(own) > MAX_EMBEDDED_BYTES else [])
    if not moving:
        return used, (), ()
    temp = files.temp(target)
    stored = store(moving, temp, {})
    sync(temp)
    place = data_file(target, temp)
    for slot, tensor in zip(moving, stored, strict=True):
        slot.put(placed(slot.tensor, tensor, place.name, str(target.parent)))
    if place.exists():
        temp.unlink()
        return used, (), (f"weights were already in {quoted(place.name)}",)
    files.publish(temp, place)
    return used, (place,), (f"weights of {bytes_of(moving)} bytes are in {quoted(place.name)}",)


def to_bytes(model: ir.Model, *, weights: WeightsPolicy = "auto") -> bytes:
    """Return the model as protobuf bytes, for standard output.

    A stream has no folder, so external data would be lost: it must be embedded, or ``reference``
    must say that the reader will store the model in the folder of the weights.

    Raises:
        UsageError: external data with ``auto`` or ``copy``.
        InputError: larger than 2 GiB, or external data whose folder is not known.
    """
    _check_policy(weights)
    with no_gc(), lent_slots(model) as slots:
        external = [slot for slot in slots if slot.is_external]
        if external and weights not in ("embed", "reference"):
            what = "A model on standard output cannot carry external weights along."
            fix = "write to a file, or use --weights embed, or --weights reference for a model that"
            fix += " will be stored in the folder of the weights"
            raise UsageError(what, found=quoted(external[0].name), fix=fix)
        if weights == "embed":
            embed(slots, "")
        return serialize(model)


def _check_policy(weights: WeightsPolicy) -> None:
    policies = get_args(WeightsPolicy)
    if weights not in policies:
        what, fix = "There is no such policy for weights.", f"use one of {', '.join(policies)}"
        raise UsageError(what, found=short(str(weights)), fix=fix)


def check_output(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Return the absolute output path, if a model can be saved there; nothing is changed.

    ``save_model`` does this too; call it before work whose result would otherwise be lost.

    Args:
        path: of the output.
        force: an existing file may be replaced.

    Raises:
        UsageError: the output exists and ``force`` is not given, or its name is unusable.
        InputError: it is a folder or a device, or its folder is missing or not writable.
    """
    name = os.fspath(path)
    if not name or "\0" in name:
        raise UsageError("The output has no usable name.", found=repr(name), fix="give a file name")
    target = Path(os.path.abspath(name))
    with refusals_as("The output cannot be written.", target, fix=_CHECK):
        problem = ""
        if target.is_dir() or name.endswith(os.sep):
            problem = "it is a folder"
        elif not target.parent.is_dir():
            problem = "its folder does not exist"
        elif target.exists() and not stat.S_ISREG(target.stat().st_mode):
            problem = "it is a device, pipe or socket"
        elif os.path.lexists(target) and not force:
            raise _exists(target)
        elif not os.access(target.parent, os.W_OK | os.X_OK):
            problem = "no permission to make files in its folder"
        if problem:
            raise OSError(problem)
    return target


def _exists(target: Path) -> UsageError:
    what, fix = "A file of that name exists already.", "choose another name, or use --force"
    return UsageError(what, found=short(str(target), 300), fix=f"{fix} to replace it")
