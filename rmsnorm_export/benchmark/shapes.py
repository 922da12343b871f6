"""``ids=1x16,1x128,4x128``: the shapes to measure at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmsnorm_export.printable import short
from rmsnorm_export.runtime.input_sizes import (
    Declared,
    InputSizes,
    Point,
    Size,
    is_fixed,
    sized,
    symbol_of,
)
from rmsnorm_export.runtime.sizes import POINTS, Dims, Shape, Shapes, shape_text

DEFAULT_GRID = ((1, 16), (1, 128), (4, 128))
"""Batch and length of a text model, where nothing else is said."""

_LABEL = 200


def grid(
    declared: Mapping[str, Declared], shapes: Shapes | None, dims: Dims | None = None
) -> list[tuple[str, dict[str, Shape]]]:
    """Label and shape of every input, for each point of the grid.

    Args:
        declared: inputs of the model.
        shapes: of inputs; the n-th shapes of all belong together.
        dims: sizes by name of a dimension. Neither: ``DEFAULT_GRID``, where the dynamic axes are
            the first two.

    Raises:
        UsageError: what is given cannot be read or does not fit the model; a dynamic size is not
            known; the grid is too large.
    """
    points = _default(declared) if shapes is None and dims is None else []
    points = points or InputSizes(declared.values(), POINTS).points(shapes, dims)
    return [
        (short(label if len(label) <= _LABEL else f"point {number}: {label}", _LABEL), shapes)
        for number, (label, shapes) in enumerate(dict(points).items(), 1)
    ]


def _default(declared: Mapping[str, Declared]) -> list[Point]:
    """``DEFAULT_GRID``; [] where it does not tell every size."""
    declared_shapes = {name: item.shape or () for name, item in declared.items()}
    plain = {name: shape for name, shape in declared_shapes.items() if _has_default(shape)}
    first = next(iter(plain), None)
    points = []
    for sizes in DEFAULT_GRID:
        known = {
            symbol_of(size, axis): sizes[_role(size, axis)]
            for shape in reversed(plain.values())
            for axis, size in enumerate(shape)
            if not is_fixed(size)
        }
        computed = {name: sized(shape, known) for name, shape in declared_shapes.items()}
        shapes = {name: shape for name, shape in computed.items() if shape is not None}
        if len(shapes) < len(declared):
            return []
        label = "fixed shapes" if first is None else f"{first}={shape_text(shapes[first])}"
        points.append((label, shapes))
    return points


def _has_default(shape: Sequence[Size]) -> bool:
    """Whether the dynamic sizes are names alone, on the first two axes."""
    dynamic = [axis for axis, size in enumerate(shape) if not is_fixed(size)]
    names = (size for size in shape if isinstance(size, str) and size)
    return bool(dynamic) and max(dynamic) < 2 and all(map(str.isidentifier, names))


def _role(size: Size, axis: int) -> int:
    """0: a batch, 1: a length; by the name of the dimension, else by its place.

    A table [length, width] has no batch; few models write [length, batch].
    """
    name = str(size or "").lower()
    if "batch" in name:
        return 0
    return 1 if any(word in name for word in ("seq", "len", "token")) else axis
