"""Inputs for a whole model: read from a file, or made from the declared types and shapes."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError, NotRunError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import quoted
from rmsnorm_export.recognize.consts import MOVES
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.lengths import Length, lengths, widths
from rmsnorm_export.runtime.metrics import BFLOAT16_DTYPE, is_float
from rmsnorm_export.runtime.sizes import (
    Declared,
    Inputs,
    Shape,
    Signature,
    agree,
    input_shapes,
    shape_text,
)
from rmsnorm_export.system.files import refusals_as
from rmsnorm_export.system.reading import open_regular

Outcome = TypeVar("Outcome")
Limits = Mapping[str, int | Length]
"""Integer input -> its exclusive upper bound, or the number that all its elements are."""

FED = {"bfloat16", *(np.dtype(code).name for code in "efd?bhiqBHIQ")}
"""Names of the types that can be fed."""

# Sizes for symbolic dimensions, to be tried in turn: different ones find more mistakes, equal ones
# fit models whose symbols depend on one another, and a batch of one those that cannot have more.
SIZE_CHOICES: tuple[tuple[int, ...], ...] = ((2, 3, 5, 4, 7), (2,), (1, 3, 5, 4, 7), (1,))

# Most elements of one input that is made: beyond it the declared shape is absurd.
_MAX_ELEMENTS = 2**28

_LOOKS_UP = {"Gather": "axis", "GatherBlockQuantized": "gather_axis"}
"""Operators that read from a table, and their attribute for the axis of the index."""
_TRANSPARENT = ("Cast", "Expand", "Identity", *MOVES)
"""Operators that hand indices on as they are."""


def graph_inputs(model: ir.Model) -> dict[str, Declared]:
    """Return the inputs that are no initializers, which have to be given, by name."""
    needed = (value for value in model.graph.inputs if value.name not in model.graph.initializers)
    declared = {item.name: item for item in map(declared_tensor, needed)}
    fixed = dict(_fixed_sizes(model))
    for name, item in declared.items() if fixed else ():
        shape = item.shape and tuple(fixed.get(size, size) for size in item.shape)
        declared[name] = dataclasses.replace(item, shape=shape)
    return declared


def _fixed_sizes(model: ir.Model) -> Iterator[tuple[Any, int]]:
    """Yield names of dimensions of inputs and the sizes to which the graph fixes them.

    What is joined has its other sizes in common; attention operators fix `widths`, and so does a
    Reshape in front of them.
    """
    for node in model.graph:
        first = node.inputs[0] if node.op_type == "Reshape" else None
        if first is not None and _has_open_sizes(first):
            shapes = [Types(model).shape(value) for value in (first, node.outputs[0])]
            pairs = [*zip(*(shape or () for shape in shapes), strict=False)]
            if all(isinstance(new, int) or new == old for old, new in pairs):
                yield from ((old, new) for old, new in pairs if isinstance(new, int))
        if node.op_type == "Concat" and any(map(_has_open_sizes, node.inputs)):
            yield from _joined_sizes(node, Types(model))
    yield from widths(model)


def _has_open_sizes(value: ir.Value | None) -> bool:
    """Return whether it is an input of the graph with names for more than its batch and length."""
    if value is None or not value.is_graph_input() or value.shape is None:
        return False
    return sum(not isinstance(size, int) for size in value.shape) > 2


def _joined_sizes(node: ir.Node, types: Types) -> Iterator[tuple[Any, int]]:
    """Yield names of dimensions of what a Concat joins, and the sizes that others have there."""
    shapes = [types.shape(value) for value in node.inputs if value is not None]
    known = [dims for dims in shapes if dims is not None]
    axis = node.attributes.get_int("axis", 0) % max(map(len, known), default=1)
    for position, sizes in enumerate(zip(*known, strict=False)):
        numbers = [size for size in sizes if isinstance(size, int)]
        if position != axis and numbers:
            yield from ((size, numbers[0]) for size in sizes if isinstance(size, str))


def declared_tensor(value: ir.Value) -> Declared:
    """Return the declaration of an input or output."""
    shape = value.shape
    sizes = None if shape is None else tuple(s if isinstance(s, int) else s.value for s in shape)
    is_tensor = value.type is None or isinstance(value.type, ir.TensorType)
    own = type(value.type).__name__.removesuffix("Type").lower()  # sequence, optional
    return Declared(value.name or "", type_name_of(value.dtype) if is_tensor else own, sizes)


def type_name_of(dtype: ir.DataType | None) -> str:
    """Name a type as the command line does: ``float32``, not ``FLOAT``."""
    name = "unknown" if dtype is None else dtype.name.lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def numpy_type(name: str, of: str = "a tensor") -> np.dtype[Any]:
    """Return the NumPy type of what is declared as ``name``.

    Raises:
        InputError: there is none here.
    """
    if name not in FED:
        fix = "use a model whose inputs are float, integer or boolean tensors"
        found = f"{of} has the type {name}; only tensors of numbers are fed"
        raise InputError("The model has a type that is not fed.", found=found, fix=fix)
    return np.dtype(name)


_UNPACKED_LEAST, _UNPACKED_RATIO = 1 << 26, 100
"""Bytes that any compressed archive may unpack to, and how many more for each of its own."""


def read_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays of an .npz file by name; nothing in it is executed.

    Raises:
        InputError: the file is missing, is no .npz archive, holds Python objects or a name twice,
            or unpacks to far more than it is.
    """
    fix = "write it with numpy.savez(path, input_name=array, ...)"
    every = (Exception,)  # of NumPy, zipfile, the decompressors and Python's own parser
    with (
        contextlib.ExitStack() as stack,
        refusals_as("The file of inputs cannot be read.", path, fix=fix, also=every),
        open_regular(path) as file,
    ):
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no .npz archive")
        file.seek(0)
        archive = stack.enter_context(np.load(file, allow_pickle=False))
        entries = archive.zip.infolist()  # a single array has none
        unpacked, size = sum(one.file_size for one in entries), os.fstat(file.fileno()).st_size
        if unpacked > _UNPACKED_LEAST + _UNPACKED_RATIO * size:
            raise ValueError(f"{size:,} bytes unpack to {unpacked:,}")
        if len(set(archive.files)) < len(archive.files):
            raise ValueError("two arrays of one name")
        return {name: archive[name] for name in archive.files}


