"""``ids=1x16,1x128,4x128``: the shapes to measure at, checked against the model.

shapes = input { ";" input }
input  = name "=" shape { "," shape }        the n-th shapes of all inputs belong together
shape  = size { "x" size }

One shape of an input goes with every shape of the others. Inputs that are not named get their sizes
from the names of dimensions that they share with those that are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rmsnorm_export.benchmark.options import Shapes
from rmsnorm_export.errors import UsageError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.runtime.dimensions import Dimensions
from rmsnorm_export.runtime.inputs import Declared

Shape = tuple[int, ...]

MOST_CASES = 32
MOST_ELEMENTS = 2**28
"""Of one input: 1 GiB in f32."""

DEFAULT_GRID = ((1, 16), (1, 128), (4, 128))
"""Batch and length of a text model, where nothing else is said."""

_WRITE = 'write NAME=SHAPE,SHAPE;NAME=SHAPE, e.g. "ids=1x16,1x128,4x128"'


def grid(
    declared: Mapping[str, Declared], shapes: Shapes | None
) -> list[tuple[str, dict[str, Shape]]]:
    """Label and shape of every input, for each point of the grid.

    Args:
        declared: inputs of the model.
        shapes: what the user gave; None: ``DEFAULT_GRID``, where the dynamic axes are the first
            two.

    Raises:
        UsageError: ``shapes`` cannot be read or does not fit the model; a dynamic size is not
            known; the grid is too large.
    """
    points = _default(declared) if shapes is None else _given(declared, shapes)
    found: dict[str, dict[str, Shape]] = {}
    for point in points:
        first = next(iter(point), None)
        label = "fixed shapes" if first is None else _label({first: point[first]})
        found.setdefault(_label(point) if shapes is not None else label, _complete(declared, point))
    return list(found.items())


def _label(point: Mapping[str, Shape]) -> str:
    return short("; ".join(f"{name}={text(shape)}" for name, shape in point.items()), 200)


def text(shape: Shape) -> str:
    """``4x128``."""
    return "x".join(map(str, shape)) or "scalar"


def _given(declared: Mapping[str, Declared], shapes: Shapes) -> list[dict[str, Shape]]:
    lists = _parse(shapes) if isinstance(shapes, str) else _read(shapes)
    unknown = [name for name in lists if name not in declared]
    if unknown:
        raise UsageError(
            f"The model has no input {quoted(unknown[0])}.",
            found=f"its inputs are {', '.join(map(quoted, declared)) or 'none'}",
            fix="use one of these names in --shapes",
        )
    count = max(map(len, lists.values()))
    for name, values in lists.items():
        if len(values) not in (1, count):
            raise _error(
                f"Input {quoted(name)} has {len(values)} shapes where others have {count}.",
                "the n-th shapes of all inputs belong together",
            )
    if count > MOST_CASES:
        raise UsageError(
            "The grid of shapes is too large.",
            found=f"{count} shapes, at most {MOST_CASES} are measured",
            fix="give fewer shapes, or run the command several times",
        )
    return [
        {name: values[i if len(values) > 1 else 0] for name, values in lists.items()}
        for i in range(count)
    ]


def _parse(given: str) -> dict[str, list[Shape]]:
    lists: dict[str, list[Shape]] = {}
    for part in filter(None, (part.strip() for part in given.split(";"))):
        name, equals, rest = part.rpartition("=")
        name = name.strip()
        if not equals or not name:
            raise _error("A part of --shapes names no input.", part)
        if name in lists:
            raise _error("An input is given twice in --shapes.", name)
        lists[name] = [_shape(name, one.strip()) for one in rest.split(",")]
    if not lists:
        raise _error("--shapes describes no input.", repr(given))
    return lists


def _shape(name: str, given: str) -> Shape:
    sizes = given.split("x")
    if not all(s.isascii() and s.isdigit() and len(s) <= 12 and int(s) for s in sizes):
        raise _error(f"A shape of input {quoted(name)} cannot be read.", repr(given))
    return tuple(map(int, sizes))


def _read(given: Mapping[str, Sequence[int] | Sequence[Sequence[int]]]) -> dict[str, list[Shape]]:
    lists: dict[str, list[Shape]] = {}
    for name, value in given.items():
        items = list(value)
        shapes = [items] if all(isinstance(item, int) for item in items) else items
        lists[name] = []
        for shape in shapes:
            sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
            if not sizes or not all(type(size) is int and size > 0 for size in sizes):
                raise _error(f"A shape of input {quoted(name)} is no row of sizes.", repr(shape))
            lists[name].append(sizes)
    if not lists or not all(lists.values()):
        raise _error("shapes describes no input.", repr(given))
    return lists


def _default(declared: Mapping[str, Declared]) -> list[dict[str, Shape]]:
    """``DEFAULT_GRID`` for inputs whose dynamic sizes are plain names on the first two axes."""
    points = []
    for sizes in DEFAULT_GRID:
        point = {}
        for item in declared.values():
            dynamic = [axis for axis, size in enumerate(item.shape) if not _fixed(size)]
            plain = all(_is_name(item.shape[axis]) for axis in dynamic)
            if dynamic and plain and max(dynamic) < len(sizes):
                # A table [length, width] has no batch; few models write [length, batch].
                point[item.name] = tuple(
                    size if isinstance(size, int) and size >= 0 else sizes[_role(size, axis)]
                    for axis, size in enumerate(item.shape)
                )
        points.append(point)
    return points


def _role(size: int | str | None, axis: int) -> int:
    """0: a batch, 1: a length; by the name of the dimension, else by its place."""
    name = str(size or "").lower()
    if "batch" in name:
        return 0
    return 1 if any(word in name for word in ("seq", "len", "token")) else axis


def _fixed(size: int | str | None) -> bool:
    return isinstance(size, int) and size >= 0


def _is_name(size: int | str | None) -> bool:
    return not isinstance(size, str) or not size or size.isidentifier()


def _complete(declared: Mapping[str, Declared], point: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shape of every input, those that are not in ``point`` by the names of dimensions."""
    # What does not follow from ``point`` comes out different in the two.
    either = [Dimensions((one,)) for one in (101, 4099)]
    for dimensions in either:
        for name, shape in point.items():
            dimensions.bind(name, declared[name].shape, shape)
        dimensions.name(item.shape for item in declared.values())
    shapes, unknown = {}, []
    for item in declared.values():
        first, second = (dimensions.sizes(item.shape) for dimensions in either)
        shapes[item.name] = point.get(item.name, first)
        if item.name not in point and first != second:
            unknown.append(item)
    if unknown:
        example = ";".join(f"{item.name}={_example(item)}" for item in unknown)
        raise UsageError(
            "Inputs with dynamic sizes need a shape.",
            found="; ".join(_described(item) for item in unknown[:5]),
            fix=f'give theirs, too, e.g. --shapes "{short(example, 300)}"',
        )
    for name, shape in shapes.items():
        _check(declared[name], shape, given=name in point)
    return shapes


def _check(item: Declared, shape: Shape, *, given: bool) -> None:
    wrong = given and any(
        _fixed(size) and size != actual for size, actual in zip(item.shape, shape, strict=False)
    )
    if wrong:
        raise UsageError(
            f"A shape does not fit input {quoted(item.name)}.",
            found=f"{text(shape)}; the model has {_described(item)}",
            fix=_WRITE,
        )
    if math.prod(shape) > MOST_ELEMENTS:
        raise UsageError(
            f"A shape of input {quoted(item.name)} is too large.",
            found=f"{text(shape)}: {math.prod(shape):,} elements, at most {MOST_ELEMENTS:,}",
            fix="give smaller sizes with --shapes",
        )


def _example(item: Declared) -> str:
    sizes = item.shape or (None,)
    return "x".join(str(size if _fixed(size) else 1) for size in sizes)


def _described(item: Declared) -> str:
    sizes = ", ".join("?" if size in (None, "") else short(str(size)) for size in item.shape)
    return f"{quoted(item.name)} [{sizes}]"


def _error(what: str, found: str) -> UsageError:
    return UsageError(what, found=short(found, 200) or "nothing", fix=_WRITE)
