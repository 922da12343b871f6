"""Nodes that are an RMSNorm by themselves, so that one target's file can become another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op import spec as op
from rmsnorm_export.op.native import (
    BESIDE,
    KINDS,
    MICROSOFT_DOMAIN,
    RMS_NORMALIZATION,
    SKIP_SIMPLIFIED,
)
from rmsnorm_export.recognize.consts import depends_on_caller, producer_of
from rmsnorm_export.recognize.context import FLOATS, Context
from rmsnorm_export.recognize.facts import Candidate, Event, Norm, Radial, Weight
from rmsnorm_export.recognize.match import Match, Quantized, Rotary
from rmsnorm_export.recognize.refusal import Refusal, refuse
from rmsnorm_export.recognize.shape_rules import row_size
from rmsnorm_export.recognize.weights import as_weight, is_weight

_KNOWN = {*op.NormSpec.__dataclass_fields__, op.QUANTIZE, "plugin_version", "plugin_namespace"}
"""The attributes of a node of this package."""


def native(ctx: Context, node: ir.Node) -> None:
    """RMSNormalization, SimplifiedLayerNormalization, SkipSimplifiedLayerNormalization, ours."""
    match = _match(ctx, node)
    if isinstance(match, Refusal):
        ctx.opaque.append(match)
        return
    if match.quantized is None and match.rotary is None and match.beside is None:
        dtype = ir.DataType(match.dtype)
        view = ctx.view(match.x)
        wide = _wide(ctx, node, match)
        ctx.facts[match.output] = Norm(view, None, dtype, dtype, owner=match, wide=wide)
    ctx.matches[match.output] = match


def _wide(ctx: Context, node: ir.Node, match: Match) -> Norm | None:
    """An operator of another package that rounds nothing by itself, and no sum: Casts may."""
    spec, dtype = match.spec, ir.DataType(match.dtype)
    plain = spec.kind == "RMSNorm" and spec.stash_type == match.dtype not in op.HALF_TYPES
    if not plain or node.domain == op.DOMAIN or spec.last_axis != -1 or match.scale is match.x:
        return None
    view, value = ctx.view(match.x), match.offset_scale
    ones = ctx.constants.repeated(value)
    scale = None
    if value is not None and (ones is None or ones.flat[0] != 1):
        scale = Weight(value, value, 0.0, not match.opaque_scale)
    radial = Radial(
        view, Candidate(node, ctx.scope), node.graph, spec.axis, match.n, True, dtype, dtype,
        b=spec.epsilon, rooted=True, inverse=True,
    )  # fmt: skip
    events: tuple[Event, ...] = () if scale is None else (("scale", dtype),)
    return Norm(view, radial, dtype, dtype, events, scale, owner=match)


def _match(ctx: Context, node: ir.Node) -> Match | Refusal:
    def opaque(reason: str, message: str, found: str) -> Refusal:
        return refuse(node, reason, message, found, "the node is left as it is", ctx.scope)

    x, own = node.inputs[0] if node.inputs else None, node.domain == op.DOMAIN
    dtype = None if x is None else ctx.types.dtype(x)
    if x is None or dtype not in FLOATS or depends_on_caller(node):
        found = "an attribute of the caller" if depends_on_caller(node) else ctx.describe(x)
        return opaque("type-unknown", "what the node computes is not known", found)
    beside = None
    if node.domain == MICROSOFT_DOMAIN and any(node.inputs[3:4]):
        # Its bias belongs to the sum, not to the norm.
        beside = opaque("sum-bias", "the residual sum has a bias", ctx.describe(node.inputs[3]))
    second = node.outputs[1 : 3 if node.op_type == SKIP_SIMPLIFIED else None]
    used = [repr(v.name) for v in second if v.uses() or v.is_graph_output()]
    if not own and used:
        beside = opaque("native-form", "a second output of the node is used", ", ".join(used))
    rank, name = ctx.types.rank(x), node.op_type.removeprefix("Quantized")
    spec = _own(node, name) if own else _standard(node, rank, int(dtype))
    quantized = _quantized(node) if own else None
    if spec is None or (own and name != node.op_type and quantized is None):
        return opaque(
            "native-form", "an attribute of the node has no counterpart",
            f"attributes {sorted(node.attributes)}, x is {ctx.describe(x)}",
        )  # fmt: skip
    scaled = quantized is not None and quantized.scale is not None
    names = (*BESIDE.get(spec.kind, ()), "scale", "bias")
    given = [*node.inputs[1 : -1 if scaled else None], *(None,) * 4]
    operands = dict(zip(names, given, strict=False))
    scale, bias, cos = operands["scale"], operands["bias"], operands.get("cos")
    rotary = _rotary_tables(ctx, spec, x, cos, operands.get("sin"))
    if spec.kind == "RotaryRMSNorm" and rotary is None:
        found = f"{ctx.describe(cos)}, x is {ctx.describe(x)}"
        return opaque("tables", "the tables are not known to fit the row", found)
    if scale is not None and not own and ctx.types.dtype(scale) != dtype:
        found = f"{ctx.describe(scale)}, x is {dtype.name}"
        return opaque("scale-type", "the scale is of another type than x", found)
    # Of ones that are x, too, a cut at x would not know.
    if scale is not None and scale is not x and _ones(ctx, scale):
        scale = None
    elif scale is not None and not own and not as_weight(ctx, scale, x, spec.axis, computed=True):
        found = ctx.describe(scale)
        return opaque("scale-shape", "the scale is not one number per feature", found)
    skip = spec.kind == "SkipRMSNorm"
    rounded = own or not skip or dtype not in op.HALF_TYPES
    return Match(
        spec=spec if spec.kind == "GatedRMSNorm" else spec.canonical(int(dtype)),
        x=x,
        output=node.outputs[0],
        dtype=int(dtype),
        scale=scale,
        gain=spec.scale_varies,
        offset_scale=scale if spec.scale_offset == 0 else None,
        bias=bias if own else None,
        residual=operands.get("residual"),
        gate=operands.get("gate"),
        sum=next(iter(node.outputs[1 if own else 3 :]), None) if skip else None,
        n=row_size(ctx.types.shape(x), spec.axis, spec.last_axis),
        rank=rank,
        nodes=(node,),
        narrow=() if rounded else ("sum not rounded",),
        opaque_scale=not all(v is None or is_weight(v, x) for v in (scale, bias)),
        native=f"{op.DOMAIN}.{spec.kind}" if own else node.op_type,
        beside=beside,
        quantized=quantized,
        rotary=rotary,
        scope=ctx.scope,
    )


def _rotary_tables(
    ctx: Context, spec: op.NormSpec, x: ir.Value, cos: ir.Value | None, sin: ir.Value | None
) -> Rotary | None:
    """Return the tables of a rotary embedding; None where they are not known to fit the row."""
    size = spec.rotary_dim or ctx.types.static_last(x)
    width = None if cos is None else ctx.types.static_last(cos)
    if cos is None or sin is None or width is None or size not in (width, 2 * width):
        return None
    return Rotary(cos, sin, half_table=width != size)


def _quantized(node: ir.Node) -> Quantized | None:
    """Return how a node of this package makes codes of its norm."""
    text = node.attributes.get_string(op.QUANTIZE, "")
    how: op.Quantize | None = next((how for how in get_args(op.Quantize) if how == text), None)
    if how is None:
        return None
    if op.scaled_by(how) != "tensor":
        return Quantized(how, scales=node.outputs[-1])
    return Quantized(how, scale=node.inputs[-1])


def _ones(ctx: Context, value: ir.Value) -> bool:
    """Ones of the shape of x: what exporters write for a norm without a weight."""
    node = producer_of(value, "ConstantOfShape", "Expand")
    if node is None:
        return False
    if node.op_type == "Expand":
        return ctx.constants.scalar(node.inputs[0]) == 1.0
    fill = node.attributes.get("value")
    return fill is not None and float(fill.as_tensor().numpy().reshape(-1)[0]) == 1.0


def _own(node: ir.Node, name: str) -> op.NormSpec | None:
    attributes: dict[str, Any] = {
        # A file holds a float as float32.
        name: float(np.float32(a.value)) if a.type == ir.AttributeType.FLOAT else a.value
        for name, a in node.attributes.items()
    }
    if attributes.keys() - _KNOWN:
        return None  # what a later version computes with it is not known here
    try:
        kind = next(kind for kind in KINDS if name.startswith(kind))
        return op.NormSpec.from_attributes(kind, attributes)
    except (TypeError, ValueError, StopIteration):
        return None


def _standard(node: ir.Node, rank: int | None, dtype: int) -> op.NormSpec | None:
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    try:
        return standard_spec(node.op_type, attributes, rank, dtype)
    except ValueError:
        return None


def standard_spec(
    op_type: str, attributes: Mapping[str, Any], rank: int | None, dtype: int
) -> op.NormSpec:
    """Return the norm that a node of others is, of X of this rank and element type.

    Raises:
        ValueError: there is no such norm, or its axis is not known from the end.
    """
    skip, axis = op_type == SKIP_SIMPLIFIED, int(attributes.get("axis", -1))
    if axis >= 0 and (rank is None or axis >= rank):
        raise ValueError(f"axis {axis} of rank {rank}")
    # ONNX Runtime's kernels compute in float64 for float64, whatever stash_type says.
    double = op_type != RMS_NORMALIZATION and dtype == op.DOUBLE
    return op.NormSpec(
        kind="SkipRMSNorm" if skip else "RMSNorm",
        epsilon=float(np.float32(attributes.get("epsilon", 1e-12 if skip else 1e-5))),
        axis=axis - (rank or 0) if axis >= 0 else axis,
        stash_type=op.DOUBLE if double else int(attributes.get("stash_type", op.FLOAT)),
        # ONNX Runtime's own operators scale in float32 and round once.
        scale_before_cast=op_type != RMS_NORMALIZATION and dtype in op.HALF_TYPES,
    )
