"""Inputs for a whole model: read from a file, or made from the declared types and shapes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import first_line
from rmsnorm_export.runtime.input_sizes import (
    Declared,
    InputSizes,
    fill,
    is_fixed,
    size_of,
    sized,
    symbol_of,
)
from rmsnorm_export.runtime.metrics import BFLOAT16_DTYPE, is_float
from rmsnorm_export.runtime.sizes import ONE_POINT, Dims, Shape, Shapes
from rmsnorm_export.system.reading import open_regular

_NUMPY: dict[str, np.dtype[Any]] = {
    **{str(np.dtype(code)): np.dtype(code) for code in "efd?bhiqBHIQ"},
    "bfloat16": BFLOAT16_DTYPE,
    "string": np.dtype(object),
}
"""By the name of a type that can be fed."""

_LONG_NAMES = {"float": "float32", "double": "float64"}
"""What ONNX calls two of them."""

# Sizes for symbolic dimensions, to be tried in turn: different ones find more mistakes, equal ones
# fit models whose symbols depend on one another.
SIZE_CHOICES: tuple[tuple[int, ...], ...] = ((2, 3, 5, 4, 7), (2,), (1,))

# Most elements of one input that is made: beyond it the declared shape is absurd.
_MAX_ELEMENTS = 2**28

# Operators that hand indices on as they are.
_TRANSPARENT = frozenset(
    {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand"}
)


def declared_inputs(session: Any) -> dict[str, Declared]:
    """The inputs that ONNX Runtime asks for, by name.

    Raises:
        InputError: one is not a tensor, or of a type that has no NumPy counterpart here.
    """
    return _fed(
        (Declared(one.name, _onnx_name(one.type[7:-1]), tuple(one.shape or ())), one.type)
        for one in session.get_inputs()  # of the type ``tensor(float)``, say
    )


def graph_inputs(model: ir.Model) -> dict[str, Declared]:
    """The inputs that a graph asks for, by name, without a session.

    Raises:
        InputError: one is not a tensor, or of a type that has no NumPy counterpart here.
    """
    return _fed((declared_tensor(value), value.type) for value in given_inputs(model))


def _fed(inputs: Iterable[tuple[Declared, object]]) -> dict[str, Declared]:
    declared = {}
    for item, of_type in inputs:
        if item.dtype not in _NUMPY:
            raise InputError(
                "The model has an input that cannot be fed.",
                found=f"{item.name!r} of type {of_type}",
                fix="verify a model whose inputs are float, integer, boolean or string tensors",
            )
        declared[item.name] = item
    return declared


def given_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs that are no initializers, which have to be given."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def declared_tensor(value: ir.Value) -> Declared:
    """What the model declares of an input or output."""
    shape = value.shape
    sizes = None if shape is None else tuple(s if isinstance(s, int) else s.value for s in shape)
    dtype = value.dtype if isinstance(value.type, ir.TensorType) else None
    return Declared(value.name or "", type_name_of(dtype), sizes)


def type_name_of(dtype: ir.DataType | None) -> str:
    """As the command line calls types: ``float32``, not ``FLOAT``."""
    return "unknown" if dtype is None else _onnx_name(dtype.name.lower())


def _onnx_name(name: str) -> str:
    return _LONG_NAMES.get(name, name)


def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy type of a tensor that is declared as ``name``.

    Raises:
        InputError: there is none here.
    """
    if name not in _NUMPY:
        raise InputError(
            "A tensor of the model is of a type that cannot be fed.",
            found=name,
            fix="compare models whose inputs are float, integer or boolean tensors",
        )
    return _NUMPY[name]


def array_type(dtype: np.dtype[Any]) -> str:
    """Name of a type of tensor, e.g. ``float16`` or ``string``."""
    return "string" if dtype.kind == "O" else str(dtype)


_UNPACKED_LEAST, _UNPACKED_RATIO = 1 << 26, 100
"""Bytes that any compressed archive may unpack to, and how many more for each of its own."""


def read_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of an .npz file by name; nothing in it is executed.

    Raises:
        InputError: the file is missing, is no .npz archive, or holds Python objects.
    """
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("a single array, not an archive of named ones")
            _check_archive(archive, os.fstat(file.fileno()).st_size)
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # of NumPy, zipfile, the decompressors and Python's own parser
        raise InputError(
            "The file of inputs cannot be read.",
            found=f"{os.fspath(path)}: {first_line(error, otherwise=type(error).__name__)}",
            fix="write it with numpy.savez(path, input_name=array, ...)",
        ) from error


def _check_archive(archive: np.lib.npyio.NpzFile, size: int) -> None:
    """Refuse an archive that holds a name twice, or unpacks to far more than it is."""
    if len(set(archive.files)) < len(archive.files):
        raise ValueError("two arrays of one name")
    assert archive.zip is not None  # it is open
    unpacked = sum(entry.file_size for entry in archive.zip.infolist())
    if unpacked > _UNPACKED_LEAST + _UNPACKED_RATIO * size:
        raise ValueError(f"{size:,} bytes unpack to {unpacked:,}")


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
        if item.dtype == "bfloat16" and array.dtype in (np.dtype("V2"), np.dtype(np.uint16)):
            array = np.ascontiguousarray(array).view(BFLOAT16_DTYPE)
        if item.dtype == "string" and array.dtype.kind in "SU":
            array = array.astype(object)
        if array_type(array.dtype) != item.dtype:
            raise InputError(
                "A given input has the wrong type.",
                found=f"{name!r} is {array.dtype}, the model takes {item.dtype}",
                fix=f"convert it to {item.dtype}",
            )
        sizes = zip(item.shape or (), array.shape, strict=False)
        if (item.shape and array.ndim != len(item.shape)) or any(
            is_fixed(size) and size != actual for size, actual in sizes
        ):
            raise InputError(
                "A given input has the wrong shape.",
                found=f"{name!r} is {array.shape}, the model takes {list(item.shape or ())}",
                fix="give an array of the declared shape",
            )
        checked[name] = array
    return checked


def in_types_of(declared: Mapping[str, Declared], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs that a model takes, floats in the types that it declares."""
    own = {}
    for name, item in declared.items():
        array, dtype = feeds[name], numpy_type(item.dtype)
        with np.errstate(over="ignore"):
            own[name] = array.astype(dtype) if is_float(array.dtype) and is_float(dtype) else array
    return own


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
        shape = list(item.shape or ())
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
                found=f"{name!r}: {list(item.shape or ())}",
                fix="give its sizes with shapes, or the inputs themselves",
            )
        feeds[name] = _random(rng, numpy_type(item.dtype), shape, limits.get(name))
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
