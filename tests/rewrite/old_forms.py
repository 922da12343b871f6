"""ONNX's own tests of single operators, as models of every opset that has the operator.

An input that an older version has as an attribute becomes one. Small integers are constants, for
the version converter makes attributes of them and inputs of attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx.parser
from onnx import defs, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.reference.ops import op_pool_common

from tests.tools.tables import table

FIRST = 7
"""Oldest opset: ONNX Runtime promises none before it."""

_SMALL = 64
_CONSTANTS = ("Clip", "Dropout", "OneHot", "Pad", "Resize", "Upsample")
"""Operators of which every operand but the first is a constant, as exporters write them."""

_MORE: dict[str, str] = table(__file__)
"""Operators whose tests in ONNX show little of older versions -> nodes that read x."""


@functools.cache
def versions(operator: str) -> tuple[int, ...]:
    """Return the opsets that changed an operator of the default domain."""
    schemas = (s for s in defs.get_all_schemas_with_history() if s.domain == "")
    return tuple(sorted(s.since_version for s in schemas if s.name == operator))


def since(operator: str, opset: int) -> int:
    """Return the version of an operator at an opset."""
    return max((version for version in versions(operator) if version <= opset), default=0)


def old_models(operator: str) -> Iterator[tuple[str, int, onnx.ModelProto, dict[str, Any]]]:
    """Yield name, opset, model and inputs, at each opset that changed the operator."""
    starts = sorted({max(FIRST, version) for version in versions(operator)})
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(1, 4, 2, 3)
    for opset in starts:
        body = _MORE.get(operator)
        if body and (model := _written(body, opset)) is not None:
            yield f"{operator} here", opset, model, {"x": x}
        for name, newest, arrays in _cases().get(operator, ()):
            if older := _older(newest, arrays, opset):
                yield name, opset, *older


@functools.cache
def _cases() -> dict[str, list[tuple[str, onnx.ModelProto, list[Any]]]]:
    """Return ONNX's tests of one node, by operator."""
    cases: dict[str, list[tuple[str, onnx.ModelProto, list[Any]]]] = {}
    for name, model, arrays in onnx_tests():
        nodes = model.graph.node
        if arrays and len(nodes) == 1 and not nodes[0].domain and not model.functions:
            cases.setdefault(nodes[0].op_type, []).append((name, model, arrays))
    return cases


def onnx_tests() -> Iterator[tuple[str, onnx.ModelProto, list[Any]]]:
    """Yield name, model and inputs of ONNX's own tests whose inputs are arrays.

    Of pools, which take most of the time, no outputs are computed: nobody reads those of a test.
    """
    pooled = mock.patch.object(op_pool_common, "pool", _zeros)
    with np.errstate(all="ignore"), pooled:
        collected = collect_testcases(None)
    for case in collected:
        data = () if case.model is None or not case.data_sets else case.data_sets[0]
        if data and all(isinstance(array, np.ndarray) for array in data[0]):
            yield case.name, case.model, list(data[0])


def _zeros(x: Any, shape: Any, _kernel: Any, _strides: Any, out: Any, *_: Any, **__: Any) -> Any:
    return np.zeros((*shape[:2], *out), x.dtype)


def _written(body: str, opset: int) -> onnx.ModelProto | None:
    """Return a model of these nodes; None where they are not of the opset."""
    ends = ", ".join(f"float {name}" for name in "yzvw" if f"{name} =" in body)
    ends = ends or "float y"
    head = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[1,4,2,3] x) => ({ends})'
    try:
        model = onnx.parser.parse_model(f"{head} {{ {body} }}")
        for value in model.graph.output:
            value.ClearField("type")
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.parser.ParseError, onnx.shape_inference.InferenceError):
        return None


def _older(
    model: onnx.ModelProto, arrays: list[Any], opset: int
) -> tuple[onnx.ModelProto, dict[str, Any]] | None:
    """Return a test at an opset; None where the operator is not written so there."""
    (node,) = model.graph.node
    newest = max(entry.version for entry in model.opset_import if not entry.domain)
    new, old = defs.get_schema(node.op_type, newest), defs.get_schema(node.op_type, opset)
    given = dict(zip((value.name for value in model.graph.input), arrays, strict=False))
    attributes = {a.name: a for a in node.attribute if not _is_default(a, new)}
    inputs: list[str] = [*node.input]
    formal = [value.name for value in old.inputs]
    if old.deprecated:
        return None
    if not formal or old.inputs[-1].option != defs.OpSchema.FormalParameterOption.Variadic:
        inputs = [""] * len(formal)
        for index, name in enumerate(node.input):
            role = new.inputs[min(index, len(new.inputs) - 1)].name
            if name and role in old.attributes and name in given:
                kind = int(old.attributes[role].type)
                attributes[role] = helper.make_attribute(role, given[name].tolist(), attr_type=kind)
            elif name and (role in formal or (len(formal) == len(new.inputs))):
                inputs[formal.index(role) if role in formal else index] = name
            elif name:
                return None
    if not attributes.keys() <= old.attributes.keys():
        return None
    while inputs and not inputs[-1]:
        inputs.pop()
    other = onnx.NodeProto(op_type=node.op_type, input=inputs, output=node.output)
    other.attribute.extend(attributes.values())
    stored = {
        name for index, name in enumerate(inputs)
        if index and name in given and (node.op_type in _CONSTANTS or _is_small(given[name]))
    }  # fmt: skip
    graph = helper.make_graph(
        [other],
        "old",
        [value for value in model.graph.input if value.name in {*inputs} - stored],
        model.graph.output,
        [numpy_helper.from_array(given[name], name) for name in sorted(stored)],
    )
    imports = [helper.make_opsetid("", opset)]
    feeds = {name: array for name, array in given.items() if name in {*inputs} - stored}
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def _is_small(array: np.ndarray) -> bool:
    return array.dtype == np.int64 and array.size <= _SMALL


def _is_default(attribute: onnx.AttributeProto, schema: defs.OpSchema) -> bool:
    default = schema.attributes[attribute.name].default_value
    return bool(default.name) and default == attribute
