"""Type and shape of one node's outputs by the inference function of its ONNX schema.

A whole model is never given to ONNX's inference: with data propagation it evaluates tensors of any
size that a file of 400 bytes can ask for, and it walks a function at every call of it. Here it sees
one node, and of its inputs no more than a handful of elements.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from rmsnorm_export.recognize.shape_rules import UNKNOWN, Info, in_int64
from rmsnorm_export.recognize.shape_values import Dim

_MOST_KEPT = 4096
"""Bytes of a node, with elements of its inputs, whose inference is kept for those alike."""

_MOST_BYTES = 1024
"""Of a tensor among the attributes: the node is serialised for the question."""

_NUMBERS_AND_TEXTS = frozenset(
    (ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT, ir.AttributeType.FLOATS,
     ir.AttributeType.STRING, ir.AttributeType.STRINGS)
)  # fmt: skip


def by_schema(
    node: ir.Node, inputs: Sequence[Info], data: Mapping[int, np.ndarray], index: int, opset: int
) -> Info:
    """Type and dimensions of an output of a node of the default domain.

    Args:
        inputs: what is known of its inputs; a type of each that is there is needed.
        data: elements of those that are small constants.
        index: of the output.
        opset: version of the default domain.
    """
    if not all(_may_be_sent(a) for a in node.attributes.values()):
        return UNKNOWN
    proto = onnx.NodeProto(op_type=node.op_type)
    proto.input.extend("" if value is None else f"i{i}" for i, value in enumerate(node.inputs))
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    proto.attribute.extend(ir.serde.serialize_attribute(a) for a in node.attributes.values())
    tensors = (onnx.numpy_helper.from_array(array, f"i{i}") for i, array in data.items())
    messages = tuple(message.SerializeToString() for message in (proto, *tensors))
    is_small = sum(map(len, messages)) <= _MOST_KEPT
    infer = _inferred if is_small else _inferred.__wrapped__
    return infer(messages, tuple(inputs), index, opset)


@functools.lru_cache(maxsize=256)  # the layers of a model are alike
def _inferred(
    messages: tuple[bytes, ...], inputs: tuple[Info, ...], index: int, opset: int
) -> Info:
    """Ask the schema of a node with inputs i0, i1, ... and outputs o0, o1, ...

    ``messages`` has the serialised node, then tensors with the elements of inputs of their names.
    """
    proto = onnx.NodeProto.FromString(messages[0])
    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, "")
    except onnx.defs.SchemaError:
        return UNKNOWN
    names = [*proto.input]
    symbols: dict[str, str] = {}
    types: dict[str, onnx.TypeProto] = {}
    variables = [schema.inputs[min(i, len(schema.inputs) - 1)].type_str for i in range(len(names))]
    bound = {
        variable: dtype for variable, (dtype, _) in zip(variables, inputs, strict=True) if dtype
    }
    for name, variable, (own, dims) in zip(names, variables, inputs, strict=True):
        dtype = own or bound.get(variable)
        if name and dtype is None:
            return UNKNOWN
        if name:
            types[name] = _type_proto(int(dtype or 0), dims, symbols)
    tensors = {tensor.name: tensor for tensor in map(onnx.TensorProto.FromString, messages[1:])}
    try:
        outputs = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, tensors, opset_imports=[onnx.helper.make_opsetid("", opset)]
        )
    except Exception:  # of a node that no runtime takes nothing is known
        return UNKNOWN
    by_name = {name: symbol for symbol, name in symbols.items()}
    return _info(outputs.get(f"o{index}"), by_name)


def _may_be_sent(attribute: ir.Attr) -> bool:
    if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
        return attribute.as_tensor().nbytes <= _MOST_BYTES
    return attribute.type in _NUMBERS_AND_TEXTS and not attribute.is_ref()


def _type_proto(
    dtype: int, dims: tuple[Dim, ...] | None, symbols: dict[str, str]
) -> onnx.TypeProto:
    """Return the type; symbols get names here, for those of a body look like the main graph's."""
    sizes = None if dims is None else [
        symbols.setdefault(d, f"s{len(symbols)}") if isinstance(d, str) else d for d in dims
    ]  # fmt: skip
    return onnx.helper.make_tensor_type_proto(dtype, sizes)


def _info(proto: onnx.TypeProto | None, symbols: Mapping[str, Dim]) -> Info:
    if proto is None or not proto.HasField("tensor_type"):
        return UNKNOWN
    dtype = ir.DataType(proto.tensor_type.elem_type) if proto.tensor_type.elem_type else None
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    if shape is None:
        return (dtype, None)
    dims = (d if isinstance(d, int) else symbols.get(d.value or "") for d in shape)
    return (dtype, in_int64(tuple(dims)))
