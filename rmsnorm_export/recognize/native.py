"""Nodes that are an RMSNorm by themselves, so that one target's file can become another's."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.native import KINDS, MICROSOFT_DOMAIN, RMS_NORMALIZATION, SKIP_SIMPLIFIED
from rmsnorm_export.op.spec import (
    DOMAIN,
    DOUBLE,
    HALF_TYPES,
    QUANTIZE,
    Kind,
    NormSpec,
    Quantize,
    scaled_by,
)
from rmsnorm_export.recognize.consts import depends_on_caller, standard
from rmsnorm_export.recognize.context import FLOATS, Context
from rmsnorm_export.recognize.facts import Norm
from rmsnorm_export.recognize.match import Match, Quantized, Rotary
from rmsnorm_export.recognize.refusal import Refusal, refuse
from rmsnorm_export.recognize.shape_rules import row_size
from rmsnorm_export.recognize.weights import as_weight


def native(ctx: Context, node: ir.Node) -> None:
    """RMSNormalization, SimplifiedLayerNormalization, SkipSimplifiedLayerNormalization, ours."""
    match = _match(ctx, node)
    if isinstance(match, Refusal):
        ctx.opaque.append((node, match))
    if not isinstance(match, Match):
        return
    if match.quantized is None and match.rotary is None:
        ctx.facts[match.output] = Norm(
            ctx.view(match.x), None, ir.DataType(match.dtype), ir.DataType(match.dtype),
            owner=match, native=match,
        )  # fmt: skip
    ctx.matches[match.output] = match


def _match(ctx: Context, node: ir.Node) -> Match | Refusal | None:
    x = node.inputs[0] if node.inputs else None
    dtype = None if x is None else ctx.types.dtype(x)
    if x is None or dtype not in FLOATS or depends_on_caller(node):
        found = "an attribute of the function's caller" if x is not None else "no input"
        if x is not None and dtype not in FLOATS:
            found = ctx.describe(x)
        return _opaque(ctx, node, "type-unknown", "what the node computes is not known", found)
    if node.domain == DOMAIN and node.op_identifier() in ctx.foreign:
        return None
    if node.domain == MICROSOFT_DOMAIN and _input(node, 3) is not None:
        # Its bias belongs to the sum, not to the norm.
        return _opaque(ctx, node, "sum-bias", "the residual sum has a bias",
                         ctx.describe(_input(node, 3)))  # fmt: skip
    rank = ctx.types.rank(x)
    own_name = node.op_type.removeprefix("Quantized")
    kind = next((k for k in KINDS if own_name.startswith(k)), None)
    own = node.domain == DOMAIN
    spec = _own(node, kind) if own else _standard(node, rank, int(dtype))
    quantized = _quantized(node) if own else None
    unread = own and own_name != node.op_type and quantized is None
    if spec is None or unread:
        return _opaque(
            ctx, node, "native-form", "an attribute or a used second output of the node has no "
            "counterpart", f"attributes {sorted(node.attributes)}, x is {ctx.describe(x)}",
        )  # fmt: skip
    skip, gated = spec.kind == "SkipRMSNorm", spec.kind == "GatedRMSNorm"
    last = len(node.inputs) - (quantized is not None and quantized.scale is not None)
    turned = spec.kind == "RotaryRMSNorm"
    second, scale, bias = (
        _input(node, place) if place is not None and place < last else None
        for place in ((1, 2, 3) if skip or gated else (1, 3, 4) if turned else (None, 1, 2))
    )
    sin = _input(node, 2) if turned else None
    tables = None
    if turned:
        width = None if second is None else ctx.types.static_last(second)
        size = spec.rotary_dim or ctx.types.static_last(x)
        if second is None or sin is None or width is None or size not in (width, 2 * width):
            return _opaque(ctx, node, "tables", "the tables are not known to fit the row",
                             f"{ctx.describe(second)}, x is {ctx.describe(x)}")  # fmt: skip
        tables = Rotary(second, sin, half_table=width != size)
    if scale is not None and node.domain != DOMAIN and ctx.types.dtype(scale) != dtype:
        return _opaque(ctx, node, "scale-type", "the scale is of another type than x",
                         f"{ctx.describe(scale)}, x is {dtype.name}")  # fmt: skip
    if scale is not None:
        # Of ones that are x, too, a cut at x would not know.
        if scale is not x and _ones(ctx, scale):
            scale = None
        elif node.domain != DOMAIN and as_weight(ctx, scale, x, spec.axis, computed=True) is None:
            return _opaque(ctx, node, "scale-shape", "the scale is not one number per feature",
                             ctx.describe(scale))  # fmt: skip
    total = None
    if skip:
        index = 1 if node.domain == DOMAIN else 3
        total = node.outputs[index] if len(node.outputs) > index else None
    return Match(
        spec=spec if gated else spec.canonical(int(dtype)),
        x=x,
        output=node.outputs[0],
        dtype=int(dtype),
        scale=scale,
        offset_scale=scale if spec.scale_offset == 0 else None,
        bias=bias,
        residual=second if skip else None,
        gate=second if gated else None,
        sum=total,
        n=_row_size(ctx, x, spec),
        rank=rank,
        nodes=(node,),
        narrow=("sum not rounded",)
        if skip and node.domain != DOMAIN and dtype in HALF_TYPES
        else (),
        opaque_scale=not all(
            v is None or v.is_initializer() or v.is_graph_input() for v in (scale, bias)
        ),
        native=node.op_type if node.domain != DOMAIN else f"{DOMAIN}.{spec.kind}",
        quantized=quantized,
        rotary=tables,
        scope=ctx.scope,
    )


def _quantized(node: ir.Node) -> Quantized | None:
    """How a node of this package makes codes of its norm."""
    given = node.attributes.get_string(QUANTIZE, "")
    how: Quantize | None = next((known for known in get_args(Quantize) if known == given), None)
    if how is None:
        return None
    if scaled_by(how) != "tensor":
        return Quantized(how, scales=node.outputs[-1])
    return Quantized(how, scale=node.inputs[-1])


def _opaque(ctx: Context, node: ir.Node, reason: str, message: str, found: str) -> Refusal:
    return refuse(node, reason, message, found, "the node is left as it is", ctx.scope)


def _ones(ctx: Context, value: ir.Value) -> bool:
    """Ones of the shape of x: what exporters write for a norm without a weight."""
    node = value.producer()
    if node is None or standard(node) not in ("ConstantOfShape", "Expand"):
        return False
    if node.op_type == "Expand":
        return ctx.constants.scalar(node.inputs[0]) == 1.0
    fill = node.attributes.get("value")
    return fill is not None and float(fill.as_tensor().numpy().reshape(-1)[0]) == 1.0


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _row_size(ctx: Context, x: ir.Value, spec: NormSpec) -> int | None:
    dims = ctx.types.shape(x)
    if dims is None and spec.axis == -1:
        return ctx.types.static_last(x)
    return row_size(dims, spec.axis, spec.last_axis)


def _own(node: ir.Node, kind: Kind | None) -> NormSpec | None:
    attributes: dict[str, Any] = {
        # A file holds a float as float32.
        name: float(np.float32(a.value)) if a.type == ir.AttributeType.FLOAT else a.value
        for name, a in node.attributes.items()
    }
    try:
        return None if kind is None else NormSpec.from_attributes(kind, attributes)
    except (TypeError, ValueError):
        return None


def _standard(node: ir.Node, rank: int | None, dtype: int) -> NormSpec | None:
    attributes = node.attributes
    skip = node.op_type == SKIP_SIMPLIFIED
    axis = attributes.get_int("axis", -1)
    if axis >= 0:
        if rank is None or axis >= rank:
            return None
        axis -= rank
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1 : 3 if skip else None]):
        return None
    stash = attributes.get_int("stash_type", 1)
    if node.op_type != RMS_NORMALIZATION and dtype == DOUBLE:
        # ONNX Runtime's kernels compute in float64 for float64, whatever stash_type says.
        stash = DOUBLE
    try:
        return NormSpec(
            kind="SkipRMSNorm" if skip else "RMSNorm",
            epsilon=float(np.float32(attributes.get_float("epsilon", 1e-12 if skip else 1e-5))),
            axis=axis,
            stash_type=stash,
            # ONNX Runtime's own operators scale in float32 and round once.
            scale_before_cast=node.op_type != RMS_NORMALIZATION and dtype in HALF_TYPES,
        )
    except ValueError:
        return None
