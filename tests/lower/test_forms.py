"""Targets onnx and ort: what is written, that it computes the same, and every refusal."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from source_graphs import Built, Source, build, check, norm_node, ops

from rmsnorm_export.lower.targets import TARGETS, Target
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.recognize.refusal import Refusal, name_of
from tests.tools.tables import table

replace = dataclasses.replace
BOTH: tuple[Target, ...] = ("onnx", "ort")
OPERATORS = {"onnx": "RMSNormalization", "ort": "SimplifiedLayerNormalization"}
SKIP = ["SkipSimplifiedLayerNormalization"]
# Exactly a float32, so that a float64 norm has the same epsilon in both graphs.
EPSILON = 2.0**-10


def written(form: str, target: Target) -> list[str]:
    """Return the operators of a form, the norm's as ``*``."""
    words = {"wide": "Cast * Cast", "split": "Cast * Cast Mul", "plain": "*", "shaped": "Reshape *"}
    return [OPERATORS[target] if op == "*" else op for op in words[form].split()]


def source(dtype: int = FLOAT, gain: Any = (123,), **options: Any) -> Source:
    """Return a norm with a random gain of this shape; the spec's attributes among the options."""
    fields = {field.name for field in dataclasses.fields(Source)}
    own = {name: options.pop(name) for name in list(options) if name in fields}
    rng = np.random.default_rng(7)
    if gain:
        own["gain"] = rng.standard_normal(gain)
    if options.pop("biased", False):
        own["bias"] = rng.standard_normal(123)
    return Source(dtype=dtype, spec=NormSpec(**{"epsilon": EPSILON, **options}), **own)


FOUR: dict[str, Any] = {"shape": (2, 3, 5, 7)}
HALF, WIDE_GAIN = {"dtype": FLOAT16}, {"gain_dtype": FLOAT}
LATE, RSTD, IN_F64 = {"scale_before_cast": True}, {"round_rstd": True}, {"stash_type": DOUBLE}

FORMS: dict[str, Any] = table(__file__)
TYPES = {"FLOAT": FLOAT, "FLOAT16": FLOAT16, "BFLOAT16": BFLOAT16, "DOUBLE": DOUBLE}


@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str, target: Target) -> None:
    options, numerics, numerics_class, *forms = FORMS[name]
    norm = source(**{key: TYPES.get(str(value), value) for key, value in options.items()})
    built = build(norm)
    lowered = built.lowered(target, numerics)  # type: ignore[arg-type]
    assert ops(lowered) == written(forms[BOTH.index(target)], target)
    assert lowered.numerics == numerics_class
    assert lowered.min_opset == TARGETS[target].min_opset
    node = norm_node(lowered)
    x, scale = (v.dtype for v in node.inputs if v is not None)
    assert x == scale
    stash = DOUBLE if target == "onnx" and x == DOUBLE else FLOAT
    wanted = {"axis": norm.spec.axis, "epsilon": norm.spec.epsilon, "stash_type": stash}
    assert {name: a.value for name, a in node.attributes.items()} == wanted
    check(norm, built, lowered)


@pytest.mark.parametrize("target", BOTH)
def test_a_model_without_types_of_its_values(target: Target) -> None:
    norm = source(FLOAT16)
    built = build(norm, keep_type_info=False)
    assert built.match.output.dtype is None
    lowered = built.lowered(target)
    assert ops(lowered) == written("plain", target)
    assert lowered.replace[0][1].dtype == FLOAT16


def _gain(dims: list[int] | None = None, dtype: int = FLOAT) -> ir.Value:
    shape = None if dims is None else ir.Shape(dims)
    return ir.Value(name="another", shape=shape, type=ir.TensorType(ir.DataType(dtype)))


def test_the_stored_weight_is_used_where_the_source_only_widens_it() -> None:
    built = build(source(FLOAT16))
    wide, back = _gain([123]), _gain([123])
    ir.node("Cast", [built.value("g")], {"to": FLOAT}, outputs=[wide])
    ir.node("Identity", [wide], outputs=[back])
    lowered = built.lowered("onnx", match=replace(built.match, offset_scale=back))
    assert ops(lowered) == written("plain", "onnx")
    assert norm_node(lowered).inputs[1] is built.value("g")


def test_a_weight_that_the_source_rounds_is_used_as_it_is_rounded() -> None:
    built, narrow = build(source()), _gain([123], FLOAT16)
    ir.node("Cast", [built.value("g")], {"to": FLOAT16}, outputs=[narrow])
    lowered = built.lowered("onnx", match=replace(built.match, offset_scale=narrow))
    cast = norm_node(lowered).inputs[1].producer()
    assert (cast.op_type, cast.inputs[0]) == ("Cast", narrow)


# ---- parts of a norm that the operator cannot say: the inner match is lowered ----


@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("residual", [False, True])
def test_a_bias_stays(target: Target, residual: bool) -> None:
    norm = source(biased=True, residual=residual)
    built = build(norm)
    lowered = built.lowered(target)
    assert ops(lowered) == written("plain", target) if target == "onnx" or not residual else SKIP
    assert lowered.replace[0][0] is built.value("scaled")
    assert any("bias" in note for note in lowered.notes)
    check(norm, built, lowered)


PARTS: dict[str, dict[str, Any]] = {
    "group": {"spec": NormSpec(epsilon=EPSILON, group_size=41)},
    "partial": {"spec": NormSpec(epsilon=EPSILON, partial_size=41)},
    "epsilon-outside": {"spec": NormSpec(epsilon=EPSILON, epsilon_outside=True)},
    "gate": {"gate": "x", "spec": NormSpec(kind="GatedRMSNorm", epsilon=EPSILON)},
    "bias": {"bias": "g"},
}


@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("reason", PARTS)
def test_what_the_operator_cannot_say_is_refused_or_left_out(reason: str, target: Target) -> None:
    built = build(source())
    changes = {k: built.value(v) if isinstance(v, str) else v for k, v in PARTS[reason].items()}
    alone = refused(built, "upcast", target, scope="body of If_3", **changes)
    assert (alone.reason, alone.scope) == (reason, "body of If_3")
    within = built.lowered(target, match=replace(built.match, inner=built.match, **changes))
    assert ops(within) == written("plain", target)
    assert within.part is built.match


# ---- refusals ----


def refused(built: Built, numerics: Numerics, target: Target, **changes: Any) -> Refusal:
    refusal = built.lower(target, numerics, replace(built.match, inner=None, **changes))
    assert isinstance(refusal, Refusal)
    assert refusal.node == name_of(built.match.nodes[-1])
    assert all((refusal.message, refusal.found, refusal.hint))
    return refusal


UNKNOWN: dict[str, Any] = {"offset_scale": _gain(), "n": None}
REFUSALS: list[tuple[str, Numerics, dict[str, Any], dict[str, Any]]] = [
    ("numerics", "exact", HALF | {"stash_type": FLOAT16}, {}),
    ("numerics", "reordered", HALF | {"stash_type": FLOAT16}, {}),
    ("numerics", "reordered", HALF, {"narrow": ("mean rounded to float16",)}),
    ("numerics", "exact", HALF | RSTD | {"gain": None}, {}),
    ("stash-type", "upcast", {}, {"spec": NormSpec(stash_type=FLOAT16)}),
    ("epsilon-precision", "upcast", {"dtype": DOUBLE, "epsilon": 1e-5, **IN_F64}, {}),
    ("row-size-unknown", "reordered", {"gain": None, "symbolic": True}, {}),
    ("row-size-unknown", "reordered",
     {"gain": (5, 7), "axis": -2, "shape": (2, 5, 7), "symbolic": True}, UNKNOWN),
    *(("gain-shape", "reordered", {}, {"offset_scale": _gain(dims)})
      for dims in ([], [1], [5, 123], [4, 1, 123], [122])),
    ("gain-not-a-value", "reordered", {},
     {"offset_scale": None, "spec": NormSpec(scale_offset=1.0)}),
]  # fmt: skip


@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: tuple[str, Numerics, Any, Any], target: Target) -> None:
    reason, numerics, options, changes = case
    own = {name: value for name, value in options.items() if name != "symbolic"}
    built = build(source(**own), symbolic="symbolic" in options)
    assert refused(built, numerics, target, **changes).reason == reason


@pytest.mark.parametrize("target", BOTH)
def test_a_rounding_that_the_spec_does_not_repeat_is_told(target: Target) -> None:
    built, narrow = build(source(FLOAT16)), ("mean rounded to float16",)
    lowered = built.lowered(target, "upcast", replace(built.match, inner=None, narrow=narrow))
    assert (lowered.numerics, narrow[0] in lowered.notes[0]) == ("upcast", True)


def test_ort_refuses_rows_of_one_and_bf16_below_opset_13() -> None:
    assert refused(build(source()), "reordered", "ort", n=1).reason == "row-of-one"
    built = build(source(BFLOAT16, scale_before_cast=True))
    refusal = built.lower("ort", match=replace(built.match, inner=None), opset=12)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "opset"
    assert ops(built.lowered("ort", opset=13)) == written("plain", "ort")


# ---- the residual Add ----


def test_onnx_leaves_the_residual() -> None:
    norm = source(residual=True)
    built = build(norm)
    lowered = built.lowered("onnx")
    assert norm_node(lowered).inputs[0] is built.value("sum")
    assert [(refusal.reason, refusal.kind) for refusal in lowered.unfolded] == [("residual",) * 2]
    check(norm, built, lowered)


@pytest.mark.parametrize("shape", [(5, 123), (2, 5, 123)])
@pytest.mark.parametrize("gain", [None, (123,)])
def test_ort_folds_a_residual_in_f32(shape: tuple[int, ...], gain: Any) -> None:
    norm = source(shape=shape, gain=gain, residual=True)
    built = build(norm)
    lowered = built.lowered("ort", "exact")
    node = norm_node(lowered)
    assert (ops(lowered), lowered.numerics, node.domain) == (SKIP, "exact", "com.microsoft")
    assert [v.name for v in node.outputs][1:3] == ["", ""]
    assert {name: a.value for name, a in node.attributes.items()} == {"epsilon": EPSILON}
    assert [old for old, _ in lowered.replace] == [built.match.output, built.value("sum")]
    unused = built.lowered("ort", match=replace(built.match, sum=None))
    assert [old for old, _ in unused.replace] == [built.match.output]
    check(norm, built, lowered)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_a_residual_in_half_is_folded_at_class_upcast_only(late: bool, dtype: int) -> None:
    norm = source(dtype, residual=True, scale_before_cast=late)
    built = build(norm)
    lowered = built.lowered("ort")
    assert ops(lowered) == written("plain", "ort")
    assert norm_node(lowered).inputs[0] is built.value("sum")
    (apart,) = lowered.unfolded
    assert (apart.reason, apart.kind, apart.op) == ("residual-kept", "residual", "Add")
    assert apart.found == "class upcast, reordered is allowed"
    folded = built.lowered("ort", "upcast")
    assert (ops(folded), folded.numerics) == (SKIP, "upcast")
    assert any("CUDA" in note for note in folded.notes)
    if dtype == FLOAT16:
        # ONNX Runtime has no bf16 Add or Mul on CPU: the source itself does not run.
        check(norm, built, folded)


KEPT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "rank 4": ({"shape": (2, 3, 5, 123)}, {}, "plain"),
    "f64": ({"dtype": DOUBLE, **IN_F64}, {}, "plain"),
    "a computed scale": ({}, {"opaque_scale": True}, "plain"),
    "a gain wider than a half type": (HALF | LATE | WIDE_GAIN, {}, "wide"),
    "an unknown shape": ({}, {"residual": _gain()}, "plain"),
    "another shape": ({}, {"residual": _gain([1, 5, 123])}, "plain"),
}


@pytest.mark.parametrize("name", KEPT)
def test_ort_keeps_a_residual(name: str) -> None:
    """Lowered without it, and refused where the rest is not there."""
    options, changes, form = KEPT[name]
    norm = source(residual=True, **options)
    built = build(norm)
    match = replace(built.match, **changes)
    alone = built.lower("ort", "upcast", replace(match, inner=None))
    assert isinstance(alone, Refusal)
    assert (alone.reason, bool(alone.found)) == ("residual-kept", True)
    lowered = built.lowered("ort", "upcast", match)
    assert ops(lowered) == written(form, "ort")
    assert norm_node(lowered).inputs[0] is not built.value("x")
    assert [(apart.message, apart.op) for apart in lowered.unfolded] == [(alone.message, "Add")]
    if not changes:
        check(norm, built, lowered)


def test_a_rounding_that_is_not_repeated_keeps_the_residual_below_upcast() -> None:
    built = build(source(residual=True))
    narrow = replace(built.match, narrow=("mean rounded to bfloat16",))
    assert ops(built.lowered("ort", "reordered", narrow)) == written("plain", "ort")
    lowered = built.lowered("ort", "upcast", narrow)
    assert (ops(lowered), lowered.numerics) == (SKIP, "upcast")
