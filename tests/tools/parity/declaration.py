"""What an exported file declares: its nodes evaluated with every rounding step in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import DOMAIN, NormSpec
from rmsnorm_export.proof.operators import kernel_of, run_reference

Norm = Callable[[NormSpec, dict[str, Array]], tuple[Array, ...]]
"""Computes a node, from the spec that it declares and its operands by name."""


def spec_of(node: ir.Node) -> NormSpec:
    """Return the attributes of a node of this package's domain."""
    kind: Any = node.op_type
    return NormSpec.from_attributes(kind, {n: a.value for n, a in node.attributes.items()})


def operands_of(node: ir.Node, inputs: list[Any]) -> dict[str, Any]:
    """Return the operands of a norm that there are, by name."""
    second = {"SkipRMSNorm": ["residual"], "GatedRMSNorm": ["gate"]}.get(node.op_type, [])
    pairs = zip(["x", *second, "weight", "bias"], inputs, strict=False)
    return {name: value for name, value in pairs if value is not None}


def evaluate_file(model: ir.Model, feeds: Mapping[str, Array], norm: Norm) -> tuple[Array, ...]:
    """Return the outputs of a portable model: one norm, and elementwise operators around it."""
    values: dict[ir.Value | None, Array | None] = {None: None}
    values |= {value: feeds[value.name or ""] for value in model.graph.inputs}
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        values[value] = value.const_value.numpy()
    for node in model.graph:
        inputs = [values[value] for value in node.inputs]
        if node.domain == DOMAIN:
            results = norm(spec_of(node), operands_of(node, inputs))
        else:
            results = _plain(node, inputs)
        values |= dict(zip(node.outputs, results, strict=False))
    return tuple(np.asarray(values[value]) for value in model.graph.outputs)


def _plain(node: ir.Node, inputs: list[Any]) -> tuple[Array, ...]:
    if node.op_type == "Cast":
        return (inputs[0].astype(ir.DataType(node.attributes["to"].as_int()).numpy()),)
    if (kernel := kernel_of(node.domain, node.op_type)) is not None:
        results = kernel(inputs, {name: a.value for name, a in node.attributes.items()})
        return tuple(np.asarray(value) for value in results)
    named = {v.name or "": array for v, array in zip(node.inputs, inputs, strict=True) if v}
    assert node.graph is not None
    opset = node.graph.opset_imports[""]
    return tuple(run_reference(ir.serde.serialize_node(node), opset, named))
