"""The exports of the corpus as the repository keeps them: graphs without their weights.

An export takes a second to half a minute. Its graph, compressed beside its likes, takes a kilobyte
or a few, and its weights are those of a module that a seed makes. A kept export is used where the
versions and sources are those that it was made with, which the name of the entry tells, and where
the module gives the very weights; everywhere else the entry is exported.

``python -m scripts.corpus --keep`` writes the files from the exports in the cache.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import pathlib
import re
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx

KINDS = ("norms", "architectures")
"""The kinds of entries that are kept, each in a file of its own."""

HERE = pathlib.Path(__file__).parent / "kept"

_PATHS = "pkg.torch.onnx.stack_trace"
"""Metadata with the paths of one machine: two thirds of a graph, and of no use elsewhere."""

_ADDRESS = re.compile(" at 0x[0-9a-f]+")


@functools.cache
def kept(kind: str) -> dict[str, dict[str, bytes]]:
    """The files of every entry of a kind that is kept, by the entry's name."""
    path = HERE / f"{kind}.tar.xz"
    found: dict[str, dict[str, bytes]] = {}
    if kind in KINDS and path.exists():
        with tarfile.open(path, "r:xz") as archive:
            for member in archive:
                stream = archive.extractfile(member)
                assert stream is not None
                name, file = member.name.split("/")
                found.setdefault(name, {})[file] = stream.read()
    return found


def restore(kind: str, name: str, folder: pathlib.Path) -> bool:
    """Fill the empty ``folder`` with the entry ``name``; False where that cannot be done."""
    import torch

    from scripts.corpus import exporters

    files = kept(kind).get(name)
    if files is None:
        return False
    notes = json.loads(files["kept.json"])
    module, inputs = _made(kind, name)
    if "model.onnx" in files:
        model = onnx.load_from_string(files["model.onnx"])
        values = list(_values(module))
        for tensor, number in notes["weights"].items():
            if number >= len(values):
                return False
            model.graph.initializer[int(tensor)].raw_data = values[number]
        if digest(model) != notes["sha256"]:
            return False
        onnx.save(model, folder / "model.onnx")
    if notes["runs"]:
        with torch.no_grad():
            exporters.save_io(folder / "arrays.npz", inputs, module(*inputs))
    (folder / "about.json").write_text(json.dumps(notes["about"]))
    return True


def write(kind: str, entries: Mapping[str, pathlib.Path]) -> int:
    """Write the file of a kind from folders of the cache by their names; its size in bytes."""
    path = HERE / f"{kind}.tar.xz"
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for entry in sorted(entries):
            for name, content in _files(kind, entry, entries[entry]).items():
                member = tarfile.TarInfo(f"{entry}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    kept.cache_clear()
    return path.stat().st_size


def without_paths(path: pathlib.Path) -> onnx.ModelProto:
    """An export as it is kept, with its weights: nothing of the machine or the process."""
    model = onnx.load(path)
    for part in (model.graph, *model.functions):
        for node in part.node:
            others = {p.key: _ADDRESS.sub("", p.value) for p in node.metadata_props}
            others.pop(_PATHS, None)
            onnx.helper.set_model_props(node, others)
    return model


def digest(model: onnx.ModelProto) -> str:
    """SHA-256 of a model, in the serialization of this process."""
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def _files(kind: str, entry: str, folder: pathlib.Path) -> dict[str, bytes]:
    notes: dict[str, Any] = {
        "about": json.loads((folder / "about.json").read_text()),
        "runs": (folder / "arrays.npz").exists(),
    }
    files = {}
    if (folder / "model.onnx").exists():
        model = without_paths(folder / "model.onnx")
        notes["sha256"] = digest(model)
        module, _ = _made(kind, entry)
        numbers = {value: number for number, value in enumerate(_values(module))}
        notes["weights"] = {}
        for place, tensor in enumerate(model.graph.initializer):
            if tensor.raw_data in numbers:
                notes["weights"][place] = numbers[tensor.raw_data]
                tensor.ClearField("raw_data")
        files["model.onnx"] = model.SerializeToString(deterministic=True)
    return {"kept.json": json.dumps(notes).encode(), **files}


def _made(kind: str, name: str) -> tuple[Any, tuple[Any, ...]]:
    """Module and inputs of an entry, whose name is that of the case and a digest."""
    from scripts.corpus import architectures, exporters, norm_classes

    case = name.rsplit("-", 1)[0]
    if kind == "architectures":
        key, dtype = case.rsplit("-", 1)
        return architectures.architecture(key).make(dtype)
    for norm in norm_classes.norm_classes():
        for dtype, exporter in exporters.combinations(norm):
            if case == f"{norm.key}-{dtype}-{exporter}":
                return norm.make(dtype)
    raise KeyError(name)


def _values(module: Any) -> Iterator[bytes]:
    """The bytes of every weight and buffer, as they are and transposed."""
    from scripts.corpus import exporters

    for tensor in (*module.parameters(), *module.buffers()):
        value = exporters.to_numpy(tensor)
        yield value.tobytes()
        yield np.moveaxis(value, -1, 0).tobytes() if value.ndim == 2 else b""
