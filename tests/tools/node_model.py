"""A model of one node of the operator, without its function body: what only kernels can run."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from rmsnorm_export.op.dtypes import Array, element_type
from rmsnorm_export.op.native import operator_name
from rmsnorm_export.op.spec import (
    CODE_TYPES,
    DOMAIN,
    FLOAT,
    QUANTIZE,
    NormSpec,
    Quantize,
)


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
        second: residual or gate.
        tables: cos and sin.
        quantize, step: the node gives codes, of this scale where theirs is given.
    """
    more = {"second": second, **dict(zip(("cos", "sin"), tables or (), strict=False))}
    given = {"x": x, **more, "scale": scale, "bias": bias}
    feeds = {name: array for name, array in given.items() if array is not None}
    places = [name for name in given if name != "second" or second is not None]
    names = [name if name in feeds else "" for name in places]
    while not names[-1]:
        names.pop()
    if step is not None:
        feeds["step"] = step
        names.append("step")
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

    def declared(name: str, array: Array) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, element_type(array.dtype), array.shape)

    graph = helper.make_graph(
        [node],
        "norm",
        [declared(*item) for item in feeds.items()],
        [helper.make_tensor_value_info(name, *of) for name, of in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds
