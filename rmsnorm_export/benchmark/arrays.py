"""Named arrays in a file, bfloat16 and strings included, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.metrics import BFLOAT16_DTYPE

_BFLOAT16, _STRING, _PLAIN = "b:", "s:", "p:"


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Store ``arrays`` at ``path``: an .npz archive with the kind before each name."""
    content = {}
    # The names go into an array of their own: a name of a model may be no name of a file.
    for i, (name, array) in enumerate(arrays.items()):
        kind = _PLAIN
        if array.dtype == BFLOAT16_DTYPE:
            kind, array = _BFLOAT16, array.view(np.uint16)
        elif array.dtype.kind == "O":
            kind, array = _STRING, array.astype(str)
        content[f"name{i}"], content[f"array{i}"] = np.array(kind + name), array
    with path.open("wb") as file:
        np.savez(file, **content)  # type: ignore[arg-type,unused-ignore]


def read_arrays(path: Path) -> dict[str, Array]:
    """What ``write_arrays`` stored."""
    arrays = {}
    with np.load(path, allow_pickle=False) as archive:
        for i in range(len(archive.files) // 2):
            kind, name = str(archive[f"name{i}"])[:2], str(archive[f"name{i}"])[2:]
            array = archive[f"array{i}"]
            if kind == _BFLOAT16:
                array = array.view(BFLOAT16_DTYPE)
            elif kind == _STRING:
                array = array.astype(object)
            arrays[name] = array
    return arrays
