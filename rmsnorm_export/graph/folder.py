"""A new folder of graphs: it appears whole, and weights that graphs share are stored once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.encode import Swap, serialize
from rmsnorm_export.graph.load import no_gc
from rmsnorm_export.graph.place import embedded, store
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.graph.tensors import LARGE_BYTES, TensorSlot, tensor_slots
from rmsnorm_export.system.files import refusals_as, sync
from rmsnorm_export.system.folders import Stage
from rmsnorm_export.system.reading import read_json

EXPORT_FILE = "export.json"
"""Of transformers: the components of a folder, and what its runner needs to call them."""


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write ``export.json``."""
    text = json.dumps(manifest, indent=2) + "\n"
    (folder / EXPORT_FILE).write_text(text, encoding="utf-8")


def check_folder(path: str | os.PathLike[str], *, force: bool) -> Path:
    """Return the absolute path of a folder that can be made, or replaced with ``force``.

    Raises:
        UsageError: it exists and is not empty, and ``force`` is not given.
        InputError: it is a file, or its parent is missing.
    """
    folder = Path(os.path.abspath(path))
    if not folder.parent.is_dir() or (os.path.lexists(folder) and not folder.is_dir()):
        what, fix = "The output is no folder that can be made.", "check the path, e.g. -o decoder/"
        is_file = folder.parent.is_dir()
        found = f"{folder} is a file" if is_file else f"{folder.parent} does not exist"
        raise InputError(what, found=found, fix=fix)
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(
            "The folder of the output is not empty.",
            found=str(folder),
            fix="choose another one, or use --force to replace the export in it",
        )
    return folder


@contextlib.contextmanager
def new_folder(
    path: str | os.PathLike[str], *, force: bool, keep_old: bool = False
) -> Iterator[Path]:
    """Provide a folder to be filled in the block, which takes its place at the end, or not at all.

    What else is in an existing one stays.

    Args:
        path: of the folder.
        force: it may exist.
        keep_old: files of an earlier export stay, too, where the block makes none of their names.

    Raises:
        UsageError, InputError: as `check_folder`; and where it cannot be written.
    """
    final = check_folder(path, force=force)
    writing = refusals_as(
        "The folder cannot be written.",
        final,
        fix="check the folder, its permissions and space; nothing was changed",
    )
    with writing, Stage(final) as stage:
        yield stage.folder
        for entry in stage.folder.iterdir():
            sync(entry)
        written = {entry.name for entry in stage.folder.iterdir()}
        stage.keep(written if keep_old else {*written, *_own_files(final)})
        stage.publish()


def _own_files(folder: Path) -> Iterator[str]:
    """Yield the models that an earlier export left there, which its manifest names."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        for entry in read_json(folder / EXPORT_FILE)["components"].values():
            name = Path(str(entry["file"])).name
            yield from (name, f"{name}.data")


def write_models(
    models: Mapping[str, ir.Model], folder: Path, weights: WeightsPolicy = "copy"
) -> list[Path]:
    """Write ``NAME.onnx`` and ``NAME.onnx.data`` for each model into a folder.

    A tensor whose memory, or place in a file, an earlier model has, too, is stored once, in that
    model's data file; so sizes on disk are those of the weights once, however the folder is copied.

    Args:
        models: by name; left unchanged.
        folder: exists, and holds no such files.
        weights: embed: the data files are empty; reference: external data is left where the folder
            is to take the place of its own, and no data file is written.

    Returns:
        The files.

    Raises:
        InputError: a graph passes 2 GiB.
        OSError: a file cannot be written.
    """
    stored: dict[Hashable, ir.ExternalTensor] = {}
    files: list[Path] = []
    for name, model in models.items():
        path, data = folder / f"{name}.onnx", folder / f"{name}.onnx.data"
        with no_gc():
            slots: list[TensorSlot] = list(tensor_slots(model))
            swaps: Sequence[Swap] = ()
            if weights != "reference":
                data.touch()  # transformers looks for it
                files.append(data)
            if weights == "embed":
                swaps = embedded(slots, folder)
            elif weights != "reference":
                numbers = (s for s in slots if not isinstance(s.tensor, ir.StringTensor))
                large = [slot for slot in numbers if slot.tensor.nbytes >= LARGE_BYTES]
                swaps = store(large, data, stored)
            path.write_bytes(serialize(model, swaps))
        files.append(path)
    return files
