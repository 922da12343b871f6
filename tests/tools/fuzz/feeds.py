"""Inputs of a mutant: ordinary rows, rows at the edges of the types, NaN and infinity, no rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.metrics import is_float

Dims = tuple["int | str", ...]


@dataclasses.dataclass(slots=True)
class Signature:
    """The inputs of a model.

    Attributes:
        inputs: type and dimensions of each input that has no default; a name is a dynamic size.
        sizes: what the names are in the example.
        examples: arrays of inputs that are not float (tokens, masks), kept as they are.
    """

    inputs: dict[str, tuple[np.dtype[Any], Dims]]
    sizes: dict[str, int]
    examples: dict[str, Array]

    def copy(self) -> Signature:
        return Signature(dict(self.inputs), dict(self.sizes), dict(self.examples))

    def shape(self, name: str, sizes: dict[str, int] | None = None) -> tuple[int, ...]:
        known = self.sizes if sizes is None else sizes
        return tuple(known[dim] if isinstance(dim, str) else dim for dim in self.inputs[name][1])


def signature_of(model: onnx.ModelProto, examples: dict[str, Array] | None = None) -> Signature:
    """Read the declared dimensions, and their sizes off an example of every input.

    Without examples a named size is 2, 3, ... in turn. A name that stands for two sizes in the
    example stays fixed.
    """
    inputs: dict[str, tuple[np.dtype[Any], Dims]] = {}
    sizes: dict[str, int] = {}
    stored = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in stored:
            continue
        declared = value.type.tensor_type.shape.dim
        if examples is None:
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            shape = [d.dim_value or sizes.get(d.dim_param, 2 + len(sizes)) for d in declared]
        else:
            dtype, shape = examples[value.name].dtype, list(examples[value.name].shape)
        dims: list[int | str] = []
        for axis, size in enumerate(shape):
            name = declared[axis].dim_param if axis < len(declared) else ""
            dims.append(name if name and sizes.setdefault(name, size) == size else size)
        inputs[value.name] = (np.dtype(dtype), tuple(dims))
    plain = {k: a for k, a in (examples or {}).items() if not is_float(a.dtype)}
    return Signature(inputs, sizes, plain)


def all_feeds(signature: Signature, seed: int) -> Iterator[tuple[str, dict[str, Array]]]:
    """Every kind of row, other sizes, and sizes of nothing."""
    rng = np.random.default_rng(seed)
    for kind in ("plain", "edges", "nonfinite"):
        yield kind, _fed(signature, signature.sizes, rng, kind)
    if not signature.sizes:
        return
    if rng.random() < 0.5:  # a size that is a multiple stays one: heads, groups
        other = {name: 2 * size for name, size in signature.sizes.items()}
        yield "other sizes", _fed(signature, other, rng, "plain")
        return
    name = sorted(signature.sizes)[int(rng.integers(len(signature.sizes)))]
    yield f"{name} = 0", _fed(signature, {**signature.sizes, name: 0}, rng, "plain")


def _fed(
    signature: Signature, sizes: dict[str, int], rng: np.random.Generator, kind: str
) -> dict[str, Array]:
    out = {}
    floats = [name for name, (dtype, _) in signature.inputs.items() if is_float(dtype)]
    special = {name for name in floats if rng.random() < 0.4} | set(floats[:1])
    for name, (dtype, _) in signature.inputs.items():
        shape = signature.shape(name, sizes)
        if not is_float(dtype):
            example = signature.examples.get(name, np.ones(1, dtype))
            out[name] = np.resize(example, shape).astype(dtype)
            continue
        out[name] = _rows(shape, dtype, rng, kind if name in special else "plain")
    return out


def _rows(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, kind: str
) -> Array:
    normal = rng.standard_normal(shape)
    if normal.ndim <= 1:  # a gain, an epsilon: away from zero
        normal = (np.abs(normal) + 0.25) * np.where(rng.random(normal.shape) < 0.2, -1, 1)
        return np.asarray(normal).astype(dtype)
    if normal.size == 0:
        return normal.astype(dtype)
    flat = normal.reshape(-1, shape[-1])
    # Every other row of another size, so that an epsilon shows.
    flat[::2] *= 10.0 ** rng.uniform(-3, 2, flat[::2, :1].shape)
    start = int(rng.integers(64))
    for index, row in enumerate(flat, start):
        if kind == "edges":
            row[:] = _edge(("zeros", "tiny", "huge", "constant", "outlier", "overflow", "denormal",
                            "negative")[index % 8], row, dtype, rng)  # fmt: skip
        elif kind == "nonfinite":
            numbers = ((np.nan,), (np.inf,), (-np.inf,), (np.inf, np.nan), ())[index % 5]
            row[rng.permutation(len(row))[: len(numbers)]] = numbers[: len(row)]
    with np.errstate(all="ignore"):
        return np.asarray(flat.reshape(shape).astype(dtype))


def _edge(name: str, row: Array, dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    # Of a float64 no more than float32 holds: it has to be judged in float64.
    info: Any = ml_dtypes.finfo(np.float32 if dtype == np.float64 else dtype)
    largest, smallest = float(info.max), float(info.smallest_normal)
    sized = rng.uniform(0.5, 1.0, row.size) * rng.choice((-1.0, 1.0), row.size)
    scale = {
        "zeros": 0.0,
        "tiny": 4 * math.sqrt(smallest),  # the squares are about the smallest normal number
        "huge": math.sqrt(largest / row.size) / 4,  # the squares fit, their sum just so
        "overflow": largest / 3,  # the squares do not fit, products with a gain may not
        "denormal": smallest / 4,
    }
    if name in scale:
        return np.asarray(scale[name] * sized)
    if name == "constant":
        return np.full(row.size, float(rng.uniform(0.5, 4.0)))
    if name == "outlier":
        return np.where(np.arange(row.size) == rng.integers(row.size), 1e3, row)
    return np.asarray(-np.abs(row))