def check_inputs(arrays: Mapping[str, Array], declared: Signature) -> dict[str, Array]:
    """Return the arrays in the declared types.

    bfloat16 has no type of its own in .npz files: two-byte voids and uint16 are taken as its bits.

    Raises:
        InputError: a name is missing or unknown, or a type, rank or fixed size differs.
    """
    if declared.keys() != arrays.keys():
        found = ", ".join(map(repr, sorted(arrays))) or "none"
        fix = f"give exactly {', '.join(map(repr, sorted(declared)))}"
        raise InputError("The given inputs are not those of the model.", found=found, fix=fix)
    checked = {}
    for name, item in declared.items():
        array = np.asarray(arrays[name])
        if item.dtype == "bfloat16" and array.dtype in (np.dtype("V2"), np.dtype(np.uint16)):
            array = np.ascontiguousarray(array).view(BFLOAT16_DTYPE)
        shape = array.shape if item.shape is None else item.shape
        if str(array.dtype) != item.dtype or not agree(shape, array.shape):
            own = f"{quoted(name)} is {array.dtype} {list(array.shape)}"
            found = f"{own}, the model takes {item.text()}"
            fix = "give an array of the declared type and shape"
            raise InputError("A given input has the wrong type or shape.", found=found, fix=fix)
        checked[name] = array
    return checked


