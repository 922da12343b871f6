"""Target ``portable``: the operator of this package, with its function body in the file.

One body per operator serves all sites of a model wherever their rounding orders allow it (see
``op.body_key``): TensorRT's parser tells functions apart by name alone and wants as many inputs as
the function has. A site without a scale then passes ones, one without a bias zeros.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.lower.builder import SiteBuilder
from rmsnorm_export.lower.forms import row_shape
from rmsnorm_export.lower.lower import LowerContext, Lowered, refuse_match, strictest
from rmsnorm_export.lower.plugin import plugin_refuses
from rmsnorm_export.op import spec as op
from rmsnorm_export.op.body import GROUPS_OPSET, MIN_OPSET, build_function
from rmsnorm_export.op.body_key import BodyKey, assign_bodies, body_key, for_any_type
from rmsnorm_export.op.dtypes import numpy_dtype, type_name
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.recognize.types import Types

_AFTER = "x is divided by its length; the root of n and the scale stay nodes after it"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """One site with the spec that its node will have."""

    part: Match
    spec: op.NormSpec
    numerics: Numerics
    key: BodyKey
    notes: tuple[str, ...]


def lower(matches: Sequence[Match], context: LowerContext) -> list[Lowered | Refusal]:
    """Return one node of this package's operators for every match of a model."""
    plans = [plan_site(match, context.of(match)) for match in matches]
    keys = [plan.key for plan in plans if isinstance(plan, Planned)]
    bodies = iter(assign_bodies(keys, context.taken))
    functions: dict[str, ir.Function] = {}
    result: list[Lowered | Refusal] = []
    for match, plan in zip(matches, plans, strict=True):
        if isinstance(plan, Refusal):
            result.append(plan)
            continue
        name, body = next(bodies)
        if name not in functions:
            functions[name] = build_function(name, for_any_type(body, context.opset), context.opset)
        lowered = _node(plan, body, functions[name], context)
        if match.quantized is not None and plan.part.quantized is None:
            lowered = dataclasses.replace(lowered, unfolded=(_quantizer_kept(match),))
        result.append(lowered)
    return result


def _quantizer_kept(match: Match) -> Refusal:
    numerics, found = _quantized_class(match)
    message = "the quantizer of the norm is not folded: the operator quantizes some rows otherwise"
    return refuse_match(match, "quantizer-kept", message, found, f"allow --numerics {numerics}")


def plan_site(match: Match, context: LowerContext) -> Planned | Refusal:
    """Return the largest part of ``match`` whose class is allowed."""
    if context.opset < MIN_OPSET:
        message = f"the function body needs opset {MIN_OPSET}"
        hint = "use --target ort, or export with a newer opset"
        return refuse_match(match, "opset", message, f"opset {context.opset}", hint)
    part: Match | None = match
    while part is not None:
        spec, numerics, notes = _class(part, context)
        has_body = not spec.group_size or context.opset >= GROUPS_OPSET
        if has_body and context.allows(numerics):
            expands = spec.unit_length > 0 and any(n.op_type == "Expand" for n in part.nodes)
            one = math.prod(row_shape(part, context.types)) == 1
            key = body_key(
                spec,
                dtype=part.dtype,
                scale_dtype=_dtype(part.scale, context.types),
                bias_dtype=_dtype(part.bias, context.types),
                opset=context.opset,
                quantize=None if part.quantized is None else part.quantized.how,
                table_dtype=_dtype(part.cos, context.types),
                half_table=part.rotary is not None and part.rotary.half_table,
                single=one and (part.scale is None or part.n == 1),
                expands=expands,
            )
            if spec.unit_length and part is not match:
                notes = (*notes, _AFTER)
            return Planned(part, spec, numerics, key, notes)
        part = part.inner
    message = "the operator does not repeat a rounding step of the source"
    found, hint = ", ".join((*match.narrow, *match.edges)), strictest(match)[0]
    return refuse_match(match, "numerics", message, found, f"allow --numerics {hint}")


def _class(part: Match, context: LowerContext) -> tuple[op.NormSpec, Numerics, tuple[str, ...]]:
    spec = part.spec
    half = spec.stash_type in op.HALF_TYPES
    least, why = _quantized_class(part)
    notes = () if least == "exact" else (why,)
    if not (half and context.allows("upcast")):
        return spec, least, notes
    wide = dataclasses.replace(
        spec, stash_type=op.FLOAT, round_rstd=False, association=0, scale_rstd=False
    )
    if least in ("exact", "reordered"):
        note = f"the source computes in {type_name(spec.stash_type)}, the new node in float32"
        return wide, "upcast", (*notes, note)
    return wide, least, notes


