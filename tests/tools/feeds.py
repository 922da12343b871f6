"""Inputs of a drawn model: ordinary rows, those at the edges of the types, NaN, infinity, none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.metrics import is_float

Feeds = dict[str, Array]
Shapes = dict[str, list["int | str"]]


def all_feeds(
    model: onnx.ModelProto, example: Mapping[str, Array], seed: int
) -> Iterator[tuple[str, Feeds]]:
    """Yield every kind of row, other sizes, and sizes of nothing.

    Args:
        model: that declares which sizes of its inputs have names.
        example: an array for every input; those that are not float (tokens, masks) are kept.
        seed: of the numbers.
    """
    rng, sizes = np.random.default_rng(seed), {}
    shapes = _named_shapes(model, example, sizes)
    for kind in ("plain", "edges", "nonfinite"):
        yield kind, _fed(example, shapes, sizes, rng, kind)
    if not sizes:
        return
    if rng.random() < 0.5:  # a size that is a multiple stays one: heads, groups
        doubled = {name: 2 * size for name, size in sizes.items()}
        yield "other sizes", _fed(example, shapes, doubled, rng, "plain")
        return
    name = rng.choice(sorted(sizes))
    yield f"{name} = 0", _fed(example, shapes, {**sizes, name: 0}, rng, "plain")


def _named_shapes(
    model: onnx.ModelProto, example: Mapping[str, Array], sizes: dict[str, int]
) -> Shapes:
    """Return the shape of each input; a name that stands for two sizes in the example is fixed."""
    shapes: Shapes = {}
    for value in model.graph.input:
        if value.name in example:
            shape = example[value.name].shape
            names = [dim.dim_param for dim in value.type.tensor_type.shape.dim] or [""] * len(shape)
            shapes[value.name] = [
                name if name and sizes.setdefault(name, size) == size else size
                for name, size in zip(names, shape, strict=True)
            ]
    return shapes


def _fed(
    example: Mapping[str, Array],
    shapes: Shapes,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    kind: str,
) -> Feeds:
    feeds = {}
    floats = [name for name in shapes if is_float(example[name].dtype)]
    special = {name for name in floats if rng.random() < 0.4} | set(floats[:1])
    for name, dims in shapes.items():
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in dims)
        if name in floats:
            kind_here = kind if name in special else "plain"
            feeds[name] = _rows(shape, example[name].dtype, rng, kind_here)
        else:
            feeds[name] = np.resize(example[name], shape)
    return feeds


def _rows(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, kind: str
) -> Array:
    normal = rng.standard_normal(shape)
    if normal.ndim <= 1:  # a gain, an epsilon: away from zero
        normal = (np.abs(normal) + 0.25) * np.where(rng.random(normal.shape) < 0.2, -1, 1)
    elif normal.size:
        flat = normal.reshape(-1, shape[-1])
        # Every other row of another size, so that an epsilon shows.
        flat[::2] *= 10.0 ** rng.uniform(-3, 2, flat[::2, :1].shape)
        for index, row in enumerate(flat, int(rng.integers(64))):
            if kind == "edges":
                edges = _edges(row, dtype, rng)
                row[:] = edges[index % len(edges)]
            elif kind == "nonfinite":
                numbers = ((np.nan,), (np.inf,), (-np.inf,), (np.inf, np.nan), ())[index % 5]
                row[rng.permutation(len(row))[: len(numbers)]] = numbers[: len(row)]
    with np.errstate(all="ignore"):
        return np.asarray(normal).astype(dtype)


def _edges(row: Array, dtype: np.dtype[Any], rng: np.random.Generator) -> tuple[Any, ...]:
    # Of a float64 no more than float32 holds: it has to be judged in float64.
    info: Any = ml_dtypes.finfo(np.float32 if dtype == np.float64 else dtype)
    largest, smallest = float(info.max), float(info.smallest_normal)
    sized = rng.uniform(0.5, 1.0, row.size) * rng.choice((-1.0, 1.0), row.size)
    return (
        0.0,
        4 * math.sqrt(smallest) * sized,  # the squares are about the smallest normal number
        math.sqrt(largest / row.size) / 4 * sized,  # the squares fit, their sum just so
        float(rng.uniform(0.5, 4.0)),
        np.where(np.arange(row.size) == rng.integers(row.size), 1e3, row),
        largest / 3 * sized,  # the squares do not fit, products with a gain may not
        smallest / 4 * sized,
        -np.abs(row),
    )
