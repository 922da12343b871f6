"""A new folder of graphs: it appears whole, and weights that graphs share are stored once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.encode import serialize
from rmsnorm_export.graph.external import placed
from rmsnorm_export.graph.load import no_gc
from rmsnorm_export.graph.place import embed, store
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.graph.tensors import LARGE_BYTES, lent_slots
from rmsnorm_export.system.files import refusals_as
from rmsnorm_export.system.folders import next_state
from rmsnorm_export.system.reading import read_json

EXPORT_FILE = "export.json"
"""Of transformers: the components of a folder, and what its runner needs to call them."""


def check_folder(path: str | os.PathLike[str], *, force: bool) -> Path:
    """Return the absolute path of a folder that can be made, or replaced with ``force``.

    Raises:
        UsageError: it exists and is not empty, and ``force`` is not given.
        InputError: it is a file, or its parent is missing.
    """
    folder = Path(os.path.abspath(path))
    what, fix = "The output is no folder that can be made.", "check the path, e.g. -o decoder/"
    with refusals_as(what, folder, fix=fix):
        os.stat(os.path.join(folder.parent, ""))
        is_used = os.path.lexists(folder) and any(folder.iterdir())
    if is_used and not force:
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
    replaced = set() if keep_old else set(_own_files(final))
    fix = "check the folder, its permissions and space; nothing was changed"
    with (
        refusals_as("The folder cannot be written.", final, fix=fix),
        next_state(final, replaced) as folder,
    ):
        yield folder
        replaced |= {entry.name for entry in folder.iterdir()}


def _own_files(folder: Path) -> Iterator[str]:
    """Yield the models that an earlier export left there, which its manifest names."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        for entry in read_json(folder / EXPORT_FILE)["components"].values():
            name = Path(str(entry["file"])).name
            yield from (name, f"{name}.data")


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
            if weights != "reference":
                places = store(large, folder / f"{name}.onnx.data", stored)
                for slot, place in zip(large, places, strict=True):
                    slot.put(placed(slot.tensor, place, os.fspath(place.location), str(folder)))
            (folder / f"{name}.onnx").write_bytes(serialize(model))
    if manifest is not None:
        text = json.dumps(manifest, indent=2) + "\n"
        (folder / EXPORT_FILE).write_text(text, encoding="utf-8")
