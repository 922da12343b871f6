"""Source graphs with one norm, the matches that recognition gives for them, and their runs.

Graph inputs and outputs are f32 (f64 for an f64 norm) with Casts to the norm's type at the edge, so
that bf16 needs no special feed. All nodes of a source run in ONNX Runtime as they are written.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper
from onnx_ir.passes.common import RemoveUnusedNodesPass

from rmsnorm_export.graph.names import Names
from rmsnorm_export.lower.builder import NUMERICS_CLASS, REPLACES, SPELLING
from rmsnorm_export.lower.lower import LowerContext, Lowered
from rmsnorm_export.lower.scales import lower_all
from rmsnorm_export.lower.targets import TARGETS, Target
from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import DOUBLE, FLOAT, HALF_TYPES, NormSpec
from rmsnorm_export.proof.evaluate import run_float64, run_numpy
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.recognize.scan import recognize
from rmsnorm_export.runtime.metrics import ulp_distance
from tests.recognize.text_models import run


def tensor(name: str, values: Any, dtype: int) -> TensorProto:
    array = np.asarray(values).astype(numpy_dtype(dtype))
    return TensorProto(name=name, data_type=dtype, dims=array.shape, raw_data=array.tobytes())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """One norm to be written out as a graph; ``gain`` None is weightless."""

    dtype: int = FLOAT
    shape: tuple[int, ...] = (4, 5, 123)
    spec: NormSpec = dataclasses.field(default_factory=lambda: NormSpec(epsilon=1e-3))
    gain: Array | None = None
    gain_dtype: int | None = None
    bias: Array | None = None
    residual: bool = False
    opset: int = 23

    @property
    def row(self) -> tuple[int, ...]:
        return self.shape[self.spec.axis :]

    @property
    def edge(self) -> int:
        return DOUBLE if self.dtype == DOUBLE else FLOAT


class Built:
    """The graph of a source, and the one match in it."""

    def __init__(self, model: ir.Model) -> None:
        self.model, self.names, self.recognition = model, Names(model), recognize(model)
        (self.match,) = self.recognition.matches

    def value(self, name: str) -> ir.Value:
        outputs = {v.name: v for node in self.model.graph for v in node.outputs}
        return outputs.get(name) or self.model.graph.initializers[name]

    def lower(
        self, target: Target, numerics: Numerics = "reordered", match: Match | None = None,
        opset: int = 23,
    ) -> Lowered | Refusal:  # fmt: skip
        """Lower the whole match, or another."""
        context = LowerContext(numerics, self.names, opset, self.recognition.types)
        return lower_all([match or self.match], TARGETS[target], context)[0]

    def lowered(self, *arguments: Any, **options: Any) -> Lowered:
        """Lower what a target can say."""
        outcome = self.lower(*arguments, **options)
        assert isinstance(outcome, Lowered), outcome
        return outcome


def build(source: Source, *, symbolic: bool = False, keep_type_info: bool = True) -> Built:
    """Write the norm as primitive nodes, one by one in the order of ``spec.py``."""
    spec, dtype, stash = source.spec, source.dtype, source.spec.stash_type
    nodes: list[onnx.NodeProto] = []
    initializers = [tensor("eps", spec.epsilon, stash)]

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=f"n_{output}", **attributes))
        return output

    dims = [f"d{i}" if symbolic else d for i, d in enumerate(source.shape)]
    inputs = [helper.make_tensor_value_info("xi", source.edge, dims)]
    add("Cast", ["xi"], "x", to=dtype)
    rows = "x"
    if source.residual:
        inputs.append(helper.make_tensor_value_info("ri", source.edge, dims))
        add("Cast", ["ri"], "r", to=dtype)
        rows = add("Add", ["x", "r"], "sum")
    wide = rows if stash == dtype else add("Cast", [rows], "wide", to=stash)
    add("Mul", [wide, wide], "square")
    axes = np.arange(spec.axis, 0, dtype=np.int64)
    if source.opset >= 18:
        initializers.append(helper.make_tensor("axes", TensorProto.INT64, [axes.size], axes))
        add("ReduceMean", ["square", "axes"], "mean", keepdims=1)
    else:
        add("ReduceMean", ["square"], "mean", keepdims=1, axes=list(axes))
    add("Add", ["mean", "eps"], "stabilised")
    add("Sqrt", ["stabilised"], "rms")
    if spec.round_rstd:
        add("Reciprocal", ["rms"], "rstd")
        add("Cast", ["rstd"], "rstd_t", to=dtype)
        normed = add("Mul", [rows, "rstd_t"], "normed")
    else:
        normed = add("Div", [wide, "rms"], "normed")
        if stash != dtype and not (spec.scale_before_cast and source.gain is not None):
            normed = add("Cast", [normed], "normed_t", to=dtype)
    output = normed
    if source.gain is not None:
        own = source.gain_dtype if source.gain_dtype is not None else dtype
        initializers.append(tensor("g", source.gain, own))
        gain = "g"
        product = stash if spec.scale_before_cast else dtype
        if own != product:
            gain = add("Cast", ["g"], "g_cast", to=product)
        output = add("Mul", [normed, gain], "scaled")
        if spec.scale_before_cast and stash != dtype:
            output = add("Cast", [output], "scaled_t", to=dtype)
    if source.bias is not None:
        initializers.append(tensor("b", source.bias, dtype))
        output = add("Add", [output, "b"], "biased")
    add("Cast", [output], "yo", to=source.edge)
    outputs = [helper.make_tensor_value_info("yo", source.edge, dims)]
    if source.residual:
        add("Cast", ["sum"], "so", to=source.edge)
        outputs.append(helper.make_tensor_value_info("so", source.edge, dims))
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", source.opset)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    if keep_type_info:
        proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    return Built(ir.from_proto(proto))


def spliced(built: Built, lowered: Lowered) -> onnx.ModelProto:
    """The model with the new nodes in place of the old ones (``built`` is changed)."""
    graph = built.model.graph
    for value in lowered.initializers:
        graph.register_initializer(value)
    for node in lowered.nodes:
        graph.append(node)
        built.model.opset_imports.setdefault(node.domain, 1)
    for old, new in lowered.replace:
        users = [u for u in old.uses() if u.node not in lowered.nodes]
        for use in users:
            use.node.replace_input_with(use.idx, new)
    graph.sort()
    RemoveUnusedNodesPass()(built.model)
    proto = ir.to_proto(built.model)
    # ONNX does not know the operator that ONNX Runtime keeps in ONNX's own domain.
    if all(node.op_type != "SimplifiedLayerNormalization" for node in proto.graph.node):
        onnx.checker.check_model(proto)
    return proto


def feed(source: Source) -> dict[str, Array]:
    """Ordinary, tiny, large and zero rows, rounded to the norm's type."""
    rng, result = np.random.default_rng(0), {}
    for name in ["xi", "ri"] if source.residual else ["xi"]:
        x = rng.standard_normal(source.shape)
        scales = np.resize([1.0, 3.0, 1e-3, 300.0, 0.0, 0.1], source.shape[: source.spec.axis])
        x *= scales.reshape(*scales.shape, *[1] * -source.spec.axis)
        result[name] = x.astype(numpy_dtype(source.dtype)).astype(numpy_dtype(source.edge))
    return result


def ulps(a: Array, b: Array, dtype: int) -> Array:
    """Return the distance in representable numbers of ``dtype``."""
    assert (np.isfinite(a) & np.isfinite(b)).all()
    return ulp_distance(a.astype(numpy_dtype(dtype)), b.astype(numpy_dtype(dtype)))


# What every lowering must hold: the numbers of its class, and a well-formed result.


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
            dtype = numpy_dtype(source.dtype)
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
        assert _error(new.astype(numpy_dtype(source.dtype)), truth) <= _error(rounded, truth)


def _error(y: Array, truth: Array) -> float:
    """Return the mean relative distance from the formula in float64."""
    return float(np.mean(np.abs(y.astype(np.float64) - truth) / (np.abs(truth) + 2.0**-14)))
