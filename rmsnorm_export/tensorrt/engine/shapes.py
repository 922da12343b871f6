"""``ids=1x1,4x128,8x2048``: the ranges of a model's inputs, checked against the model.

profile = input { ";" input }
input   = name "=" shape [ "," shape "," shape ]     one shape: fixed; three: min, opt, max
shape   = size { "x" size }
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rmsnorm_export.errors import UsageError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.tensorrt.engine.result import EngineProfile, InputRange

Shape = tuple[int, ...]
Ranges = Mapping[str, Sequence[int] | Sequence[Sequence[int]]]
"""By input name one shape, or smallest, usual and largest shape."""

Shapes = str | Ranges | Sequence[str | Ranges]

LARGEST = 2**31 - 1
"""Most that TensorRT takes as one size."""

_WRITE = 'write NAME=MIN,OPT,MAX, e.g. "ids=1x1,4x128,8x2048", or NAME=4x128 for one shape'


@dataclasses.dataclass(frozen=True, slots=True)
class ModelInput:
    """An input of the model.

    Attributes:
        name: of the input.
        dtype: e.g. ``int64``.
        shape: sizes, with a name or None for a dynamic one; None when not even the rank is known.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None

    @property
    def dynamic(self) -> bool:
        return self.shape is None or not all(isinstance(size, int) for size in self.shape)

    def text(self) -> str:
        """``'ids' int64 [batch, 7]``, safe to print."""
        if self.shape is None:
            return f"{quoted(self.name)} {self.dtype} of unknown rank"
        sizes = ", ".join("?" if size is None else short(str(size)) for size in self.shape)
        return f"{quoted(self.name)} {self.dtype} [{sizes}]"


def make_profiles(inputs: Sequence[ModelInput], shapes: Shapes | None) -> tuple[EngineProfile, ...]:
    """The optimization profiles that ``shapes`` asks for.

    Args:
        inputs: of the model.
        shapes: one profile or several, as text or by name; None: every size is fixed.

    Raises:
        UsageError: an input that the model does not have, or one with dynamic sizes that has no
            range; a rank or a fixed size that differs; sizes out of order; a dimension that has two
            ranges.
    """
    given: Sequence[str | Ranges]
    if shapes is None:
        given = [{}]
    elif isinstance(shapes, str | Mapping):
        given = [shapes]
    else:
        given = list(shapes) or [{}]
    return tuple(_profile(inputs, _read(one)) for one in given)


