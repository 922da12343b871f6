"""Target onnx: what is written, that it computes the same, and every refusal."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from checks import check, norm_node, ops
from source_graphs import NUMPY, Array, Built, Names, Source, build, context_for

from rmsnorm_export.lower.lower import Lowered, lower_all
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, name_of

# Exactly a float32, so that a float64 norm has the same epsilon in both graphs.
EPSILON = 2.0**-10
SPEC = NormSpec(epsilon=EPSILON)
replace = dataclasses.replace


def _gain(n: int = 123) -> Array:
    return np.random.default_rng(7).standard_normal(n)


def _lower(
    built: Built, numerics: Numerics = "reordered", match: Match | None = None, **options: Any
) -> Lowered | Refusal:
    context = context_for(built, numerics, **options)
    return lower_all([built.match if match is None else match], "onnx", context)[0]


def _spec(**changes: Any) -> NormSpec:
    return replace(SPEC, **changes)


PLAIN = ["RMSNormalization"]
WIDE = ["Cast", "RMSNormalization", "Cast"]
SPLIT = ["Cast", "RMSNormalization", "Cast", "Mul"]
GEMMA = _spec(scale_before_cast=True)

FORMS = [
    ("f32", Source(spec=SPEC, gain=_gain()), "exact", PLAIN, "exact"),
    ("f32 weightless", Source(spec=SPEC), "exact", PLAIN, "exact"),
    ("f32, f16 gain", Source(spec=SPEC, gain=_gain(), gain_dtype=FLOAT16), "exact",
     PLAIN, "exact"),
    ("f64", Source(spec=_spec(stash_type=DOUBLE), dtype=DOUBLE, gain=_gain()), "exact", PLAIN,
     "exact"),
    ("f16 llama", Source(spec=SPEC, dtype=FLOAT16, gain=_gain()), "reordered", PLAIN, "reordered"),
    ("f16 llama, exact", Source(spec=SPEC, dtype=FLOAT16, gain=_gain()), "exact", SPLIT, "exact"),
    ("f16 llama, f32 gain", Source(spec=SPEC, dtype=FLOAT16, gain=_gain(), gain_dtype=FLOAT),
     "exact", SPLIT, "exact"),
    ("f16 gemma", Source(spec=GEMMA, dtype=FLOAT16, gain=_gain()), "exact",
     WIDE, "exact"),
    ("f16 gemma, f32 gain", Source(spec=GEMMA, dtype=FLOAT16, gain=_gain(), gain_dtype=FLOAT),
     "exact", WIDE, "exact"),
    ("bf16 gemma, f32 gain", Source(spec=GEMMA, dtype=BFLOAT16, gain=_gain(), gain_dtype=FLOAT),
     "exact", WIDE, "exact"),
    ("f16 weightless", Source(spec=SPEC, dtype=FLOAT16), "exact", PLAIN, "exact"),
    ("bf16 weightless", Source(spec=SPEC, dtype=BFLOAT16), "exact", WIDE, "exact"),
    ("f16 in f64", Source(spec=_spec(stash_type=DOUBLE), dtype=FLOAT16, gain=_gain()), "upcast",
     SPLIT, "exact"),
    ("f32 in f64", Source(spec=_spec(stash_type=DOUBLE), dtype=FLOAT, gain=_gain()), "upcast",
     SPLIT, "exact"),
    ("f32 in f64, gemma", Source(spec=replace(GEMMA, stash_type=DOUBLE), gain=_gain()), "upcast",
     WIDE, "exact"),
    ("f16 rounded rstd", Source(spec=_spec(round_rstd=True), dtype=FLOAT16), "reordered", PLAIN,
     "reordered"),
    ("f16 rounded rstd, gain", Source(spec=_spec(round_rstd=True), dtype=FLOAT16, gain=_gain()),
     "upcast", PLAIN, "upcast"),
    ("f16 throughout", Source(spec=_spec(stash_type=FLOAT16), dtype=FLOAT16, gain=_gain()),
     "upcast", PLAIN, "upcast"),
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
    assert lowered.min_opset == TARGETS["onnx"].min_opset
    check(source, built, lowered)


def _types(node: ir.Node) -> list[int]:
    return [int(v.dtype) for v in node.inputs if v is not None and v.dtype is not None]


@pytest.mark.parametrize("case", FORMS, ids=[case[0] for case in FORMS])
def test_x_and_scale_have_one_type_and_the_row_is_normalised_in_f32_or_f64(case: Any) -> None:
    lowered = _lower(build(case[1]), case[2])
    assert isinstance(lowered, Lowered)
    node = norm_node(lowered)
    x_type, scale_type = _types(node)
    assert x_type == scale_type
    stash = node.attributes["stash_type"].as_int()
    assert stash == (DOUBLE if x_type == DOUBLE else FLOAT)
    assert node.attributes["axis"].as_int() == -1
    assert node.attributes["epsilon"].as_float() == EPSILON


@pytest.mark.parametrize("n", [2, 3, 111, 199, 4104])
@pytest.mark.parametrize("dtype", [FLOAT, FLOAT16])
def test_odd_rows(n: int, dtype: int) -> None:
    source = Source(spec=SPEC, dtype=dtype, shape=(6, n), gain=_gain(n))
    built = build(source)
    check(source, built, _lower(built))


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 5, 7), (2, 3, 5, 7)])
def test_ranks(shape: tuple[int, ...]) -> None:
    source = Source(spec=SPEC, shape=shape, gain=_gain(7))
    built = build(source)
    lowered = _lower(built)
    assert ops(lowered) == PLAIN
    check(source, built, lowered)


@pytest.mark.parametrize("gain_shape", [(1, 123), (1, 1, 123)])
@pytest.mark.parametrize("dtype", [FLOAT, FLOAT16])
def test_leading_ones_of_the_gain_are_dropped(gain_shape: tuple[int, ...], dtype: int) -> None:
    source = Source(spec=SPEC, dtype=dtype, gain=_gain().reshape(gain_shape))
    built = build(source)
    lowered = _lower(built)
    assert ops(lowered) == ["Reshape", *PLAIN]
    assert isinstance(lowered, Lowered)
    scale = norm_node(lowered).inputs[1]
    assert scale is not None
    assert scale.shape == [123]
    check(source, built, lowered)


@pytest.mark.parametrize("gain_shape", [(5, 7), (1, 5, 7), (1, 1, 5, 7)])
def test_several_axes_take_a_scale_of_the_row_shape(gain_shape: tuple[int, ...]) -> None:
    source = Source(spec=_spec(axis=-2), shape=(2, 3, 5, 7), gain=_gain(35).reshape(gain_shape))
    built = build(source)
    lowered = _lower(built)
    assert ops(lowered) == ([] if len(gain_shape) == 2 else ["Reshape"]) + PLAIN
    assert isinstance(lowered, Lowered)
    node = norm_node(lowered)
    assert node.attributes["axis"].as_int() == -2
    scale = node.inputs[1]
    assert scale is not None
    assert scale.shape == [5, 7]
    check(source, built, lowered)


def test_several_axes_weightless() -> None:
    source = Source(spec=_spec(axis=-3), shape=(2, 3, 5, 7))
    built = build(source)
    lowered = _lower(built)
    assert isinstance(lowered, Lowered)
    assert lowered.initializers[0].shape == [3, 5, 7]
    check(source, built, lowered)


def test_dynamic_leading_dimensions_and_no_type_info() -> None:
    source = Source(spec=SPEC, dtype=FLOAT16, gain=_gain())
    built = build(source, keep_type_info=False)
    assert built.match.output.dtype is None
    lowered = _lower(built)
    assert ops(lowered) == PLAIN
    assert isinstance(lowered, Lowered)
    assert lowered.replace[0][1].dtype == FLOAT16


def test_a_gain_of_unknown_shape_is_made_a_row() -> None:
    source = Source(spec=SPEC, dtype=FLOAT16, gain=_gain(), gain_dtype=FLOAT)
    built = build(source, keep_type_info=False)
    # The Cast of the gain has neither type nor shape in the file.
    gain = built.match.offset_scale
    assert gain is not None
    assert gain.shape is None
    lowered = _lower(built)
    assert ops(lowered) == ["Reshape", *PLAIN]
    check(source, built, lowered)


def test_the_stored_weight_is_used_where_the_source_only_widens_it() -> None:
    source = Source(spec=SPEC, gain=_gain(), dtype=FLOAT16)
    built = build(source)
    weight = built.values["g"]
    wide, back = (
        ir.Value(name=name, shape=ir.Shape([123]), type=ir.TensorType(ir.DataType(dtype)))
        for name, dtype in (("wide_g", FLOAT), ("same_g", FLOAT))
    )
    built.model.graph.append(ir.node("Cast", [weight], {"to": FLOAT}, outputs=[wide]))
    built.model.graph.append(ir.node("Identity", [wide], outputs=[back]))
    match = replace(built.match, offset_scale=back)
    lowered = _lower(built, "reordered", match)
    assert ops(lowered) == PLAIN
    assert isinstance(lowered, Lowered)
    assert norm_node(lowered).inputs[1] is weight


def test_a_stored_weight_of_another_type_is_cast() -> None:
    source = Source(spec=GEMMA, dtype=FLOAT16, gain=_gain())
    built = build(source)
    built.match = replace(built.match, offset_scale=built.values["g"])
    lowered = _lower(built)
    assert ops(lowered) == ["Cast", *WIDE]
    check(source, built, lowered)


def test_names_are_taken_from_the_source_and_unique() -> None:
    source = Source(spec=SPEC, dtype=FLOAT16, gain=_gain().reshape(1, 1, 123))
    built = build(source)
    names = Names(built.model)
    taken = set(names.taken)
    first = _lower(built, "exact", built.match, names=names)
    second = _lower(built, "exact", built.match, names=names)
    produced: list[str] = []
    for lowered in (first, second):
        assert isinstance(lowered, Lowered)
        produced += [str(node.name) for node in lowered.nodes]
        produced += [str(v.name) for node in lowered.nodes for v in node.outputs]
        produced += [str(v.name) for v in lowered.initializers]
    assert len(set(produced)) == len(produced)
    assert not set(produced) & taken
    last = built.match.nodes[-1].name
    assert last is not None
    assert all(name.startswith(last) for name in produced)


# ---- parts of a norm that the operator cannot say: the inner match is lowered ----


def test_a_bias_stays() -> None:
    source = Source(spec=SPEC, gain=_gain(), bias=_gain())
    built = build(source)
    lowered = _lower(built)
    assert isinstance(lowered, Lowered)
    assert lowered.replace[0][0] is built.values["scaled"]
    assert any("bias" in note for note in lowered.notes)
    check(source, built, lowered)


def test_a_residual_stays() -> None:
    source = Source(spec=SPEC, gain=_gain(), residual=True)
    built = build(source)
    lowered = _lower(built)
    assert isinstance(lowered, Lowered)
    assert norm_node(lowered).inputs[0] is built.values["sum"]
    (apart,) = lowered.apart
    assert (apart.reason, apart.kind) == ("residual", "residual")
    check(source, built, lowered)


def test_the_gain_stays_where_one_ulp_would_not_hold_with_it() -> None:
    source = Source(spec=_spec(round_rstd=True), dtype=FLOAT16, gain=_gain())
    built = build(source)
    lowered = _lower(built, "reordered")
    assert isinstance(lowered, Lowered)
    assert lowered.replace[0][0] is built.values["normed"]
    assert lowered.numerics == "reordered"


def _outer(built: Built, **changes: Any) -> Match:
    """A larger norm around the one in the graph."""
    return replace(built.match, inner=built.match, **changes)


OUTER = {
    "group": {"spec": _spec(group_size=41)},
    "partial": {"spec": _spec(partial_size=41)},
    "epsilon-outside": {"spec": _spec(epsilon_outside=True)},
}


@pytest.mark.parametrize("reason", OUTER)
def test_what_the_operator_cannot_say_is_refused_or_left_outside(reason: str) -> None:
    built = build(Source(spec=SPEC, gain=_gain()))
    names = Names(built.model)
    alone = _lower(built, "upcast", replace(built.match, inner=None, **OUTER[reason]), names=names)
    assert isinstance(alone, Refusal)
    assert (alone.reason, alone.scope) == (reason, "main")
    assert alone.node == name_of(built.match.nodes[-1])
    assert alone.message
    assert alone.found
    assert alone.hint
    within = _lower(built, "reordered", _outer(built, **OUTER[reason]), names=names)
    assert ops(within) == PLAIN


def test_a_gate_is_refused_or_left_outside() -> None:
    built = build(Source(spec=SPEC, gain=_gain()))
    gate = {"gate": built.values["x"], "spec": _spec(kind="GatedRMSNorm")}
    names = Names(built.model)
    alone = _lower(built, "upcast", replace(built.match, inner=None, **gate), names=names)
    assert isinstance(alone, Refusal)
    assert alone.reason == "gate"
    assert "silu" in alone.found
    within = _lower(built, "reordered", _outer(built, **gate), names=names)
    assert ops(within) == PLAIN


def test_the_refusal_is_that_of_the_part_that_the_operator_could_say() -> None:
    built = build(Source(spec=_spec(stash_type=FLOAT16), dtype=FLOAT16, gain=_gain()))
    outer = _outer(built, bias=built.values["g"])
    lowered = _lower(built, "reordered", outer)
    assert isinstance(lowered, Refusal)
    assert lowered.reason == "numerics"


# ---- refusals ----


def _refusal(built: Built, match: Match | None = None, numerics: Numerics = "reordered") -> Refusal:
    lowered = _lower(built, numerics, replace(built.match, inner=None) if match is None else match)
    assert isinstance(lowered, Refusal)
    assert lowered.found
    assert lowered.hint
    return lowered


@pytest.mark.parametrize("numerics", ["exact", "reordered"])
def test_a_chain_in_f16_needs_upcast(numerics: Numerics) -> None:
    built = build(Source(spec=_spec(stash_type=FLOAT16), dtype=FLOAT16, gain=_gain()))
    refusal = _refusal(built, numerics=numerics)
    assert refusal.reason == "numerics"
    assert "upcast" in refusal.hint


def test_a_rounding_that_the_spec_does_not_repeat_needs_upcast() -> None:
    built = build(Source(spec=SPEC, dtype=FLOAT16, gain=_gain()))
    narrow = replace(built.match, inner=None, narrow=("mean rounded to float16",))
    assert "mean rounded to float16" in _refusal(built, narrow).found
    lowered = _lower(built, "upcast", narrow)
    assert isinstance(lowered, Lowered)
    assert lowered.numerics == "upcast"
    assert "mean rounded to float16" in lowered.notes[0]


def test_exact_refuses_a_rounded_rstd() -> None:
    built = build(Source(spec=_spec(round_rstd=True), dtype=FLOAT16))
    assert _refusal(built, numerics="exact").reason == "numerics"


def test_a_half_stash_of_another_type_is_refused_at_any_class() -> None:
    built = build(Source(spec=SPEC, gain=_gain()))
    match = replace(built.match, inner=None, spec=_spec(stash_type=FLOAT16))
    assert _refusal(built, match, "upcast").reason == "stash-type"


def test_an_epsilon_that_is_no_float32_is_refused_in_f64() -> None:
    spec = _spec(stash_type=DOUBLE, epsilon=1e-5)
    built = build(Source(spec=spec, dtype=DOUBLE, gain=_gain()))
    assert _refusal(built).reason == "epsilon-precision"


def test_weightless_rows_of_unknown_size() -> None:
    built = build(Source(spec=SPEC), symbolic=True)
    assert _refusal(built).reason == "row-size-unknown"


def test_a_gain_gives_the_size_of_a_dynamic_row() -> None:
    source = Source(spec=SPEC, gain=_gain())
    built = build(source, symbolic=True)
    assert ops(_lower(built)) == PLAIN


def test_several_dynamic_axes_with_a_gain_of_unknown_shape() -> None:
    built = build(
        Source(spec=_spec(axis=-2), shape=(2, 5, 7), gain=_gain(35).reshape(5, 7)), symbolic=True
    )
    gain = ir.Value(name="unknown", type=ir.TensorType(ir.DataType.FLOAT))
    match = replace(built.match, inner=None, offset_scale=gain, n=None)
    assert _refusal(built, match).reason == "row-size-unknown"


@pytest.mark.parametrize("gain_shape", [(), (1,), (5, 123), (4, 1, 123), (122,)])
def test_a_gain_that_is_not_one_row(gain_shape: tuple[int, ...]) -> None:
    built = build(Source(spec=SPEC, gain=_gain()))
    values = np.ones(gain_shape, NUMPY[FLOAT])
    gain = ir.Value(name="other", const_value=ir.tensor(values))
    match = replace(built.match, inner=None, offset_scale=gain)
    assert _refusal(built, match).reason == "gain-shape"


def test_an_offset_gain_that_is_no_value() -> None:
    built = build(Source(spec=SPEC, gain=_gain()))
    match = replace(built.match, inner=None, offset_scale=None, spec=_spec(scale_offset=1.0))
    assert _refusal(built, match).reason == "gain-not-a-value"


def test_the_whole_gain_is_used_when_there_is_an_offset() -> None:
    built = build(Source(spec=SPEC, gain=_gain()))
    stored = ir.Value(name="stored", shape=ir.Shape([123]), type=ir.TensorType(ir.DataType.FLOAT))
    match = replace(built.match, scale=stored, spec=_spec(scale_offset=1.0))
    lowered = _lower(built, "exact", match)
    assert isinstance(lowered, Lowered)
    assert norm_node(lowered).inputs[1] is built.values["g"]


def test_shapes_can_come_from_the_caller() -> None:
    source = Source(spec=_spec(axis=-2), shape=(2, 5, 7))
    built = build(source, keep_type_info=False)
    assert _refusal(built).reason == "row-size-unknown"
    lowered = _lower(built, shape=source.shape)
    assert isinstance(lowered, Lowered)
    assert lowered.initializers[0].shape == [5, 7]