def _quantized_class(part: Match) -> tuple[Numerics, str]:
    """As ``strictest``; the scale of a quantized row has no least value in the operator."""
    if part.quantized is None or not part.quantized.least:
        return strictest(part)
    least = f"{part.quantized.least:.3g}"
    return "unclamped", (
        f"the source divides a row by {least} at least to quantize it, the new node divides "
        "a row of zeros by 1 and any other by a scale of its own"
    )


def _dtype(value: ir.Value | None, types: Types) -> int | None:
    return None if value is None else types.dtype(value)


def _node(plan: Planned, body: BodyKey, function: ir.Function, context: LowerContext) -> Lowered:
    part, spec, types = plan.part, plan.spec, context.types
    site = SiteBuilder(part, plan.numerics, context, spec.kind)
    inputs, weights = operands(plan, body, site, types)
    output = site.like(part.output, output_type(part), "output")
    new: list[tuple[ir.Value | None, ir.Value]] = [(part.output, output)]
    if part.residual is not None:
        # The body has both outputs, whether the sum is used or not.
        new.append((part.sum, site.like(part.sum or part.x, part.dtype, "sum")))
    extra: dict[str, str] = {}
    if part.quantized is not None:
        extra, scales = {op.QUANTIZE: part.quantized.how}, part.quantized.scales
        if scales is not None:
            new.append((scales, site.like(scales, op.FLOAT, "row_scale")))
    why = plugin_refuses(
        function.name,
        spec,
        dtype=part.dtype,
        n=part.n,
        weights=[
            (label, types.dtype(value) or part.dtype, types.shape(value))
            for label, value in weights
            if label != "code_scale"
        ],
        tables=None if part.cos is None else (types.shape(inputs[0]), types.shape(part.cos)),
    )
    notes = list(plan.notes)
    if why:
        notes.append(f"the TensorRT plugin leaves this node to its function body: {why}")
    else:
        extra |= {"plugin_version": op.PLUGIN_VERSION, "plugin_namespace": op.PLUGIN_NAMESPACE}
    site.norm(
        function.name,
        [*inputs, *(value for _, value in weights)],
        {**spec.written(), **extra},
        [value for _, value in new],
        domain=op.DOMAIN,
        name=part.nodes[-1].name if part.native.startswith(op.DOMAIN) else None,
    )
    alone = None
    if part.inner is not None and (part.quantized or part.rotary):
        alone = functools.partial(_alone, part.inner, context)
    replace = [(old, value) for old, value in new if old is not None]
    return site.lowered(*replace, functions=[function], notes=notes, alone=alone)


def _alone(part: Match, context: LowerContext) -> Lowered:
    """Return the node of the norm by itself."""
    (lowered,) = lower([part], context)
    assert isinstance(lowered, Lowered)
    return lowered


def operands(
    plan: Planned, body: BodyKey, site: SiteBuilder, types: Types
) -> tuple[list[ir.Value], list[tuple[str, ir.Value]]]:
    """Return the inputs of a body with this key: the rows, and its weights with their names."""
    part, spec = plan.part, plan.spec

    def neutral(number: float, dtype: int) -> ir.Value:
        """Return ones or zeros of n elements, one tensor for all sites of one size."""
        sizes = row_shape(part, types)
        label = {1.0: "ones", 0.0: "zeros"}.get(number, "neutral_scale")
        name = f"{label}_{'x'.join(map(str, sizes))}_{type_name(dtype)}"
        return site.shared(np.full(sizes, number, numpy_dtype(dtype)), dtype, name)

    x = part.x if part.rotary is None else site.transpose(part.x, part.rotary.order)
    inputs = [v for v in (x, part.residual, part.gate, part.cos, part.sin) if v is not None]
    weights: list[tuple[str, ir.Value]] = []
    if body.has_scale:
        # The offset is added by the body, so a scale of one is 1 - offset.
        ones = 1.0 - spec.scale_offset, body.scale_type(part.dtype)
        weights.append(("scale", part.scale or neutral(*ones)))
    if body.has_bias:
        weights.append(("bias", part.bias or neutral(0.0, body.product_type(part.dtype))))
    if part.code_scale is not None:
        weights.append(("code_scale", site.cast(part.code_scale, op.FLOAT, "code_scale")))
    return inputs, weights


def output_type(part: Match) -> int:
    """Return the element type of the output: T, or the quantized type."""
    if part.quantized is None:
        return part.dtype
    return op.CODE_TYPES[part.quantized.how.partition("_")[0]][0]