def in_types_of(declared: Signature, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs that a model takes, floats in the types that it declares."""
    own = {}
    for name, item in declared.items():
        array, dtype = feeds[name], numpy_type(item.dtype, f"its input {name!r}")
        with np.errstate(over="ignore"):
            own[name] = array.astype(dtype) if is_float(array.dtype) and is_float(dtype) else array
    return own


def first_run(
    candidates: Iterable[dict[str, Array]], run: Callable[[dict[str, Array]], Outcome]
) -> tuple[dict[str, Array], Outcome]:
    """Return the first inputs that a model takes, and the outcome.

    Raises:
        NotRunError: it is not run at all.
        VerificationError: it takes none of them; why not the first.
    """
    failures = []
    for feeds in candidates:
        try:
            return feeds, run(feeds)
        except NotRunError:
            raise
        except VerificationError as error:
            failures.append(error)
    raise failures[0]


def make_inputs(
    declared: Signature, limits: Limits, shapes: Mapping[str, Shape], *, seed: int
) -> dict[str, Array]:
    """Make random inputs: normal floats, indices below their limit, ones for other integers.

    Ones are masks and positions; numbers of tokens are those of the shapes; booleans are True.

    Args:
        declared: inputs of the model.
        limits: see ``index_limits``.
        shapes: of every input.
        seed: of the random numbers.

    Raises:
        InputError: a shape is absurd.
    """
    rng, feeds = np.random.default_rng(seed), {}
    for name, item in declared.items():
        shape = shapes[name]
        if math.prod(shape) > _MAX_ELEMENTS:
            found = f"{item.text()}: {shape_text(shape)}"
            fix = "give smaller sizes with --shapes, or the inputs themselves"
            raise InputError("The shape of an input is too large to try.", found=found, fix=fix)
        dtype, limit = numpy_type(item.dtype, f"its input {name!r}"), limits.get(name)
        if is_float(dtype):
            feeds[name] = rng.standard_normal(shape).astype(dtype)
        elif isinstance(limit, Length):
            feeds[name] = np.full(shape, limit.of(shapes), dtype)
        elif dtype.kind in "iu" and limit is not None:
            feeds[name] = rng.integers(0, min(limit, np.iinfo(dtype).max), shape).astype(dtype)
        else:
            feeds[name] = np.ones(shape, dtype)
    return feeds


def input_candidates(
    declared: Signature | None, limits: Limits, inputs: Inputs | None, seed: int = 0, **sizes: Any
) -> tuple[Callable[[], Iterable[dict[str, Array]]], str]:
    """Return a function that makes inputs to try in turn, and their origin in words.

    Args:
        declared: inputs of the model; None: not known, and given arrays are not checked.
        limits: see ``index_limits``.
        inputs: arrays, or a file of them; None: random ones of some sizes.
        seed: of the random numbers.
        **sizes: of ``input_shapes``.

    Raises:
        InputError: those given do not fit the model.
    """
    if inputs is not None:
        given = inputs if isinstance(inputs, Mapping) else read_npz(inputs)
        arrays = dict(given) if declared is None else check_inputs(given, declared)
        source = "given arrays" if isinstance(inputs, Mapping) else os.fspath(inputs)
        return lambda: [arrays], source

    def random() -> Iterator[dict[str, Array]]:
        for choice in SIZE_CHOICES:
            shapes = input_shapes(declared or {}, **sizes, sizes=choice)
            yield make_inputs(declared or {}, limits, shapes, seed=seed)

    return random, f"random, seed {seed}"


Sample = tuple[Callable[[], Iterable[dict[str, Array]]], str]
"""Makes inputs of a run, to be tried in turn; and their origin in words."""

_RANDOM_RUNS = 2


def sample_inputs(
    model: ir.Model, given: Sequence[Inputs], seed: int, **sizes: Any
) -> Iterator[Sample]:
    """Yield the inputs of each of several runs: those that are given, or random ones.

    Args:
        model: that takes them.
        given: arrays, or files of them.
        seed: of the first random ones.
        **sizes: of ``input_shapes``.

    Raises:
        InputError: those that are given do not fit the model.
    """
    declared, limits = graph_inputs(model), index_limits(model)
    for inputs in given:
        yield input_candidates(declared, limits, inputs)
    for number in range(0 if given else _RANDOM_RUNS):
        candidates, _ = input_candidates(declared, limits, None, seed + number, **sizes)
        yield candidates, f"random, seeds from {seed}"


def index_limits(model: ir.Model) -> Limits:
    """Map integer inputs that index tables of known length to the length of the shortest.

    Those that count tokens are mapped to how many there are.
    """
    tables = {value.name or "": list(_table_lengths(value)) for value in model.graph.inputs}
    limits = {name: max(1, min(listed)) for name, listed in tables.items() if listed}
    return {**limits, **lengths(model)}


def _table_lengths(value: ir.Value) -> Iterator[int]:
    pending, seen = [value], {value}
    while pending:
        for node, index in pending.pop().uses():
            table = node.inputs[0]
            if node.op_type in _LOOKS_UP and index == 1 and table is not None:
                shape = (table if table.const_value is None else table.const_value).shape or ()
                axis = node.attributes.get(_LOOKS_UP[node.op_type])
                position = 0 if axis is None or axis.is_ref() else axis.as_int()
                length = shape[position] if -len(shape) <= position < len(shape) else None
                if isinstance(length, int):
                    yield length
            elif node.op_type in _TRANSPARENT and index == 0:
                fresh = [out for out in node.outputs if out not in seen]
                seen.update(fresh)
                pending.extend(fresh)
