"""Types and shapes of the outputs of operators, most of them not ONNX's, by the rows of a table.

``contrib.json`` has them by domain: operators, and alternatives of what their outputs have of their
inputs, of which the first that fits says the shape.

    alternative = { NAME "=" number } input { "," input } "->" output { ";" output }
    input       = "" (not looked at) | "-" (absent) | ["..."] { letter }
    output      = "" (unknown) | dims ":" type | dims    without a type: that of input 0
    type        = source { "/" source }              input, attribute or NAME; the first known

A letter is a dimension, "..." any number of them, broadcast where several inputs have them. A
name is an integer attribute, of several integers the last; sizes may be computed from both.
Sources: ``docs/ContribOperators.md`` of ONNX Runtime 1.31, the exporters of NVIDIA ModelOpt, and
the parser of TensorRT. What is not there, ``ai.onnx.contrib`` among it, is not known.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import operator
import re
from importlib import resources

import msgspec
import onnx_ir as ir

from rmsnorm_export.recognize.shape_rules import Call, Dims, Info, broadcast
from rmsnorm_export.recognize.shape_values import Dim

_GUARD = re.compile(r"(\w+)=(\w+)\s+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ARITHMETIC = {ast.Add: operator.add, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


@dataclasses.dataclass(frozen=True, slots=True)
class _Shapes:
    """An alternative of a row: what has to hold, the inputs, and the outputs' dimensions."""

    guards: tuple[tuple[str, str], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Outputs:
    """What the outputs of an operator have of its inputs; called as a rule."""

    alternatives: tuple[_Shapes, ...]
    types: tuple[str, ...]

    def __call__(self, call: Call) -> Info:
        """Return the type and dimensions of an output; unknown where the node does not say it."""
        if call.index >= len(self.types):
            return (None, None)
        fitting = (_dims(shapes, call) for shapes in self.alternatives)
        dims = next((each for each in fitting if each is not None), None)
        return (_dtype(self.types[call.index], call), dims)


ROWS = msgspec.json.decode(resources.files(__package__).joinpath("contrib.json").read_bytes())
_TEXTS = {
    (domain, name): tuple(row["outputs"])
    for domain, rows in ROWS.items()
    for row in rows
    for name in row["operators"]
}


def rule_of(domain: str, op_type: str) -> _Outputs | None:
    """Return the row of an operator; None where the table has none."""
    texts = _TEXTS.get((domain, op_type))
    return None if texts is None else _read(texts)


@functools.cache
def _read(texts: tuple[str, ...]) -> _Outputs:
    alternatives: list[_Shapes] = []
    types: tuple[str, ...] = ()
    for alternative in texts:
        left, _, right = alternative.partition("->")
        guards = tuple((m[1], m[2]) for m in _GUARD.finditer(left))
        inputs = tuple(part.strip() for part in _GUARD.sub("", left).split(","))
        parts = [part.strip().partition(":") for part in right.split(";")]
        types = types or tuple((of or "0") if dims or of else "" for dims, _, of in parts)
        alternatives.append(_Shapes(guards, inputs, tuple(dims for dims, _, _ in parts)))
    return _Outputs(tuple(alternatives), types)


def _dtype(text: str, call: Call) -> ir.DataType | None:
    """Return the first type that is known; one by name stands for inputs that are absent."""
    present = False
    for source in text.split("/") if text else ():
        if source.isdigit():
            dtype, present = _input(call, int(source))[0], present or not _absent(call, int(source))
        elif source.isupper():
            dtype = None if present else ir.DataType[source]
        else:
            dtype = ir.DataType(_attribute(call.node, source) or 0) or None
        if dtype is not None:
            return dtype
    return None


def _input(call: Call, index: int) -> Info:
    return call.inputs[index] if index < len(call.inputs) else (None, None)


def _absent(call: Call, index: int) -> bool:
    return index >= len(call.node.inputs) or call.node.inputs[index] is None


def _attribute(node: ir.Node, name: str) -> int | None:
    """An integer, or the last of several."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return None
    if attribute.type == ir.AttributeType.INTS:
        return int(attribute.as_ints()[-1])
    return int(attribute.as_int())


def _dims(shapes: _Shapes, call: Call) -> Dims:
    """Return the dimensions of the output; None where the alternative does not fit the node."""
    holds = all(_holds(call, name, value) for name, value in shapes.guards)
    bound = _bound(shapes.inputs, call) if holds else None
    if bound is None or not shapes.outputs[call.index]:
        return None
    letters, front = bound
    sizes: list[Dim] = []
    for term in shapes.outputs[call.index].split():
        if term == "...":
            if front is None:
                return None
            sizes += front
            continue
        named = {name: letters[name] if name in letters else _attribute(call.node, name)
                 for name in _NAME.findall(term)}  # fmt: skip
        if any(name not in letters and size is None for name, size in named.items()):
            return None  # the node does not have the attribute
        sizes.append(_size(ast.parse(term, mode="eval").body, named))
    return tuple(sizes)


def _holds(call: Call, name: str, value: str) -> bool:
    if name.isdigit():
        dtype = _input(call, int(name))[0]
        return dtype is not None and dtype.name == value
    return (_attribute(call.node, name) or 0) == int(value)


def _bound(patterns: tuple[str, ...], call: Call) -> tuple[dict[str, Dim], Dims] | None:
    """Return what the letters and the dots of the inputs stand for; None where one does not fit."""
    letters: dict[str, Dim] = {}
    ellipses: list[Dims] = []
    for index, pattern in enumerate(patterns):
        if pattern == "-" and not _absent(call, index):
            return None
        if pattern in ("", "-"):
            continue
        dims, names = _input(call, index)[1], pattern.removeprefix("...").split()
        free = -1 if dims is None else len(dims) - len(names)
        if dims is None or free < 0 or (free and not pattern.startswith("...")):
            return None
        if pattern.startswith("..."):
            ellipses.append(dims[:free])
        letters = dict(zip(names, dims[free:], strict=True)) | letters
    return letters, broadcast(ellipses)


def _size(term: ast.expr, named: dict[str, Dim]) -> Dim:
    """Compute a size; None where it is no number, or a quotient is none."""
    if isinstance(term, ast.Name):
        return named[term.id]
    if isinstance(term, ast.Constant):
        return int(term.value)  # type: ignore[arg-type]
    assert isinstance(term, ast.BinOp)
    left, right = _size(term.left, named), _size(term.right, named)
    if not isinstance(left, int) or not isinstance(right, int):
        return None
    if isinstance(term.op, ast.FloorDiv) and (right <= 0 or left % right):
        return None
    result: int = _ARITHMETIC[type(term.op)](left, right)
    return result
