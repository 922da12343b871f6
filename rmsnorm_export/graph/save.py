"""Write a model so that a reader sees the old file or the new one, never a part."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.encode import Swap, serialize
from rmsnorm_export.graph.external import moved
from rmsnorm_export.graph.load import LoadedModel, no_gc
from rmsnorm_export.graph.place import (
    MAX_EMBEDDED_BYTES,
    away_from,
    bytes_of,
    data_file,
    embedded,
    store,
)
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.graph.tensors import LARGE_BYTES, tensor_slots
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
    source: LoadedModel | None = None,
    weights: WeightsPolicy = "auto",
    force: bool = False,
) -> SaveResult:
    """Save a model, atomically.

    The model is written to a temporary file in the same folder, synced and renamed. On any error or
    interrupt everything made here is removed again and an old file at ``path`` is intact.

    Args:
        model: left unchanged.
        path: of the output; its folder must exist.
        source: where the model came from, for messages.
        weights: what to do with external data.
        force: replace an existing file at ``path``. Data files are never replaced.

    Raises:
        UsageError: the output exists and ``force`` is not given, or ``weights`` does not fit.
        InputError: the place cannot be written, or the model is too large for the policy.
    """
    _check_policy(weights)
    origin = source.path if source is not None else None
    target = check_output(path, source=origin, force=force)
    with refusals_as("The output cannot be written.", target, fix=_CHECK):
        try:
            with no_gc(), Transaction() as files:
                placement = _place(model, target, weights, files)
                data = serialize(model, placement.swaps)
                temp = files.write_temp(target, data)
                if placement.temp is not None:
                    for name in placement.data_files:
                        files.publish(placement.temp, name)
                files.publish(temp, target, replace=force, last=True)
        except FileExistsError as error:
            raise _exists(target, origin) from error
    return SaveResult(target, len(data), placement.used, placement.data_files, placement.notes)


@dataclasses.dataclass(frozen=True, slots=True)
class _Placement:
    """Places of the tensors, and a data file that is to get its name."""

    used: UsedPolicy
    swaps: Sequence[Swap]
    temp: Path | None = None
    data_files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def _place(model: ir.Model, target: Path, weights: WeightsPolicy, files: Transaction) -> _Placement:
    """Put weights where the model needs them, under a temporary name; no file is replaced."""
    slots = list(tensor_slots(model))
    is_external = any(isinstance(slot.tensor, ir.ExternalTensor) for slot in slots)
    away = away_from(slots, target)
    if weights == "embed":
        return _Placement("embed" if is_external else "none", embedded(slots, target.parent))
    if away and weights == "reference":
        raise UsageError(
            "Weights can be referenced in place only from the folder that they are in.",
            found=f"tensor {quoted(away[0].name)} is not in {short(str(target.parent), 200)}",
            fix="write the output into the folder of the source, or use --weights copy",
        )
    own = [slot for slot in slots if slot.in_memory]
    large = [slot for slot in own if slot.initializer and slot.tensor.nbytes >= LARGE_BYTES]
    used: UsedPolicy = "copy" if away else "reference" if is_external else "none"
    moving = away + (large if bytes_of(own) > MAX_EMBEDDED_BYTES else [])
    if not moving:
        return _Placement(used, [])
    temp, descriptor = files.temp(target.with_name(f"{target.name}.data"))
    os.close(descriptor)
    stored = store(moving, temp, {})
    sync(temp)
    place = data_file(target, temp)
    is_new = not place.exists()
    if not is_new:
        temp.unlink()
    swaps = [(slot, moved(tensor, place.name, str(target.parent))) for slot, tensor in stored]
    how = f"of {bytes_of(moving)} bytes are in" if is_new else "were already in"
    note = f"weights {how} {quoted(place.name)}"
    return _Placement(used, swaps, temp if is_new else None, (place,) if is_new else (), (note,))


def to_bytes(model: ir.Model, *, weights: WeightsPolicy = "auto") -> bytes:
    """Return the model as protobuf bytes, for standard output.

    A stream has no folder, so external data would be lost: it must be embedded, or ``reference``
    must say that the reader will store the model in the folder of the weights.

    Raises:
        UsageError: external data with ``auto`` or ``copy``.
        InputError: larger than 2 GiB, or external data whose folder is not known.
    """
    _check_policy(weights)
    slots = list(tensor_slots(model))
    external = [(s, s.tensor) for s in slots if isinstance(s.tensor, ir.ExternalTensor)]
    found = ", ".join(quoted(slot.name) for slot, _ in external[:3])
    if external and weights not in ("embed", "reference"):
        what = "A model on standard output cannot carry external weights along."
        fix = "write to a file, or use --weights embed, or --weights reference for a model that "
        fix += "will be stored in the folder of the weights"
        raise UsageError(what, found=found, fix=fix)
    if weights == "embed" and not all(tensor.base_dir for _, tensor in external):
        what, fix = "The folder of the weights is not known.", "load the model from its path"
        raise InputError(what, found=found, fix=fix)
    with no_gc():
        return serialize(model, embedded(slots, Path()) if weights == "embed" else ())


def _check_policy(weights: WeightsPolicy) -> None:
    policies = get_args(WeightsPolicy)
    if weights not in policies:
        what, fix = "There is no such policy for weights.", f"use one of {', '.join(policies)}"
        raise UsageError(what, found=short(str(weights)), fix=fix)


def check_output(
    path: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Path:
    """Return the absolute output path, if a model can be saved there; nothing is changed.

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
    if not name or "\0" in name:
        raise UsageError("The output has no usable name.", found=repr(name), fix="give a file name")
    target = Path(os.path.abspath(name))
    problem = ""
    with refusals_as("The output cannot be written.", target, fix=_CHECK):
        if target.is_dir() or name.endswith(os.sep):
            problem = "it is a folder"
        elif not target.parent.is_dir():
            problem = "its folder does not exist"
        elif target.exists() and not stat.S_ISREG(target.stat().st_mode):
            problem = "it is a device, pipe or socket"
        elif os.path.lexists(target) and not force:
            raise _exists(target, source)
        elif not os.access(target.parent, os.W_OK | os.X_OK):
            problem = "no permission to make files in its folder"
    if problem:
        fix = "give the name of a file in a folder that exists and can be written"
        what, found = "The output cannot be written.", f"{short(name, 300)}: {problem}"
        raise InputError(what, found=found, fix=fix)
    return target


def _exists(target: Path, source: str | os.PathLike[str] | None) -> UsageError:
    is_input = False
    if source is not None:
        with contextlib.suppress(OSError, ValueError):
            is_input = os.path.samefile(target, source)
    what = "The output is the input file." if is_input else "A file of that name exists already."
    fix = "choose another name, or use --force to replace it"
    return UsageError(what, found=short(str(target), 300), fix=fix)
