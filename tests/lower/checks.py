"""What every lowering must hold: the numbers of its class, and a well-formed result.

ONNX Runtime is no oracle for the roundings of half types: on CPU it has no f16 Mul, computes it in
f32 between Casts of its own and drops the pairs of Casts that meet, in source and result alike. So
the roundings are checked in NumPy, node by node, and ONNX Runtime is run as well.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from source_graphs import NUMPY, Array, Built, Source, feed, run, spliced, ulps

from rmsnorm_export.lower.builder import NUMERICS_CLASS, REPLACES, SPELLING
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.spec import DOUBLE, HALF_TYPES
from rmsnorm_export.proof.evaluate import run_float64, run_numpy


def ops(lowered: Lowered) -> list[str]:
    return [node.op_type for node in lowered.nodes]


def norm_node(lowered: Lowered) -> ir.Node:
    """Return the one node that says which nodes it replaces."""
    (node,) = (node for node in lowered.nodes if REPLACES in node.metadata_props)
    return node


def check(source: Source, built: Built, lowered: Lowered) -> None:
    """Check types, names, provenance, and the numbers of the class (``built`` is changed)."""
    node, part = norm_node(lowered), lowered.part
    assert lowered.replace[0][0] is part.output
    assert node.metadata_props[NUMERICS_CLASS] == lowered.numerics
    assert node.metadata_props[REPLACES] == ", ".join(str(n.name) for n in part.nodes)
    assert node.metadata_props[SPELLING] == part.spelling
    for old, new in lowered.replace:
        assert (new.dtype, new.shape) == (built.match.dtype, old.shape)
        assert new.name != old.name
    feeds = feed(source)
    truth = run_float64(built.model, feeds).outputs["yo"]
    rounded, before = run_numpy(built.model, feeds)["yo"], run(ir.to_proto(built.model), feeds)
    proto = spliced(built, lowered)
    if source.dtype != source.spec.stash_type or source.dtype in HALF_TYPES:
        new_rounded = run_numpy(ir.from_proto(proto), feeds)["yo"]
        _check_roundings(source, lowered, rounded, new_rounded, truth)
    for optimized in (False, True):
        after = run(proto, feeds, optimized=optimized)
        _compare_runs(source, lowered, before[0], after[0], rounded, truth)
        for total, expected in zip(after[1:], before[1:], strict=True):
            dtype = NUMPY[source.dtype]
            np.testing.assert_array_equal(total.astype(dtype), expected.astype(dtype))


def _check_roundings(
    source: Source, lowered: Lowered, old: Array, new: Array, truth: Array
) -> None:
    """Compare the nodes one by one with the source by its rounding steps."""
    off = ulps(new, old, source.dtype)
    if lowered.numerics == "exact":
        # The same roundings to T; a sum in another order flips one of them now and then.
        assert off.max() <= 1
        assert (off > 0).mean() < 0.005
        return
    assert _error(new, truth) <= _error(old, truth) * 1.001
    if lowered.numerics == "reordered":
        assert off.max() <= 1
        simplified = "SimplifiedLayerNormalization" in ops(lowered)
        assert (off > 0).any() or not simplified or source.gain is None, "no rounding is dropped"


def _compare_runs(
    source: Source, lowered: Lowered, old: Array, new: Array, rounded: Array, truth: Array
) -> None:
    """Compare source and result in ONNX Runtime."""
    if source.dtype == source.spec.stash_type and source.dtype not in HALF_TYPES:
        # Two orders of a sum of n squares: n / 2 roundings in the root at most; 4 for the rest.
        bits = 53 if source.dtype == DOUBLE else 24
        added = 0.0 if source.bias is None else np.abs(source.bias).max()
        bound = (np.prod(source.row) / 2 + 4) * 2.0**-bits * (np.abs(old) + added)
        assert (np.abs(new - old) <= bound).all()
    elif lowered.numerics != "upcast":
        assert ulps(new, old, source.dtype).max() <= 1
    else:
        assert _error(new.astype(NUMPY[source.dtype]), truth) <= _error(rounded, truth)


def _error(y: Array, truth: Array) -> float:
    """Return the mean relative distance from the formula in float64."""
    return float(np.mean(np.abs(y.astype(np.float64) - truth) / (np.abs(truth) + 2.0**-14)))
