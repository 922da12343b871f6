"""What is fed to a mutant: ordinary rows, rows at the edges of the types, NaN and infinity, and
inputs without elements."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from tests.tools.fuzz.intervals import Array, is_float

Dims = tuple["int | str", ...]


@dataclasses.dataclass(slots=True)
class Signature:
    """The inputs of a model.

    Attributes:
        inputs: type and dimensions of each input that has no default; a name is a dynamic size.
        sizes: what the names are in the example.
        examples: arrays of inputs that are not float (tokens, masks), kept as they are.
        rows: inputs that are activations; the others are gains and the like.
    """

    inputs: dict[str, tuple[np.dtype[Any], Dims]]
    sizes: dict[str, int]
    examples: dict[str, Array]

    def copy(self) -> Signature:
        return Signature(dict(self.inputs), dict(self.sizes), copy.copy(self.examples))

    def add(self, name: str, dtype: np.dtype[Any], dims: Dims) -> None:
        self.inputs[name] = (dtype, dims)

    def shape(self, name: str, sizes: dict[str, int]) -> tuple[int, ...]:
        dims = self.inputs[name][1]
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in dims)


def signature_of(model: onnx.ModelProto, examples: dict[str, Array]) -> Signature:
    """From the declared dimensions and an example of every input.

    A dynamic dimension without a name gets one of its own; a name that stands for two sizes in the
    example stays fixed.
    """
    inputs: dict[str, tuple[np.dtype[Any], Dims]] = {}
    sizes: dict[str, int] = {}
    stored = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in stored:
            continue
        array = examples[value.name]
        dims: list[int | str] = []
        declared = value.type.tensor_type.shape.dim
        for axis, size in enumerate(array.shape):
            name = declared[axis].dim_param if axis < len(declared) else ""
            if name and sizes.setdefault(name, size) == size:
                dims.append(name)
            else:
                dims.append(size)
        inputs[value.name] = (array.dtype, tuple(dims))
    plain = {k: a for k, a in examples.items() if not is_float(a.dtype)}
    return Signature(inputs, sizes, plain)


def example_feeds(signature: Signature, rng: np.random.Generator) -> dict[str, Array]:
    """Ordinary numbers for every input."""
    return _fed(signature, signature.sizes, rng, "plain")


KINDS = ("plain", "edges", "nonfinite")


def all_feeds(signature: Signature, seed: int) -> Iterator[tuple[str, dict[str, Array]]]:
    """Every kind of row, other sizes, and sizes of nothing."""
    rng = np.random.default_rng(seed)
    for kind in KINDS:
        yield kind, _fed(signature, signature.sizes, rng, kind)
    if not signature.sizes:
        return
    if rng.random() < 0.5:  # a size that is a multiple stays one: heads, groups
        other = {name: size + size for name, size in signature.sizes.items()}
        yield "other sizes", _fed(signature, other, rng, "plain")
        return
    name = sorted(signature.sizes)[int(rng.integers(len(signature.sizes)))]
    yield f"{name} = 0", _fed(signature, {**signature.sizes, name: 0}, rng, "plain")


def _fed(
    signature: Signature, sizes: dict[str, int], rng: np.random.Generator, kind: str
) -> dict[str, Array]:
    out = {}
    floats = [n for n, (dtype, dims) in signature.inputs.items() if is_float(dtype)]
    special = {name for name in floats if rng.random() < 0.4} | set(floats[:1])
    for name, (dtype, _) in signature.inputs.items():
        shape = signature.shape(name, sizes)
        if not is_float(dtype):
            out[name] = np.resize(signature.examples.get(name, np.ones(1, dtype)), shape)
            out[name] = out[name].astype(dtype)
            continue
        how = kind if name in special and len(shape) > 1 else "plain"
        out[name] = _rows(shape, dtype, rng, how)
    return out


def _rows(shape: Sequence[int], dtype: np.dtype[Any], rng: np.random.Generator, kind: str) -> Array:
    normal = rng.standard_normal(tuple(shape))
    if normal.ndim <= 1:  # a gain, an epsilon: away from zero
        normal = (np.abs(normal) + 0.25) * np.where(rng.random(normal.shape) < 0.2, -1, 1)
        return np.asarray(normal).astype(dtype)
    if normal.size == 0:
        return normal.astype(dtype)
    flat = normal.reshape(-1, shape[-1])
    # Every other row of another size, so that an epsilon shows.
    flat[::2] *= 10.0 ** rng.uniform(-3, 2, flat[::2, :1].shape)
    if kind == "edges":
        start = int(rng.integers(len(_EDGES)))
        for index, row in enumerate(flat):
            row[:] = _edge(_EDGES[(start + index) % len(_EDGES)], row, dtype, rng)
    elif kind == "nonfinite":
        strange = [(np.nan,), (np.inf,), (-np.inf,), (np.inf, np.nan), (np.inf, -np.inf), ()]
        start = int(rng.integers(len(strange)))
        for index, row in enumerate(flat):
            numbers = strange[(start + index) % len(strange)][: len(row)]
            row[rng.permutation(len(row))[: len(numbers)]] = numbers
    with np.errstate(all="ignore"):
        return np.asarray(flat.reshape(tuple(shape)).astype(dtype))


_EDGES = ("zeros", "tiny", "huge", "constant", "outlier", "overflow", "denormal", "negative")


def _edge(name: str, row: Array, dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    info: Any = ml_dtypes.finfo(dtype)
    largest, smallest = float(info.max), float(info.smallest_normal)
    n = row.size
    sized = rng.uniform(0.5, 1.0, n) * rng.choice((-1.0, 1.0), n)
    if name == "zeros":
        return np.zeros(n)
    if name == "tiny":  # the squares are about the smallest normal number
        return np.asarray(math.sqrt(smallest) * 4 * sized)
    if name == "huge":  # the squares fit, their sum just so
        return np.asarray(math.sqrt(largest / n) / 4 * sized)
    if name == "overflow":  # the squares do not fit, products with a gain may not
        return np.asarray(largest / 3 * sized)
    if name == "denormal":
        return np.asarray(smallest / 4 * sized)
    if name == "constant":
        return np.full(n, float(rng.uniform(0.5, 4.0)))
    if name == "outlier":
        row = row.copy()
        row[int(rng.integers(n))] = 1e3
        return row
    return np.asarray(-np.abs(row))
