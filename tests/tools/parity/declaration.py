"""What an exported file declares: its nodes evaluated with every rounding step in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import DOMAIN, NormSpec
from rmsnorm_export.proof.operators import kernel_of

_FIELDS = {name: type(value) for name, value in dataclasses.asdict(NormSpec()).items()}


def spec_of(node: ir.Node) -> NormSpec:
    """The attributes of a node of this package's domain."""
    given: dict[str, Any] = {
        name: kind(node.attributes[name].value)
        for name, kind in _FIELDS.items()
        if name in node.attributes
    }
    return NormSpec(**{**given, "kind": node.op_type})


def norm_node(model: ir.Model) -> ir.Node:
    """The one norm of a model.

    Raises:
        ValueError: none, or several.
    """
    (node,) = (node for node in model.graph if node.domain == DOMAIN)
    return node


def evaluate_file(
    model: ir.Model,
    feeds: Mapping[str, Array],
    norm: Callable[[NormSpec, dict[str, Array]], tuple[Array, ...]],
) -> tuple[Array, ...]:
    """Outputs of a portable model.

    Args:
        model: one norm, and elementwise operators around it.
        feeds: by the names of the graph's inputs.
        norm: computes the node, from the spec that it declares and its operands.
    """
    known: dict[ir.Value, Array] = {v: feeds[v.name or ""] for v in model.graph.inputs}
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        known[value] = value.const_value.numpy()
    for node in model.graph:
        inputs = [None if value is None else known[value] for value in node.inputs]
        results = (
            norm(spec_of(node), operands_of(node, inputs))
            if node.domain == DOMAIN
            else _plain(node, inputs)
        )
        known |= dict(zip(node.outputs, results, strict=False))
    return tuple(known[value] for value in model.graph.outputs)


def operands_of(node: ir.Node, inputs: list[Any]) -> dict[str, Any]:
    """What there is for the operands of a norm, by name."""
    names = {
        "RMSNorm": ("x", "weight", "bias"),
        "SkipRMSNorm": ("x", "residual", "weight", "bias"),
        "GatedRMSNorm": ("x", "gate", "weight", "bias"),
    }[node.op_type]
    return {n: v for n, v in zip(names, inputs, strict=False) if v is not None}


def _plain(node: ir.Node, inputs: list[Array | None]) -> tuple[Array, ...]:
    if node.op_type == "Cast":
        assert inputs[0] is not None
        return (inputs[0].astype(ir.DataType(node.attributes["to"].as_int()).numpy()),)
    kernel = kernel_of(node.domain, node.op_type)
    if kernel is None:
        raise ValueError(f"no way to evaluate {node.op_type}")
    found = kernel(inputs, {name: a.value for name, a in node.attributes.items()})
    return tuple(np.asarray(value) for value in found)
