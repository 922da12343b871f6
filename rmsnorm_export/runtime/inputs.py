"""Inputs for a whole model: read from an .npz file, or made from the declared types and shapes."""

from __future__ import annotations

import dataclasses
import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.dimensions import Size, fill, is_fixed, size_of, sized, symbol_of
from rmsnorm_export.runtime.input_sizes import InputSizes, declared_text
from rmsnorm_export.runtime.metrics import BFLOAT16_DTYPE, is_float
from rmsnorm_export.runtime.sizes import ONE_POINT, Dims, Shape, Shapes

_TYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(double)": np.dtype(np.float64),
    "tensor(bfloat16)": BFLOAT16_DTYPE,
    "tensor(bool)": np.dtype(np.bool_),
    "tensor(string)": np.dtype(object),
    **{
        f"tensor({sign}int{bits})": np.dtype(f"{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}

# Sizes for symbolic dimensions, to be tried in turn: different ones find more mistakes, equal ones
# fit models whose symbols depend on one another.
SIZE_CHOICES: tuple[tuple[int, ...], ...] = ((2, 3, 5, 4, 7), (2,), (1,))

# Most elements of one input that is made: beyond it the declared shape is absurd.
_MAX_ELEMENTS = 2**28

# Operators that hand indices on as they are.
_TRANSPARENT = frozenset(
    {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """An input of a model: name, NumPy type, sizes (a number, a symbol or None)."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Size, ...]

    def text(self) -> str:
        """``'ids' int64 [batch, 7]``, safe to print."""
        return declared_text(self.name, array_type(self.dtype), self.shape)


def declared_inputs(session: Any) -> dict[str, Declared]:
    """The inputs that ONNX Runtime asks for, by name.

    Raises:
        InputError: one is not a tensor, or of a type that has no NumPy counterpart here.
    """
    declared = {}
    for argument in session.get_inputs():
        if argument.type not in _TYPES:
            raise _cannot_be_fed(argument.name, argument.type)
        shape = tuple(argument.shape or ())
        declared[argument.name] = Declared(argument.name, _TYPES[argument.type], shape)
    return declared


def graph_inputs(model: ir.Model) -> dict[str, Declared]:
    """The inputs that a graph asks for, by name, without a session.

    Raises:
        InputError: one is not a tensor, or of a type that has no NumPy counterpart here.
    """
    declared = {}
    for value in model.graph.inputs:
        name = value.name or ""
        if name in model.graph.initializers:
            continue
        dtype = _of_onnx(value.dtype) if isinstance(value.type, ir.TensorType) else None
        if dtype is None:
            raise _cannot_be_fed(name, value.type)
        sizes = () if value.shape is None else tuple(value.shape)
        shape = tuple(size if isinstance(size, int) else size.value for size in sizes)
        declared[name] = Declared(name, dtype, shape)
    return declared


def _cannot_be_fed(name: str, type_: object) -> InputError:
    return InputError(
        "The model has an input that cannot be fed.",
        found=f"{name!r} of type {type_}",
        fix="verify a model whose inputs are float, integer, boolean or string tensors",
    )


def _of_onnx(dtype: ir.DataType | None) -> np.dtype[Any] | None:
    """The NumPy type of an ONNX type; None without one here."""
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return None
    if dtype == ir.DataType.STRING:
        return np.dtype(object)
    numpy_type = np.dtype(dtype.numpy())
    return numpy_type if numpy_type in _TYPES.values() else None


def array_type(dtype: np.dtype[Any]) -> str:
    """Name of a type of tensor, e.g. ``float16`` or ``string``."""
    return "string" if dtype.kind == "O" else str(dtype)


def read_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of an .npz file by name; nothing in it is executed.

    Raises:
        InputError: the file is missing, is no .npz archive, or holds Python objects.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("a single array, not an archive of named ones")
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, TypeError) as error:
        raise InputError(
            "The file of inputs cannot be read.",
            found=f"{os.fspath(path)}: {error}",
            fix="write it with numpy.savez(path, input_name=array, ...)",
        ) from error


def check_inputs(given: Mapping[str, Array], declared: Mapping[str, Declared]) -> dict[str, Array]:
    """``given`` in the declared types.

    bfloat16 has no type of its own in .npz files: two-byte voids and uint16 are taken as its bits.

    Raises:
        InputError: a name is missing or unknown, or a type, rank or fixed size differs.
    """
    missing = sorted(declared.keys() - given.keys())
    unknown = sorted(given.keys() - declared.keys())
    if missing or unknown:
        raise InputError(
            "The given inputs are not those of the model.",
            found="; ".join(
                f"{label} {', '.join(map(repr, names))}"
                for label, names in (("missing", missing), ("unknown", unknown))
                if names
            ),
            fix=f"give exactly {', '.join(map(repr, sorted(declared)))}",
        )
    checked = {}
    for name, item in declared.items():
        array = np.asarray(given[name])
        if item.dtype == BFLOAT16_DTYPE and array.dtype in (np.dtype("V2"), np.dtype(np.uint16)):
            array = np.ascontiguousarray(array).view(BFLOAT16_DTYPE)
        if item.dtype.kind == "O" and array.dtype.kind in "SU":
            array = array.astype(object)
        if array.dtype != item.dtype:
            raise InputError(
                "A given input has the wrong type.",
                found=f"{name!r} is {array.dtype}, the model takes {array_type(item.dtype)}",
                fix=f"convert it to {array_type(item.dtype)}",
            )
        sizes = zip(item.shape, array.shape, strict=False)
        if (item.shape and array.ndim != len(item.shape)) or any(
            is_fixed(size) and size != actual for size, actual in sizes
        ):
            raise InputError(
                "A given input has the wrong shape.",
                found=f"{name!r} is {array.shape}, the model takes {list(item.shape)}",
                fix="give an array of the declared shape",
            )
        checked[name] = array
    return checked


def input_shapes(
    declared: Mapping[str, Declared],
    shapes: Shapes | None,
    dims: Dims | None = None,
    *,
    usual: Mapping[str, Sequence[int]],
    sizes: Sequence[int],
) -> dict[str, Shape]:
    """A shape for every input: as given, else as names tell it, as usual, or of small sizes.

    Args:
        declared: inputs of the model.
        shapes: of single inputs.
        dims: sizes by name of a dimension.
        usual: shapes of inputs of which nothing else is said.
        sizes: for all that is left, see ``dimensions.fill``.

    Raises:
        UsageError: ``shapes`` or ``dims`` cannot be read or do not fit the model.
    """
    given, known = InputSizes(declared.values(), ONE_POINT).known(shapes or None, dims or None)
    left = {}
    for name, item in declared.items():
        shape = list(item.shape)
        for axis, value in enumerate(usual.get(name, ())[: len(shape)]):
            symbol = symbol_of(shape[axis], axis)
            if size_of(shape[axis], axis, known) is None and isinstance(symbol, str):
                known[symbol] = value
            elif size_of(shape[axis], axis, known) is None:
                shape[axis] = value
        left[name] = shape
    fill(known, left.values(), sizes)
    return {name: given.get(name) or sized(shape, known) or () for name, shape in left.items()}


def make_inputs(
    declared: Mapping[str, Declared],
    limits: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    *,
    seed: int,
) -> dict[str, Array]:
    """Random inputs: floats from the normal distribution, indices below their limit, ones for
    other integers (masks, positions, lengths), True for booleans.

    Args:
        declared: inputs of the model.
        limits: see ``index_limits``.
        shapes: of every input.
        seed: of the random numbers.

    Raises:
        InputError: a shape is absurd.
    """
    rng = np.random.default_rng(seed)
    feeds = {}
    for name, item in declared.items():
        shape = tuple(shapes[name])
        if math.prod(shape) > _MAX_ELEMENTS:
            raise InputError(
                "The declared shape of an input is too large to try.",
                found=f"{name!r}: {list(item.shape)}",
                fix="give its sizes with shapes, or the inputs themselves",
            )
        feeds[name] = _random(rng, item.dtype, shape, limits.get(name))
    return feeds


def index_limits(model: ir.Model) -> dict[str, int]:
    """Integer inputs that index a table of known length: name -> length of the shortest table."""
    limits = {}
    for value in model.graph.inputs:
        lengths = list(_table_lengths(value))
        if lengths and value.name:
            limits[value.name] = max(1, min(lengths))
    return limits


def _table_lengths(value: ir.Value) -> Iterator[int]:
    pending, seen = [value], {value}
    while pending:
        for node, index in pending.pop().uses():
            if node.op_type == "Gather" and index == 1 and node.inputs[0] is not None:
                table = node.inputs[0]
                shape = table.const_value.shape if table.const_value is not None else table.shape
                axis = node.attributes.get("axis")
                position = axis.as_int() if axis is not None and not axis.is_ref() else 0
                if shape is not None and -len(shape) <= position < len(shape):
                    length = shape[position]
                    if isinstance(length, int):
                        yield length
            elif node.op_type in _TRANSPARENT and index == 0:
                fresh = [out for out in node.outputs if out not in seen]
                seen.update(fresh)
                pending.extend(fresh)


def _random(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], limit: int | None
) -> Array:
    if is_float(dtype):
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind in "iu" and limit is not None:
        return rng.integers(0, min(limit, np.iinfo(dtype).max), shape).astype(dtype)
    if dtype.kind == "O":
        return np.full(shape, "a", dtype=object)
    return np.ones(shape, dtype=dtype)
