"""Several models in one folder, with one copy of the weights that they have in common."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.graph.encode import LARGE_BYTES, Swap, encode, too_large, write_tensor
from rmsnorm_export.graph.external import stored_at
from rmsnorm_export.graph.load import no_gc
from rmsnorm_export.graph.tensors import MAX_PROTO_BYTES, memory_of, tensor_slots

_PAGE, _MAPPED = 4096, 1 << 20
"""Tensors from a MiB on begin on a page, so that a runtime can map them."""


def write_models(models: Mapping[str, ir.Model], folder: Path) -> list[Path]:
    """Write ``NAME.onnx`` and ``NAME.onnx.data`` for each model into a folder.

    A tensor whose memory an earlier model has, too, is stored once, in that model's data file; so
    sizes on disk are those of the weights once, however the folder is copied.

    Args:
        models: by name; left unchanged.
        folder: exists, and holds no such files.

    Returns:
        The files.

    Raises:
        InputError: a graph alone passes 2 GiB, or a tensor's data does not fit its shape.
        OSError: a file cannot be written.
    """
    stored: dict[Hashable, ir.ExternalTensor] = {}
    files: list[Path] = []
    for name, model in models.items():
        path = folder / f"{name}.onnx"
        data = folder / f"{path.name}.data"
        swaps: list[Swap] = []
        with no_gc():
            slots = list(tensor_slots(model))
            with data.open("xb") as file:
                for slot in slots:
                    tensor = slot.tensor
                    if isinstance(tensor, ir.StringTensor) or tensor.nbytes < LARGE_BYTES:
                        continue
                    key = memory_of(tensor) or id(tensor)
                    if key not in stored:
                        if tensor.nbytes >= _MAPPED:
                            file.write(b"\0" * (-file.tell() % _PAGE))
                        offset = file.tell()
                        write_tensor(slot, tensor, file)
                        length = file.tell() - offset
                        stored[key] = stored_at(tensor, data.name, str(folder), offset, length)
                    kept = stored[key]
                    where = str(kept.location), str(folder)
                    swaps.append((slot, stored_at(tensor, *where, kept.offset, kept.length)))
            encoding = encode(model, slots, swaps)
            if encoding.size > MAX_PROTO_BYTES:
                raise too_large(f"{encoding.size} bytes")
            with path.open("xb") as file:
                encoding.write(file)
        files += [path, data]
    return files
