"""A model of one node of the operator, without its function body: what only kernels can run."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from rmsnorm_export.op.dtypes import Array, element_type
from rmsnorm_export.op.native import operator_name
from rmsnorm_export.op.spec import CODE_TYPES, DOMAIN, FLOAT, QUANTIZE, NormSpec, Quantize


def node_model(
    spec: NormSpec,
    x: Array,
    scale: Array | None,
    bias: Array | None,
    second: Array | None,
    tables: tuple[Array, Array] | None = None,
    quantize: Quantize | None = None,
    step: Array | None = None,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a model of one node, and its inputs.

    Args:
        spec: the norm.
        x, scale, bias: operands of every kind.
        second: residual or gate, of the kinds that have one.
        tables: cos and sin, likewise.
        quantize, step: the node gives codes, of this scale where theirs is given.
    """
    operands: dict[str, Array | None] = {"x": x}
    if second is not None and spec.kind in ("SkipRMSNorm", "GatedRMSNorm"):
        operands["second"] = second
    if tables is not None and spec.kind == "RotaryRMSNorm":
        operands |= {"cos": tables[0], "sin": tables[1]}
    operands |= {"scale": scale, "bias": bias}
    names = [name if array is not None else "" for name, array in operands.items()]
    while not names[-1]:
        names.pop()
    if step is not None:
        operands["step"] = step
        names.append("step")
    feeds = {name: array for name, array in operands.items() if array is not None}
    dtype = element_type(x.dtype)
    outputs = {"y": (dtype, x.shape)}
    if spec.kind == "SkipRMSNorm":
        outputs["sum"] = (dtype, x.shape)
    attributes: dict[str, Any] = dict(spec.attributes())
    if quantize is not None:
        attributes[QUANTIZE] = quantize
        outputs["y"] = (CODE_TYPES[quantize.partition("_")[0]][0], x.shape)
        if step is None:
            outputs["scales"] = (FLOAT, (*x.shape[:-1], 1))
    name = operator_name(spec.kind, quantize)
    node = helper.make_node(name, names, [*outputs], "a norm", domain=DOMAIN, **attributes)
    inputs = {name: (element_type(array.dtype), array.shape) for name, array in feeds.items()}
    ends = ([helper.make_tensor_value_info(k, *v) for k, v in e.items()] for e in (inputs, outputs))
    graph = helper.make_graph([node], "norm", *ends)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds
