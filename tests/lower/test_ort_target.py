"""Target ort: the two fused operators, the residual rules, and every refusal."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from checks import check, norm_node, ops
from source_graphs import Array, Built, Source, build, context_for

from rmsnorm_export.lower.lower import Lowered, lower_all
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, name_of

replace = dataclasses.replace

# Exactly a float32, so that a float64 norm has the same epsilon in both graphs.
EPSILON = 2.0**-10
SPEC = NormSpec(epsilon=EPSILON)
GEMMA = replace(SPEC, scale_before_cast=True)


def _gain(n: int = 123) -> Array:
    return np.random.default_rng(7).standard_normal(n)


def _spec(**changes: Any) -> NormSpec:
    return replace(SPEC, **changes)


def _lower(
    built: Built, numerics: Numerics = "reordered", match: Match | None = None, **options: Any
) -> Lowered | Refusal:
    context = context_for(built, numerics, **options)
    return lower_all([built.match if match is None else match], "ort", context)[0]


PLAIN = ["SimplifiedLayerNormalization"]
WIDE = ["Cast", *PLAIN, "Cast"]
SPLIT = [*WIDE, "Mul"]
SKIP = ["SkipSimplifiedLayerNormalization"]

FORMS = [
    ("f32", Source(spec=SPEC, gain=_gain()), "exact", PLAIN, "exact"),
    ("f32 weightless", Source(spec=SPEC), "exact", PLAIN, "exact"),
    ("f64", Source(spec=_spec(stash_type=DOUBLE), dtype=DOUBLE, gain=_gain()), "exact", PLAIN,
     "exact"),
    ("f16 llama", Source(spec=SPEC, dtype=FLOAT16, gain=_gain()), "reordered", PLAIN, "reordered"),
    ("f16 llama, exact", Source(spec=SPEC, dtype=FLOAT16, gain=_gain()), "exact", SPLIT, "exact"),
    ("f16 gemma", Source(spec=GEMMA, dtype=FLOAT16, gain=_gain()), "exact", PLAIN, "exact"),
    ("f16 gemma, f32 gain", Source(spec=GEMMA, dtype=FLOAT16, gain=_gain(), gain_dtype=FLOAT),
     "exact", WIDE, "exact"),
    ("bf16 gemma", Source(spec=GEMMA, dtype=BFLOAT16, gain=_gain()), "exact", PLAIN, "exact"),
    ("bf16 gemma, f32 gain", Source(spec=GEMMA, dtype=BFLOAT16, gain=_gain(), gain_dtype=FLOAT),
     "exact", WIDE, "exact"),
    ("f16 weightless", Source(spec=SPEC, dtype=FLOAT16), "exact", PLAIN, "exact"),
    ("bf16 weightless", Source(spec=SPEC, dtype=BFLOAT16), "exact", PLAIN, "exact"),
    ("f16 in f64", Source(spec=_spec(stash_type=DOUBLE), dtype=FLOAT16, gain=_gain()), "upcast",
     SPLIT, "exact"),
    ("f32 in f64", Source(spec=_spec(stash_type=DOUBLE), gain=_gain()), "upcast", SPLIT, "exact"),
    ("f16 rounded rstd", Source(spec=_spec(round_rstd=True), dtype=FLOAT16), "reordered", PLAIN,
     "reordered"),
    ("f16 rounded rstd, gain", Source(spec=_spec(round_rstd=True), dtype=FLOAT16, gain=_gain()),
     "upcast", PLAIN, "upcast"),
    ("f16 throughout", Source(spec=_spec(stash_type=FLOAT16), dtype=FLOAT16, gain=_gain()),
     "upcast", PLAIN, "upcast"),
    ("several axes", Source(spec=_spec(axis=-2), shape=(2, 3, 5, 7),
                            gain=_gain(35).reshape(1, 5, 7)), "exact", ["Reshape", *PLAIN],
     "exact"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "numerics", "nodes", "numerics_class"),
    [pytest.param(*case[1:], id=case[0]) for case in FORMS],
)
def test_forms(
    source: Source, numerics: Numerics, nodes: list[str], numerics_class: Numerics
) -> None:
    built = build(source)
    lowered = _lower(built, numerics)
    assert ops(lowered) == nodes
    assert isinstance(lowered, Lowered)
    assert lowered.numerics == numerics_class
    assert lowered.min_opset == 0
    node = norm_node(lowered)
    x, scale = node.inputs
    assert x is not None
    assert scale is not None
    assert x.dtype == scale.dtype
    assert node.domain == ""
    assert {name: a.value for name, a in node.attributes.items()} == {
        "axis": source.spec.axis,
        "epsilon": EPSILON,
        "stash_type": FLOAT,
    }
    check(source, built, lowered)


@pytest.mark.parametrize("opset", [13, 17, 18, 21, 23])
@pytest.mark.parametrize("dtype", [FLOAT, FLOAT16])
def test_runs_at_any_opset(opset: int, dtype: int) -> None:
    source = Source(spec=SPEC, dtype=dtype, gain=_gain().reshape(1, 1, 123), opset=opset)
    built = build(source)
    lowered = _lower(built, opset=opset)
    assert ops(lowered) == ["Reshape", *PLAIN]
    check(source, built, lowered)


@pytest.mark.parametrize("n", [2, 3, 111, 199, 4104])
@pytest.mark.parametrize("dtype", [FLOAT, FLOAT16])
def test_odd_rows(n: int, dtype: int) -> None:
    source = Source(spec=SPEC, dtype=dtype, shape=(6, n), gain=_gain(n))
    built = build(source)
    check(source, built, _lower(built))


# ---- the residual Add ----


@pytest.mark.parametrize("shape", [(5, 123), (2, 5, 123)])
@pytest.mark.parametrize("weightless", [False, True])
def test_a_residual_is_folded_in_f32(shape: tuple[int, ...], weightless: bool) -> None:
    source = Source(spec=SPEC, shape=shape, gain=None if weightless else _gain(), residual=True)
    built = build(source)
    lowered = _lower(built, "exact")
    assert ops(lowered) == SKIP
    assert isinstance(lowered, Lowered)
    assert lowered.numerics == "exact"
    node = norm_node(lowered)
    assert node.domain == "com.microsoft"
    assert [v.name for v in node.outputs][1:3] == ["", ""]
    assert {name: a.value for name, a in node.attributes.items()} == {"epsilon": EPSILON}
    assert [old for old, _ in lowered.replace] == [built.match.output, built.values["sum"]]
    check(source, built, lowered)


def test_a_symbolic_shape_that_is_the_same_is_equal() -> None:
    built = build(Source(spec=SPEC, gain=_gain(), residual=True), symbolic=True)
    assert ops(_lower(built)) == SKIP


@pytest.mark.parametrize("spec", [SPEC, GEMMA], ids=["llama", "gemma"])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_a_residual_in_half_is_folded_at_class_upcast_only(spec: NormSpec, dtype: int) -> None:
    source = Source(spec=spec, dtype=dtype, gain=_gain(), residual=True)
    built = build(source)
    kept = _lower(built, "reordered")
    assert ops(kept) == PLAIN
    assert isinstance(kept, Lowered)
    assert norm_node(kept).inputs[0] is built.values["sum"]
    (apart,) = kept.apart
    assert (apart.reason, apart.kind) == ("residual-kept", "residual")
    assert (apart.op, apart.found) == ("Add", "class upcast, reordered is allowed")
    folded = _lower(built, "upcast")
    assert ops(folded) == SKIP
    assert isinstance(folded, Lowered)
    assert folded.numerics == "upcast"
    assert any("CUDA" in note for note in folded.notes)
    if dtype == FLOAT16:
        # ONNX Runtime has no bf16 Add or Mul on CPU: the source itself does not run.
        check(source, built, folded)


def _kept(built: Built, match: Match, numerics: Numerics = "upcast", **options: Any) -> Lowered:
    """Lowered without the residual, and refused when the rest is not there."""
    alone = _lower(built, numerics, replace(match, inner=None), **options)
    assert isinstance(alone, Refusal)
    assert alone.reason == "residual-kept"
    assert alone.found
    lowered = _lower(built, numerics, match, **options)
    assert isinstance(lowered, Lowered)
    assert set(ops(lowered)) & {*PLAIN}
    assert norm_node(lowered).inputs[0] is not built.values["x"]
    (apart,) = lowered.apart
    assert (apart.message, apart.op) == (alone.message, "Add")
    return lowered


@pytest.mark.parametrize("shape", [(123,), (2, 3, 5, 123)])
def test_ranks_that_the_residual_operator_does_not_take(shape: tuple[int, ...]) -> None:
    source = Source(spec=SPEC, shape=shape, gain=_gain(), residual=True)
    built = build(source)
    check(source, built, _kept(built, built.match))


def test_f64_has_no_residual_operator() -> None:
    source = Source(spec=_spec(stash_type=DOUBLE), dtype=DOUBLE, gain=_gain(), residual=True)
    built = build(source)
    check(source, built, _kept(built, built.match))


def test_several_axes_keep_the_residual() -> None:
    source = Source(spec=_spec(axis=-2), shape=(2, 5, 7), gain=_gain(35).reshape(5, 7),
                    residual=True)  # fmt: skip
    built = build(source)
    check(source, built, _kept(built, built.match))


@pytest.mark.parametrize("dims", [None, (1, 5, 123), (4, None, 123)])
def test_shapes_that_are_not_known_to_be_equal_keep_the_residual(dims: Any) -> None:
    built = build(Source(spec=SPEC, gain=_gain(), residual=True))
    built.values["r"].shape = None if dims is None else ir.Shape(dims)
    _kept(built, built.match)


def test_unknown_dimensions_are_not_equal() -> None:
    built = build(Source(spec=SPEC, gain=_gain(), residual=True))
    for name in ("x", "r"):
        built.values[name].shape = ir.Shape([4, None, 123])
    _kept(built, built.match)


def test_a_computed_scale_keeps_the_residual() -> None:
    built = build(Source(spec=SPEC, gain=_gain(), residual=True))
    _kept(built, replace(built.match, opaque_scale=True))


def test_a_gain_wider_than_a_half_type_keeps_the_residual() -> None:
    source = Source(spec=GEMMA, dtype=FLOAT16, gain=_gain(), gain_dtype=FLOAT, residual=True)
    built = build(source)
    lowered = _kept(built, built.match)
    assert ops(lowered) == WIDE


def test_a_norm_in_f64_keeps_the_residual() -> None:
    source = Source(spec=_spec(stash_type=DOUBLE), gain=_gain(), residual=True)
    built = build(source)
    assert ops(_kept(built, built.match)) == SPLIT


def test_a_rounding_that_is_not_repeated_keeps_the_residual_below_upcast() -> None:
    built = build(Source(spec=SPEC, gain=_gain(), residual=True))
    narrow = replace(built.match, narrow=("mean rounded to bfloat16",))
    _kept(built, narrow, "reordered")
    lowered = _lower(built, "upcast", narrow)
    assert ops(lowered) == SKIP
    assert isinstance(lowered, Lowered)
    assert lowered.numerics == "upcast"


def test_the_sum_may_have_no_other_use() -> None:
    built = build(Source(spec=SPEC, gain=_gain(), residual=True))
    lowered = _lower(built, match=replace(built.match, sum=None))
    assert isinstance(lowered, Lowered)
    assert [old for old, _ in lowered.replace] == [built.match.output]


# ---- refusals ----


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("group", {"spec": _spec(group_size=41)}),
        ("partial", {"spec": _spec(partial_size=41)}),
        ("epsilon-outside", {"spec": _spec(epsilon_outside=True)}),
        ("row-of-one", {"n": 1}),
        ("numerics", {"narrow": ("sum rounded to bfloat16",)}),
        ("gain-not-a-value", {"offset_scale": None, "spec": _spec(scale_offset=1.0)}),
    ],
)
def test_refusals(reason: str, changes: dict[str, Any]) -> None:
    built = build(Source(spec=SPEC, gain=_gain()))
    match = replace(built.match, inner=None, scope="body of If_3", **changes)
    refusal = _lower(built, "reordered", match)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.scope) == (reason, "body of If_3")
    assert refusal.node == name_of(built.match.nodes[-1])
    assert refusal.message
    assert refusal.found
    assert refusal.hint


@pytest.mark.parametrize("part", ["bias", "gate"])
def test_a_bias_or_a_gate_is_left_outside(part: str) -> None:
    built = build(Source(spec=SPEC, gain=_gain()))
    outer = replace(built.match, inner=built.match, **{part: built.values["g"]})
    alone = _lower(built, "upcast", replace(outer, inner=None))
    assert isinstance(alone, Refusal)
    assert alone.reason == part
    lowered = _lower(built, "exact", outer)
    assert ops(lowered) == PLAIN
    assert isinstance(lowered, Lowered)
    assert lowered.part is built.match
    assert any(part in note for note in lowered.notes)


def test_a_bias_stays_and_the_numbers_hold() -> None:
    source = Source(spec=SPEC, gain=_gain(), bias=_gain())
    built = build(source)
    check(source, built, _lower(built))


def test_a_bias_behind_a_residual_leaves_both_to_the_parts_inside() -> None:
    source = Source(spec=SPEC, gain=_gain(), bias=_gain(), residual=True)
    built = build(source)
    lowered = _lower(built)
    assert ops(lowered) == PLAIN
    check(source, built, lowered)


def test_bf16_needs_opset_13() -> None:
    built = build(Source(spec=GEMMA, dtype=BFLOAT16, gain=_gain()))
    refusal = _lower(built, opset=12)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "opset"
    assert ops(_lower(built, opset=13)) == PLAIN


def test_f32_epsilon_needs_no_exact_float32() -> None:
    source = Source(spec=_spec(epsilon=1e-6), gain=_gain())
    built = build(source)
    check(source, built, _lower(built, "exact"))


def test_an_epsilon_that_is_no_float32_is_refused_in_f64() -> None:
    built = build(Source(spec=_spec(stash_type=DOUBLE, epsilon=1e-6), dtype=DOUBLE, gain=_gain()))
    refusal = _lower(built, "upcast", replace(built.match, inner=None))
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "epsilon-precision"
