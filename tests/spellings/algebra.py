"""RMSNorms by algebra, and what is none: one step of the ordinary chain by other operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx.parser
from onnx import TensorProto, numpy_helper
from recognize.text_models import feeds

from tests.tools.tables import table

from .case import NUMPY, Case

TABLE: dict[str, Any] = table(__file__)
NORMS, UPCAST, BY_BEHAVIOUR, LEFT_ALONE = (
    TABLE[name] for name in ("followed", "by_logarithms", "by_behaviour", "left_alone")
)


def built(case: Mapping[str, Any], dtype: int = TensorProto.FLOAT) -> Case:
    """The ordinary norm of rows of eight with what a case has of its own (see the table)."""
    steps = "\n".join(case.get(name, step) for name, step in TABLE["steps"].items())
    x = f"T{case.get('row', [2, 3, 8])} x{case.get('given', '')}"
    kind = TensorProto.DataType.Name(dtype).lower()
    stored = (TABLE["constants"] + case.get("stored", "")).replace("T", "double")
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g ({x.replace("T", kind)}) => ({kind} y)'
        f" <{stored}> {{ {steps.replace('TO', str(dtype))} }}"
    )
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.DOUBLE:
            array = numpy_helper.to_array(tensor).astype(NUMPY[dtype])
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    model.graph.output[0].ClearField("type")
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    return Case(model=model, variant="algebra", feeds=feeds(model), norms=0, most=1)
