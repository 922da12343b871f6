"""What every lowering must hold: the numbers of its class, and a well-formed result.

ONNX Runtime is no oracle for the roundings of half types: on CPU it has no f16 Mul, computes it in
f32 between Casts of its own and drops the pairs of Casts that meet, in source and result alike. So
the roundings are checked in NumPy, node by node, and ONNX Runtime is run as well.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from source_graphs import NUMPY, Array, Built, Source, build, feed, run, spliced, ulps

from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.reference import reference_exact, reference_float64
from rmsnorm_export.op.spec import DOUBLE, FLOAT, HALF_TYPES, NormSpec
from rmsnorm_export.recognize.refusal import Refusal

REPLACES = "rmsnorm_export.replaces"


def ops(lowered: Lowered | Refusal) -> list[str]:
    assert isinstance(lowered, Lowered), lowered
    return [node.op_type for node in lowered.nodes]


def norm_node(lowered: Lowered) -> ir.Node:
    """The one node that says which nodes it replaces."""
    found = [node for node in lowered.nodes if REPLACES in node.metadata_props]
    assert len(found) == 1
    return found[0]


def check(source: Source, built: Built, lowered: Lowered | Refusal) -> None:
    """Types, names, provenance, and the numbers that the class declares (``built`` is changed)."""
    assert isinstance(lowered, Lowered), lowered
    _check_provenance(built, lowered)
    for old, new in lowered.replace:
        assert new.dtype == built.match.dtype
        assert new.shape == old.shape
        assert new.name != old.name
    for value in lowered.initializers:
        assert value.const_value is not None
        assert value.name == value.const_value.name
    half_rounds = source.dtype != source.spec.stash_type or source.dtype in HALF_TYPES
    if lowered.part is built.match and half_rounds:
        # The operator's definition, and what ONNX Runtime makes of it.
        for scales_first in (False, True):
            _check_roundings(source, lowered, scales_first)
    old_outputs = run(ir.to_proto(build(source, keep_type_info=False).model), feed(source))
    model = spliced(built, lowered)
    for optimized in (False, True):
        _compare_runs(source, old_outputs, run(model, feed(source), optimized=optimized), lowered)


def _check_provenance(built: Built, lowered: Lowered) -> None:
    node, part = norm_node(lowered), lowered.part
    assert part is not None
    assert lowered.replace[0][0] is part.output
    assert node.metadata_props["rmsnorm_export.numerics"] == lowered.numerics
    assert node.metadata_props[REPLACES] == ", ".join(str(n.name) for n in part.nodes)
    assert node.metadata_props["rmsnorm_export.spelling"] == part.spelling
    assert set(part.nodes) <= set(built.match.nodes)


def _check_roundings(source: Source, lowered: Lowered, scales_first: bool) -> None:
    """The nodes one by one against the source by its rounding steps."""
    new = interpret(source, lowered, scales_first)
    old = _rounded_source(source)
    off = ulps(new, old, source.dtype)
    if lowered.numerics == "exact":
        # The same roundings to T; a sum in another order flips one of them now and then.
        assert off.max() <= 1
        assert (off > 0).mean() < 0.005
        return
    assert _error(source, new) <= _error(source, old) * 1.001
    if lowered.numerics == "reordered":
        assert off.max() <= 1
    if scales_first and source.gain is not None:
        assert (off > 0).any(), "a rounding was declared dropped"


def _compare_runs(source: Source, old: list[Array], new: list[Array], lowered: Lowered) -> None:
    """Source and result in ONNX Runtime."""
    n = int(np.prod(source.row))
    if source.dtype == source.spec.stash_type and source.dtype not in HALF_TYPES:
        # Two orders of a sum of n squares: n / 2 roundings in the root at most; 4 for the rest.
        bits = 53 if source.dtype == DOUBLE else 24
        added = 0.0 if source.bias is None else np.abs(source.bias).max()
        bound = (n / 2 + 4) * 2.0**-bits * (np.abs(old[0]) + added)
        assert (np.abs(new[0] - old[0]) <= bound).all()
    elif lowered.numerics != "upcast":
        assert ulps(new[0], old[0], source.dtype).max() <= 1
    else:
        rounded = new[0].astype(NUMPY[source.dtype])
        assert _error(source, rounded) <= _error(source, _rounded_source(source))
    for total, expected in zip(new[1:], old[1:], strict=True):
        dtype = NUMPY[source.dtype]
        np.testing.assert_array_equal(total.astype(dtype), expected.astype(dtype))


def _operands(source: Source) -> tuple[Array, Array | None, Array | None]:
    inputs, dtype = feed(source), NUMPY[source.dtype]
    own = source.gain_dtype if source.gain_dtype is not None else source.dtype
    gain = None if source.gain is None else source.gain.astype(NUMPY[own])
    residual = inputs["ri"].astype(dtype) if source.residual else None
    return inputs["xi"].astype(dtype), gain, residual


def _spec(source: Source) -> NormSpec:
    return dataclasses.replace(source.spec, kind="SkipRMSNorm" if source.residual else "RMSNorm")


def _rounded_source(source: Source) -> Array:
    x, gain, residual = _operands(source)
    result = reference_exact(_spec(source), x, gain, residual=residual)
    return result[0] if isinstance(result, tuple) else result


def _error(source: Source, y: Array) -> float:
    """Mean relative distance from the formula in float64."""
    x, gain, residual = _operands(source)
    result = reference_float64(_spec(source), x, gain, residual=residual)
    exact = result[0] if isinstance(result, tuple) else result
    return float(np.mean(np.abs(y.astype(np.float64) - exact) / (np.abs(exact) + 2.0**-14)))


def interpret(source: Source, lowered: Lowered, scales_first: bool) -> Array:
    """The first output of the new nodes, every node rounded to its type.

    ``scales_first``: RMSNormalization applies the scale before the rounding.
    """
    x, gain, residual = _operands(source)
    known: dict[str, Array] = {"x": x}
    if residual is not None:
        known["r"] = residual
        known["sum"] = (x.astype(np.float64) + residual.astype(np.float64)).astype(x.dtype)
    if gain is not None:
        product = source.spec.stash_type if source.spec.scale_before_cast else source.dtype
        known.update(g=gain, g_cast=gain.astype(NUMPY[product]))
    for value in lowered.initializers:
        assert value.const_value is not None
        known[str(value.name)] = value.const_value.numpy()
    for node in lowered.nodes:
        inputs = [known[str(v.name)] for v in node.inputs if v is not None]
        known[str(node.outputs[0].name)] = _evaluate(node, inputs, scales_first)
    return known[str(lowered.replace[0][1].name)]


def _evaluate(node: ir.Node, inputs: list[Array], scales_first: bool) -> Array:
    first = inputs[0]
    if node.op_type == "Cast":
        return first.astype(NUMPY[node.attributes["to"].as_int()])
    if node.op_type == "Reshape":
        return first.reshape(inputs[1])
    if node.op_type == "Mul":
        assert first.dtype == inputs[1].dtype
        return (first.astype(np.float64) * inputs[1].astype(np.float64)).astype(first.dtype)
    scale = inputs[-1]
    assert scale.dtype == first.dtype
    epsilon = node.attributes["epsilon"].as_float()
    wide = DOUBLE if first.dtype == np.float64 else FLOAT
    if node.op_type == "SkipSimplifiedLayerNormalization":
        total = first.astype(np.float32) + inputs[1].astype(np.float32)
        spec = NormSpec(epsilon=epsilon, stash_type=wide)
        result = reference_exact(spec, total, scale)
    else:
        simplified = node.op_type == "SimplifiedLayerNormalization"
        scales_first = scales_first or simplified
        stash = wide if simplified else node.attributes["stash_type"].as_int()
        axis = node.attributes["axis"].as_int()
        spec = NormSpec(
            epsilon=epsilon, axis=axis, stash_type=stash, scale_before_cast=scales_first
        )
        result = reference_exact(spec, first, scale)
    assert isinstance(result, np.ndarray)
    return result.astype(first.dtype)