def _read(given: str | Ranges) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Name -> min, opt, max."""
    if isinstance(given, str):
        return parse(given)
    ranges = {}
    for name, value in given.items():
        shapes = [_sizes(name, shape) for shape in _shapes(value)]
        ranges[name] = _three(name, shapes, repr(value))
    return ranges


def _shapes(value: object) -> list[object]:
    """The shapes in ``value``, which is one or a sequence of them."""
    items = list(value) if isinstance(value, Sequence) else [value]
    return [items] if all(isinstance(item, int) for item in items) else items


def _sizes(name: str, shape: object) -> Shape:
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise _error(f"A shape of input {quoted(name)} is no sequence of numbers.", repr(shape))
    return sizes


def parse(text: str) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Name -> min, opt, max of the inputs that ``text`` describes.

    Raises:
        UsageError: naming the part that cannot be read.
    """
    ranges: dict[str, tuple[Shape, Shape, Shape]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, rest = part.rpartition("=")
        name = name.strip()
        if not equals or not name:
            raise _error("A part of --shapes names no input.", part)
        if name in ranges:
            raise _error("An input is given twice in one profile.", name)
        shapes = [_shape(name, one.strip()) for one in rest.split(",")]
        ranges[name] = _three(name, shapes, rest)
    if not ranges:
        raise _error("--shapes describes no input.", repr(text))
    return ranges


def _shape(name: str, text: str) -> Shape:
    sizes = text.split("x")
    if not all(size.isascii() and size.isdigit() and len(size) <= 18 for size in sizes):
        raise _error(f"A shape of input {quoted(name)} cannot be read.", repr(text))
    return tuple(int(size) for size in sizes)


def _three(name: str, shapes: list[Shape], text: str) -> tuple[Shape, Shape, Shape]:
    if len(shapes) not in (1, 3):
        raise _error(f"Input {quoted(name)} has {len(shapes)} shapes, not one or three.", text)
    low, usual, high = shapes if len(shapes) == 3 else shapes * 3
    return low, usual, high


def _profile(
    inputs: Sequence[ModelInput], ranges: dict[str, tuple[Shape, Shape, Shape]]
) -> EngineProfile:
    known = {item.name: item for item in inputs}
    for name in ranges:
        if name not in known:
            raise UsageError(
                f"The model has no input {quoted(name)}.",
                found=f"its inputs are {'; '.join(item.text() for item in inputs) or 'none'}",
                fix="use one of these names in --shapes",
            )
    missing = [item for item in inputs if item.dynamic and item.name not in ranges]
    if missing:
        example = ";".join(f"{item.name}={_example(item)}" for item in missing)
        raise UsageError(
            "Inputs with dynamic sizes need a range.",
            found="; ".join(item.text() for item in missing),
            fix=f'give smallest, usual and largest shape, e.g. --shapes "{short(example, 300)}"',
        )
    profile = []
    for item in inputs:
        if item.name in ranges:
            low, usual, high = ranges[item.name]
            _check(item, low, usual, high)
        else:
            low = usual = high = tuple(size for size in item.shape or () if isinstance(size, int))
        profile.append(InputRange(item.name, item.dtype, low, usual, high))
    _check_names(inputs, profile)
    return EngineProfile(tuple(profile))


def _example(item: ModelInput) -> str:
    """A shape to start from: 1, 4 and 8 for what is dynamic."""
    sizes = item.shape or (None,)
    return ",".join(
        "x".join(str(size if isinstance(size, int) else stand_in) for size in sizes)
        for stand_in in (1, 4, 8)
    )


def _check(item: ModelInput, low: Shape, usual: Shape, high: Shape) -> None:
    given = f"{_text(low)}, {_text(usual)}, {_text(high)}"
    ranks = {len(low), len(usual), len(high)} | (set() if item.shape is None else {len(item.shape)})
    if len(ranks) > 1:
        raise _unfit(item, "The rank does not fit the model", f"given {given}")
    for axis, (a, b, c) in enumerate(zip(low, usual, high, strict=True)):
        size = None if item.shape is None else item.shape[axis]
        if isinstance(size, int) and {a, b, c} != {size}:
            raise _unfit(item, f"Dimension {axis} is {size} in the model", f"given {given}")
        if not a <= b <= c:
            raise _unfit(item, f"Dimension {axis} is not min <= opt <= max", f"{a}, {b}, {c}")
        if b == 0 and size != 0:
            raise _unfit(item, f"Dimension {axis} is empty in the usual shape", f"{a}, {b}, {c}")
        if c > LARGEST or a < 0:
            raise _unfit(item, f"Dimension {axis} is out of range", f"{a}, {b}, {c}")


def _check_names(inputs: Sequence[ModelInput], profile: Sequence[InputRange]) -> None:
    """A name of a dimension is one size, in every input."""
    seen: dict[str, tuple[str, tuple[int, int, int]]] = {}
    for item, ranges in zip(inputs, profile, strict=True):
        for axis, size in enumerate(item.shape or ()):
            if not isinstance(size, str):
                continue
            now = (ranges.min[axis], ranges.opt[axis], ranges.max[axis])
            other, before = seen.setdefault(size, (item.name, now))
            if before != now:
                raise UsageError(
                    f"Dimension {quoted(size)} has two ranges.",
                    found=f"{_range(before)} in input {quoted(other)}, {_range(now)} in "
                    f"{quoted(item.name)}",
                    fix="the model gives both one name, so they are one size: give one range",
                )


def _unfit(item: ModelInput, what: str, found: str) -> UsageError:
    return UsageError(
        f"{what}: input {quoted(item.name)}.", found=f"{found}; the model has {item.text()}",
        fix=_WRITE,
    )  # fmt: skip


def _error(what: str, found: str) -> UsageError:
    return UsageError(what, found=short(found, 200) or "nothing", fix=_WRITE)


def _range(sizes: tuple[int, int, int]) -> str:
    return ",".join(map(str, sizes))


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "a scalar"
