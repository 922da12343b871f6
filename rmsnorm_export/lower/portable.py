"""Target ``portable``: the operator of this package, with its function body in the file.

One body per operator serves all sites of a model wherever their rounding orders allow it (see
``op.body_key``): TensorRT's parser tells functions apart by name alone and wants as many inputs as
the function has. A site without a gain then passes ones, one without a bias zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.lower.lowered import Lowered
from rmsnorm_export.lower.parts import Names, allowed, provenance, stem
from rmsnorm_export.lower.plugin_limits import plugin_refuses
from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import BodyKey, assign_bodies, body_key
from rmsnorm_export.op.dtypes import numpy_dtype, type_name
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import (
    DOMAIN,
    FLOAT,
    HALF_TYPES,
    OPSET_VERSION,
    PLUGIN_NAMESPACE,
    PLUGIN_VERSION,
    NormSpec,
)
from rmsnorm_export.recognize.match import Decline, Match
from rmsnorm_export.recognize.types import Types

MIN_OPSET = 13


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """One site with the spec that its node will have."""

    part: Match
    spec: NormSpec
    numerics: Numerics
    key: BodyKey
    notes: tuple[str, ...]


def lower_portable(
    matches: Sequence[Match],
    *,
    numerics: Numerics,
    names: Names,
    opset: int,
    types: Types,
    taken: Collection[str] = (),
) -> list[Lowered | Decline]:
    """One node of this package's operators for every match of a model.

    Args:
        matches: all norms of the model, so that bodies can be shared.
        numerics: the loosest class allowed.
        names: returns a unique name for a wish.
        opset: version of the default domain in the model.
        types: element types and shapes.
        taken: operator names in this package's domain that are in use for something else.
    """
    plans = [_plan(match, numerics, opset, types) for match in matches]
    keys = [plan.key for plan in plans if isinstance(plan, _Plan)]
    bodies = iter(assign_bodies(keys, taken))
    functions: dict[str, ir.Function] = {}
    shared: dict[tuple[object, ...], ir.Value] = {}
    result: list[Lowered | Decline] = []
    for plan in plans:
        if isinstance(plan, Decline):
            result.append(plan)
            continue
        name, body = next(bodies)
        if name not in functions:
            functions[name] = build_function(name, body, opset)
        result.append(_emit(plan, body, functions[name], names, types, shared))
    return result


def _plan(match: Match, numerics: Numerics, opset: int, types: Types) -> _Plan | Decline:
    """The largest part of ``match`` whose class is allowed."""
    node = match.output.producer() or match.nodes[-1]
    if opset < MIN_OPSET:
        return Decline(
            node, "opset", f"the function body needs opset {MIN_OPSET}", f"opset {opset}",
            "use --target ort, or export with a newer opset", match.scope,
        )  # fmt: skip
    part: Match | None = match
    while part is not None:
        spec, found, notes = _class(part, numerics)
        if allowed(found, numerics):
            key = body_key(
                spec,
                dtype=part.dtype,
                scale_dtype=_dtype(part.scale, types),
                bias_dtype=_dtype(part.bias, types),
                opset=opset,
            )
            return _Plan(part, spec, found, key, notes)
        part = part.inner
    return Decline(
        node, "numerics", "the operator does not repeat a rounding step of the source",
        ", ".join(match.narrow), "allow --numerics upcast", match.scope,
    )  # fmt: skip


def _class(part: Match, limit: Numerics) -> tuple[NormSpec, Numerics, tuple[str, ...]]:
    spec = part.spec
    half = spec.stash_type in HALF_TYPES
    wide = spec
    if half:
        wide = dataclasses.replace(spec, stash_type=FLOAT, round_rstd=False, association=0)
    if part.narrow:
        return wide, "upcast", (f"the source has {', '.join(part.narrow)}; the new node has not",)
    if half and allowed("upcast", limit):
        note = f"the source computes in {type_name(spec.stash_type)}, the new node in float32"
        return wide, "upcast", (note,)
    return spec, "exact", ()


def _dtype(value: ir.Value | None, types: Types) -> int | None:
    if value is None:
        return None
    dtype = types.dtype(value)
    return None if dtype is None else int(dtype)


def _emit(
    plan: _Plan,
    body: BodyKey,
    function: ir.Function,
    names: Names,
    types: Types,
    shared: dict[tuple[object, ...], ir.Value],
) -> Lowered:
    part, spec = plan.part, plan.spec
    base = f"{stem(part)}/{spec.kind}"
    initializers: list[ir.Value] = []

    def neutral(number: float) -> ir.Value:
        """Ones or zeros of n elements, one tensor for all sites of one size."""
        product = body.product_type(part.dtype)
        sizes = _row_shape(part, types)
        # Of the main graph every subgraph sees the initializers; a function has its own.
        main = part.scope == "main" or part.scope.startswith("main/")
        place = "main" if main else part.scope
        key = (number, product, sizes, place)
        if key not in shared:
            shared[key] = _filled(names, number, sizes, product)
        initializers.append(shared[key])
        return shared[key]

    inputs = [part.x]
    if part.residual is not None:
        inputs.append(part.residual)
    if part.gate is not None:
        inputs.append(part.gate)
    if body.has_scale:
        # The offset is added by the body, so a gain of one is 1 - offset.
        offset = spec.scale_offset
        inputs.append(part.scale if part.scale is not None else neutral(1.0 - offset))
    if body.has_bias:
        inputs.append(part.bias if part.bias is not None else neutral(0.0))
    outputs = [_like(part.output, part.dtype, names(f"{base}_output"), types)]
    replace = [(part.output, outputs[0])]
    if part.residual is not None:
        # The body has both outputs, whether the sum is used or not.
        like = part.sum if part.sum is not None else part.x
        outputs.append(_like(like, part.dtype, names(f"{base}_sum"), types))
        if part.sum is not None:
            replace.append((part.sum, outputs[1]))
    first = len(inputs) - body.has_scale - body.has_bias
    why = plugin_refuses(
        function.name,
        spec,
        dtype=part.dtype,
        n=part.n,
        weights=[
            (label, _dtype(value, types) or part.dtype, types.shape(value))
            for label, value in zip(("scale", "bias"), inputs[first:], strict=False)
        ],
    )
    plugin = {"plugin_version": PLUGIN_VERSION, "plugin_namespace": PLUGIN_NAMESPACE}
    node = ir.node(
        function.name,
        inputs,
        {**spec.attributes(), **({} if why else plugin)},
        domain=DOMAIN,
        version=OPSET_VERSION,
        outputs=outputs,
        name=part.nodes[-1].name if part.native.startswith(DOMAIN) else names(base),
        metadata_props=provenance(part, plan.numerics),
    )
    notes = list(plan.notes)
    if function.name != spec.kind:
        notes.append(f"computed otherwise than the model's other sites: operator {function.name}")
    if why:
        notes.append(f"TensorRT runs the function body, not the plugin: {why}")
    return Lowered([node], replace, plan.numerics, initializers, [function], 0, notes, part)


def _row_shape(part: Match, types: Types) -> tuple[int, ...]:
    """Shape of a neutral scale; one element (which broadcasts) where n is not static."""
    dims = types.shape(part.x)
    tail = dims[part.spec.axis :] if dims is not None else (part.n,)
    if part.spec.axis == -1 and part.n is not None:
        tail = (part.n,)
    static = tuple(d for d in tail if isinstance(d, int))
    return static if len(static) == len(tail) else (1,)


def _filled(names: Names, number: float, sizes: tuple[int, ...], dtype: int) -> ir.Value:
    label = {1.0: "ones", 0.0: "zeros"}.get(number, "neutral_scale")
    name = names(f"{DOMAIN}.{label}_{'x'.join(map(str, sizes))}_{type_name(dtype)}")
    tensor = ir.Tensor(
        np.full(sizes, number, dtype=numpy_dtype(dtype)), dtype=ir.DataType(dtype), name=name
    )
    return ir.Value(
        name=name, shape=ir.Shape(sizes), type=ir.TensorType(ir.DataType(dtype)),
        const_value=tensor,
    )  # fmt: skip


def _like(value: ir.Value, dtype: int, name: str, types: Types) -> ir.Value:
    shape = value.shape
    if shape is None:
        dims = types.info(value)[1]
        shape = None if dims is None else ir.Shape(dims)
    return ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType(dtype)))
