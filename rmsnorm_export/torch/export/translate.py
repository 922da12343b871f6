"""From PyTorch operators to ONNX nodes: ours, and ATen's RMSNorm at every opset.

A translated norm is first one node of this package's domain with all attributes on it, then
(`spell_out`) standard ONNX operators in the rounding order of its spec. So an exported model is
plain ONNX, and the recogniser treats norms that were written by hand and norms that were an
operator alike: both get their residual and gate, and both are what a proof compares with.

``torch.nn.RMSNorm`` scales in float32 and rounds once (``scale_before_cast``). PyTorch's own
translation, from opset 23 on, is RMSNormalization, which rounds before it scales; it also takes
float32's epsilon for a float64 norm without one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Optional, get_args

import onnx
import onnx_ir as ir
import torch
from onnxscript import opset18, values

from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import body_key
from rmsnorm_export.op.spec import DOMAIN, DOUBLE, FLOAT, OPSET_VERSION, Kind, NormSpec
from rmsnorm_export.torch.dtypes import TORCH_TYPES
from rmsnorm_export.torch.operator import library  # noqa: F401 (registers the operators)
from rmsnorm_export.torch.operator.plan import NAMES, OPERANDS, OPTIONAL


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the ``custom_translation_table`` for ``torch.onnx.export(dynamo=True)``."""
    ours = torch.ops.rmsnorm_export
    table = {getattr(ours, name).default: translation(kind) for kind, name in NAMES.items()}
    table[torch.ops.aten.rms_norm.default] = _aten_rms_norm
    return table


def spell_out(model: ir.Model) -> None:
    """Give every node of this package's domain a function body, to be inlined.

    Each node gets a function of its own, exactly that of its spec. The model is changed; ONNX IR's
    inliner then puts the body in the node's place and hands it the node's metadata.
    """
    opset = model.opset_imports[""]
    count = 0
    inside = (node for function in model.functions.values() for node in function.all_nodes())
    for node in [*model.graph.all_nodes(), *inside]:
        if node.domain != DOMAIN or node.op_type not in get_args(Kind):
            continue
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        spec = NormSpec.from_attributes(node.op_type, attributes)  # type: ignore[arg-type]
        x, *_ = node.inputs
        index_of = OPERANDS[spec.kind].index
        dtype, scale, bias = (_operand_type(node, index_of(n)) for n in ("x", "scale", "bias"))
        assert x is not None
        assert dtype is not None
        key = body_key(
            spec,
            dtype=dtype,
            scale_dtype=scale,
            bias_dtype=bias,
            opset=opset,
            **_table_facts(node, spec),
        )
        if key.casts or key.table_dtype:
            # Cast, not CastLike: constant folding would replace that by a node without metadata.
            key = dataclasses.replace(key, dtype=dtype)
        count += 1
        name = f"{spec.kind}_{count}"
        node.op_type = name
        function = build_function(name, key, opset)
        model.functions[function.identifier()] = function


def _table_facts(node: ir.Node, spec: NormSpec) -> dict[str, Any]:
    """Return what a body depends on of the tables of a rotary embedding."""
    if spec.kind != "RotaryRMSNorm":
        return {}
    x, cos, *_ = node.inputs
    if x is None or x.shape is None or cos is None or cos.shape is None:
        raise AssertionError(f"{node.name} has an input of unknown shape")
    full = spec.rotary_dim or x.shape[-1]
    return {"table_dtype": _operand_type(node, 1), "half_table": cos.shape[-1] != full}


def _operand_type(node: ir.Node, index: int) -> int | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return None
    if value.dtype is None:
        raise AssertionError(f"{node.name} has an input of unknown type")
    return int(value.dtype)


@functools.cache
def _operator(kind: Kind) -> values.Op:
    """Return the operator as the exporter makes nodes of it; any operand is of any type."""
    schema = onnx.defs.OpSchema
    options = schema.FormalParameterOption
    outputs = ("y", "sum") if kind == "SkipRMSNorm" else ("y",)
    parameters = [
        schema.FormalParameter(
            name, f"T_{name}", param_option=options.Optional if name in OPTIONAL else options.Single
        )
        for name in (*OPERANDS[kind], *outputs)
    ]
    types = [f"tensor({name})" for name in ("float", "float16", "double", "bfloat16")]
    own = schema(
        kind,
        DOMAIN,
        OPSET_VERSION,
        inputs=parameters[: -len(outputs)],
        outputs=parameters[-len(outputs) :],
        type_constraints=[(parameter.type_str, types, "") for parameter in parameters],
        attributes=[
            schema.Attribute(name, onnx.helper.make_attribute(name, value))
            for name, value in NormSpec(kind=kind).attributes().items()
        ],
    )
    return values.Op(values.Opset(DOMAIN, OPSET_VERSION), kind, own)


def _emit(spec: NormSpec, *operands: Any) -> Any:
    x, *others, scale, bias = operands
    if scale is None and bias is not None:
        # The inputs of a body are positional: a scale of one goes with a bias.
        op: Any = opset18
        scale = op.CastLike(op.Constant(value_floats=[1.0]), x)
        scale.dtype = x.dtype
    return _operator(spec.kind)(x, *others, scale, bias, **spec.written())


def translation(kind: Kind) -> Callable[..., Any]:
    """Return the function that translates a call of the operator ``kind``."""
    names = OPERANDS[kind]

    def translate(*operands: Any, **more: Any) -> Any:
        rest = [more.pop(name, None) for name in names[len(operands) :]]
        return _emit(NormSpec(kind=kind, **more), *operands, *rest)

    translate.__name__ = NAMES[kind]
    return translate


# The exporter's signature reader knows Optional, not the newer spelling.
def _aten_rms_norm(
    x: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    eps: Optional[float] = None,  # noqa: UP045
) -> Any:
    wide = DOUBLE if x.dtype == ir.DataType.DOUBLE else FLOAT
    spec = NormSpec(
        epsilon=torch.finfo(TORCH_TYPES[wide]).eps if eps is None else eps,
        axis=-len(normalized_shape),
        stash_type=wide,
        scale_before_cast=True,
    )
    return _emit(spec, x, weight, None)
