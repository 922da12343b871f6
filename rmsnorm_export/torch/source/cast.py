"""What a cast to a smaller float type does to weights: values that become infinite, or zero.

The bits of a float without its sign are ordered as its magnitude is, so one pass over them as
integers, a chunk at a time, tells the largest finite value and how many vanish; most chunks hold
ordinary numbers alone, which three instructions tell.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rmsnorm_export.errors import InputError
from rmsnorm_export.strict import parse_json
from rmsnorm_export.system.reading import open_regular
from rmsnorm_export.torch.dtypes import dtype_name

Chunks = Iterable["np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]"]
"""The bits of a tensor, as unsigned integers."""

_CHUNK = 2**18
"""Bytes looked at together: they stay in the cache."""

_STORED = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16}
"""Types of safetensors from which a cast can lose values."""

_LARGEST_HEADER = 100_000_000
"""Bytes; the limit of safetensors itself."""

_UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_NAMES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """What one tensor has at the ends of the type that it is to be cast to.

    Attributes:
        name: of the tensor.
        largest: magnitude of its largest finite value, if that is near the limit.
        beyond: whether that becomes infinite.
        vanished: how many values become zero.
    """

    name: str
    largest: float = 0.0
    beyond: bool = False
    vanished: int = 0


def check_tensors(tensors: Iterable[tuple[str, torch.Tensor]], target: torch.dtype) -> list[str]:
    """Notes on what a cast of these tensors to ``target`` loses; those without values are left out.

    Raises:
        InputError: a finite value becomes infinite; it names the tensors.
    """
    return notes_on(
        [
            _range(name, tensor.dtype, _chunks(tensor), target)
            for name, tensor in tensors
            if tensor.is_floating_point() and not tensor.is_meta
        ],
        target,
    )


def ranges_of_files(
    paths: Iterable[Path], target: torch.dtype, stop: threading.Event | None = None
) -> list[Range]:
    """Of every tensor of safetensors files; of those up to where ``stop`` is set.

    Raises:
        OSError, ValueError: a file cannot be read, or is none of that format.
    """
    tensors = _stored_tensors(paths)
    going = itertools.takewhile(lambda _: stop is None or not stop.is_set(), tensors)
    return [_range(name, dtype, chunks, target) for name, dtype, chunks in going]


def notes_on(ranges: Collection[Range], target: torch.dtype) -> list[str]:
    """As `check_tensors`, of what was found before."""
    beyond = [tensor for tensor in ranges if tensor.beyond]
    type_name, limit = dtype_name(target), torch.finfo(target).max
    if beyond:
        shown = [f"{tensor.name} (up to {tensor.largest:.6g})" for tensor in beyond][:_MOST_NAMES]
        raise InputError(
            f"Weights become infinite in {type_name}.",
            found=f"{len(beyond)} of {len(ranges)} tensors have values above {limit:.6g}: "
            + ", ".join([*shown, "..."] if len(beyond) > _MOST_NAMES else shown),
            fix="use --dtype bf16, which has the range of float32, or --dtype f32; or build the "
            "model in a factory that leaves these tensors in float32",
        )
    vanished = [tensor for tensor in ranges if tensor.vanished]
    if not vanished:
        return []
    first = max(vanished, key=lambda tensor: tensor.vanished)
    return [
        f"{sum(tensor.vanished for tensor in vanished)} weights that are not zero become zero in "
        f"{type_name}, in {len(vanished)} of {len(ranges)} tensors, the most in {first.name} "
        f"({first.vanished})"
    ]


def _range(name: str, dtype: torch.dtype, chunks: Chunks, target: torch.dtype) -> Range:
    if not _loses(dtype, target):
        return Range(name)
    largest, zeros = _examine(chunks, dtype, target)
    cast = torch.tensor(largest, dtype=torch.float64).to(dtype).to(target)
    return Range(name, largest, bool(cast.isinf()), zeros)


def _loses(dtype: torch.dtype, target: torch.dtype) -> bool:
    """Whether there are values of ``dtype`` beyond the range of ``target``."""
    return torch.finfo(dtype).max > torch.finfo(target).max or _least(dtype) < _least(target)


def _least(dtype: torch.dtype) -> float:
    """The smallest number above zero."""
    return torch.finfo(dtype).tiny * torch.finfo(dtype).eps


def _examine(chunks: Chunks, dtype: torch.dtype, target: torch.dtype) -> tuple[float, int]:
    """The largest finite magnitude, if above half the limit, and how many values vanish."""
    integer = _SIGNED[dtype.itemsize]

    def bits_of(value: float) -> int:
        return int(torch.tensor(value, dtype=torch.float64).to(dtype).view(integer))

    unsigned = _UNSIGNED[dtype.itemsize]
    magnitude = unsigned(2 ** (8 * dtype.itemsize - 1) - 1)
    infinite, large = bits_of(float("inf")), bits_of(torch.finfo(target).max / 2)
    tiny = bits_of(_least(target) / 2) + 1  # a tie is rounded to the even number, zero
    largest = zeros = 0
    for chunk in chunks:
        # Doubled they lose their signs; less than tiny ones wrap around to be the largest.
        moved = chunk + chunk
        moved -= unsigned(2 * tiny)
        if int(moved.max()) < 2 * (large - tiny):
            continue
        bits = chunk & magnitude
        largest = max(largest, int(bits[bits < infinite].max(initial=0)))
        zeros += int(np.count_nonzero((bits > 0) & (bits < tiny)))
    value = torch.tensor(largest, dtype=torch.int64).to(integer).view(dtype)
    return float(value.double()), zeros


def _chunks(tensor: torch.Tensor) -> Chunks:
    kind, integer = _UNSIGNED[tensor.element_size()], _SIGNED[tensor.element_size()]
    flat = tensor.detach().reshape(-1)
    for part in flat.split(_CHUNK // flat.element_size()):  # type: ignore[no-untyped-call]
        yield part.cpu().view(integer).numpy().view(kind)


def _stored_tensors(paths: Iterable[Path]) -> Iterator[tuple[str, torch.dtype, Chunks]]:
    for path in paths:
        with open_regular(path) as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            if start > _LARGEST_HEADER:
                raise ValueError(f"{path.name}: a header of {start:,} bytes")
            for name, entry in parse_json(file.read(start - 8)).items():
                if entry.get("dtype") not in _STORED:
                    continue
                begin, end = entry["data_offsets"]
                dtype = _STORED[entry["dtype"]]
                file.seek(start + begin)
                yield name, dtype, _read(file, end - begin, dtype.itemsize)


def _read(file: Any, size: int, itemsize: int) -> Chunks:
    buffer = memoryview(bytearray(min(size, _CHUNK)))
    while size > 0:
        count = file.readinto(buffer[:size])
        if not count:
            break
        yield np.frombuffer(buffer[:count], _UNSIGNED[itemsize])
        size -= count
