"""Write a model so that a reader sees the old file or the new one, never a part."""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.external import embed, place
from rmsnorm_export.graph.load import no_gc, parts_of, serialize
from rmsnorm_export.graph.pieces import bytes_of, total_size
from rmsnorm_export.graph.policy import UsedPolicy, WeightsPolicy, check_policy
from rmsnorm_export.graph.tensors import lent_slots
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.system.files import StrPath, Transaction, output_path, refusals_as

_CHECK = "check the folder, its permissions and space; nothing was changed"


@dataclasses.dataclass(frozen=True, slots=True)
class SaveResult:
    """Outcome of saving.

    Attributes:
        path: absolute path of the model file.
        bytes: its size, external data not counted.
        weights: treatment of external data; ``none`` when there is none.
        data_files: files of external data that this save made.
        notes: for the report.
    """

    path: Path
    bytes: int
    weights: UsedPolicy
    data_files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def save_model(
    model: ir.Model, path: StrPath, *, weights: WeightsPolicy = "auto", force: bool = False
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
    check_policy(weights)
    target = check_output(path, force=force)
    with refusals_as("The output cannot be written.", target, fix=_CHECK):
        try:
            with no_gc(), Transaction() as files, lent_slots(model) as slots:
                used, data_files, notes = place(slots, target, weights, files)
                parts = parts_of(model)
                temp = files.temp(target, map(bytes_of, parts))
                files.publish(temp, target, replace=force, last=True)
        except FileExistsError as error:
            raise _exists(target) from error
    return SaveResult(target, total_size(parts), used, data_files, notes)


def to_bytes(model: ir.Model, *, weights: WeightsPolicy = "auto") -> bytes:
    """Return the model as protobuf bytes, for standard output.

    A stream has no folder, so external data would be lost: it must be embedded, or ``reference``
    must say that the reader will store the model in the folder of the weights.

    Raises:
        UsageError: external data with ``auto`` or ``copy``.
        InputError: larger than 2 GiB, or external data whose folder is not known.
    """
    check_policy(weights)
    with no_gc(), lent_slots(model) as slots:
        external = [slot for slot in slots if slot.is_external]
        if external and weights not in ("embed", "reference"):
            what = "A model on standard output cannot carry external weights along."
            fix = "write to a file, or use --weights embed, or reference if it goes beside them"
            raise UsageError(what, found=quoted(external[0].name), fix=fix)
        if weights == "embed":
            embed(slots, "")
        return serialize(model)


def check_output(path: StrPath, *, force: bool = False) -> Path:
    """Return the absolute output path, if a model can be saved there; nothing is changed.

    ``save_model`` does this too; call it before work whose result would otherwise be lost.

    Args:
        path: of the output.
        force: an existing file may be replaced.

    Raises:
        UsageError: the output exists and ``force`` is not given, or it is no path.
        InputError: it is a folder or a device, or its folder is missing or not writable.
    """
    target = Path(os.path.abspath(output_path(path)))
    absent = not target.parent.exists()
    fix = f"make the folder first: mkdir -p {shlex.quote(str(target.parent))}" if absent else _CHECK
    fix = "give the name of a file in it" if os.path.isdir(target) else fix
    with refusals_as("The output cannot be written.", target, fix=fix):
        problem = ""
        if os.fsdecode(path).endswith(os.sep) or target.is_dir():
            problem = "it is a folder"
        elif not target.parent.is_dir():
            problem = "its folder does not exist"
        elif target.exists() and not target.is_file():
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
