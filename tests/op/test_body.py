"""Function bodies: valid in every opset, right in two runtimes, fused by ONNX Runtime."""

import functools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from rmsnorm_export.op.operands import row_shape
from rmsnorm_export.op.reference import reference_float64
from rmsnorm_export.op.spec import BFLOAT16, DOMAIN, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.runtime.session import run_onnxruntime
from tests.op.norm_models import (
    Case,
    feeds,
    model,
    optimized_ops,
    reference,
    steps,
    variants,
)
from tests.sample import sampled

OPSETS = range(13, 25)
# The opsets at which a body changes, and the last: CastLike from 15, axes as an input from 18.
CHANGES = (13, 15, 18, 24)
# Every case with its own smallest body in every opset; sites sharing bodies where bodies change.
BODIES = [(opset, True) for opset in OPSETS] + [(opset, False) for opset in CHANGES]
CHANGED = {body for body in BODIES if body[0] in CHANGES}
# Significand bits, the hidden one included.
PRECISION = {FLOAT: 24, FLOAT16: 11, DOUBLE: 53, BFLOAT16: 8}
TINY = {FLOAT: 2.0**-149, FLOAT16: 2.0**-24, DOUBLE: 2.0**-1074, BFLOAT16: 2.0**-133}


@functools.cache
def cached_reference(case):
    """The same inputs serve every opset."""
    return reference(case, case.operands())


def expected_outputs(cases):
    outputs = {}
    for index, case in enumerate(cases):
        names = ("y", "sum") if case.spec.kind == "SkipRMSNorm" else ("y",)
        for name, value in zip(names, cached_reference(case), strict=True):
            outputs[f"{name}{index}"] = value
    return outputs


def magnitude(case, operands):
    """The size of the terms whose roundings add up to the error of an element.

    ``|row| / rms * (|offset| + |scale|) + |bias|``, times ``|gate|`` where that comes after; for
    ``silu(z) = z * sigmoid(z)`` taken at ``|z|``, for the sigmoid of runtimes has an absolute error
    of some units of 2**-24, however small it is.
    """
    wide = {name: array.astype(np.float64) for name, array in operands.items()}
    behind = (1,) * (-1 - case.spec.last_axis)
    for name in wide.keys() & {"scale", "bias"}:
        wide[name] = wide[name].reshape(*wide[name].shape, *behind)
    row = terms = wide["x"] + wide.get("residual", 0.0)
    gate = None
    if "gate" in wide:
        gate, gate_size = (
            z / (1 + np.exp(-z)) if case.spec.activation == "silu" else 1 / (1 + np.exp(-z))
            for z in (wide["gate"], np.abs(wide["gate"]))
        )
        if case.spec.gate_first:
            row, terms = row * gate, terms * gate_size
    names = ("epsilon", "axis", "last_axis", "epsilon_outside", "epsilon_clamp")
    names += ("partial_size", "group_size")
    plain = NormSpec(**{name: getattr(case.spec, name) for name in names})
    size = np.abs(reference_float64(plain, row)) * np.abs(terms / row)
    if "scale" in wide:
        size = size * (np.abs(case.spec.scale_offset) + np.abs(wide["scale"]))
    if "bias" in wide:
        size = size + np.abs(wide["bias"])
    if gate is not None and not case.spec.gate_first:
        size = size * gate_size
    if "cos" in wide:
        # The terms of an element are those of its pair, each with a cosine or sine of its own.
        largest = np.maximum(np.abs(wide["cos"]), np.abs(wide["sin"])).max()
        size = np.broadcast_to(2 * max(1.0, largest) * size.max(-1, keepdims=True), size.shape)
    return size


@functools.cache
def bound(case):
    """How far a runtime may be from the exact reference.

    In the stash type at most 12 roundings differ (rsqrt or root and quotient, the order of
    products, a sigmoid of a few ulp), and the sum of n squares in any order, halved by the root. In
    T at most 10 do (sum, reciprocal, cast, scale and bias cast, gain, product, bias, gate, result):
    ONNX Runtime computes half types in float32 on CPU and drops the roundings in between even with
    graph optimization disabled.
    """
    n = int(np.prod(row_shape(case.spec, case.shape)))
    stash = 2.0 ** -PRECISION[case.spec.stash_type]
    roundings = 12 * stash
    if case.spec.stash_type in (FLOAT, DOUBLE):
        roundings += n / 2 * stash
    out = 2.0 ** -PRECISION[case.dtype]
    return (roundings + 10 * out) * magnitude(case, case.operands()) + 4 * TINY[case.dtype]


def runs_in_onnxruntime(case):
    """No CPU kernel computes in bfloat16; a body that only casts it runs."""
    spec = case.spec
    if BFLOAT16 not in (case.dtype, spec.stash_type):
        return True
    after = case.scale_dtype or case.bias_dtype
    return (
        spec.stash_type == FLOAT
        and spec.kind != "SkipRMSNorm"
        and case.table_dtype in (None, FLOAT)
        and not spec.round_rstd
        and (spec.scale_before_cast or not after)
    )


@sampled("opset, separate", BODIES, CHANGED)
def test_checker_accepts_every_variant(opset, separate):
    proto = model(variants(), opset, separate=separate)
    onnx.checker.check_model(proto, full_check=True)
    for function in proto.functions:
        assert function.domain == DOMAIN
        assert [(entry.domain, entry.version) for entry in function.opset_import] == [("", opset)]


@pytest.mark.parametrize(("opset", "separate"), [body for body in BODIES if body[0] in CHANGES])
def test_rounds_exactly_where_the_reference_does(opset, separate):
    """onnx.reference rounds after every node, so the body's roundings are those of the reference.

    Only the order of the sum differs, by a few float32 ulp, which moves a rounding to a half type
    across a midpoint in well under 1 % of elements, by one step (two after a gain). A half stash
    type is left out: NumPy then accumulates the mean in it.
    """
    cases = [c for c in variants() if c.dtype != c.spec.stash_type and c.spec.stash_type == FLOAT]
    cases = [case for case in cases if case.dtype in (FLOAT16, BFLOAT16)]
    proto = model(cases, opset, separate=separate)
    names = [output.name for output in proto.graph.output]
    got = dict(zip(names, ReferenceEvaluator(proto).run(None, feeds(cases, proto)), strict=True))
    expected = expected_outputs(cases)
    assert set(expected) == set(got)
    differing = total = 0
    for name, value in expected.items():
        distance = steps(got[name], value)
        case = cases[int(name.lstrip("ysum"))]
        # A bias may cancel the leading digits: one step of a term is then many of the result.
        if case.bias_dtype is None:
            assert distance.max() <= 2, (name, case)
        differing += (distance > 0).sum()
        total += distance.size
        assert (distance > 0).mean() < 0.02, (name, case)
    assert differing / total < 2e-3


@sampled("opset, separate", BODIES, CHANGED)
def test_onnxruntime_agrees_with_the_reference(opset, separate):
    cases = [case for case in variants() if runs_in_onnxruntime(case)]
    assert {case.dtype for case in cases} == {FLOAT, FLOAT16, DOUBLE, BFLOAT16}
    if not separate:
        # A shared body may do more in bfloat16 than the site's own.
        cases = [case for case in cases if case.dtype != BFLOAT16]
    proto = model(cases, opset, separate=separate)
    got = run_onnxruntime(ir.from_proto(proto), feeds(cases, proto))
    expected = expected_outputs(cases)
    for name, value in expected.items():
        case = cases[int(name.lstrip("ysum"))]
        result = got[name].astype(np.float64)
        if name.startswith("sum"):
            np.testing.assert_array_equal(result, value.astype(np.float64))
            continue
        error = np.abs(result - value.astype(np.float64))
        assert (error <= bound(case)).all(), (name, case)


def test_the_bound_can_fail():
    """A missing offset, another order of gate and norm, or epsilon elsewhere breaks it."""
    pairs = [
        (NormSpec(scale_offset=1.0), NormSpec()),
        (NormSpec(partial_size=5), NormSpec()),
        (NormSpec(group_size=8), NormSpec()),
        (NormSpec(epsilon=1e-3, epsilon_outside=True), NormSpec(epsilon=1e-3)),
        (NormSpec(epsilon=0.5, epsilon_clamp=True), NormSpec(epsilon=0.25)),
        (NormSpec(epsilon=1e-3), NormSpec(epsilon=1e-5)),
    ]
    for right, wrong in pairs:
        case = Case(right, FLOAT, FLOAT)
        operands = case.operands()
        (good,), (bad,) = (reference(Case(spec, FLOAT, FLOAT), operands) for spec in (right, wrong))
        assert (np.abs(good - bad) > bound(case)).any()


FUSED = [
    *(
        Case(NormSpec(stash_type=stash, scale_before_cast=before), dtype, scale)
        for dtype, scale, stash, before in [
            (FLOAT, FLOAT, FLOAT, False),
            (FLOAT16, FLOAT16, FLOAT, False),
            (FLOAT16, FLOAT16, FLOAT, True),
            (FLOAT16, FLOAT, FLOAT, False),
            (FLOAT16, FLOAT, FLOAT, True),
            (FLOAT16, FLOAT16, FLOAT16, False),
            (BFLOAT16, BFLOAT16, FLOAT, True),
        ]
    ),
    Case(NormSpec(scale_offset=1.0), FLOAT, FLOAT),
    Case(NormSpec(scale_offset=1.0, scale_before_cast=True), FLOAT16, FLOAT16),
    Case(NormSpec(), FLOAT, FLOAT, FLOAT),
    Case(NormSpec(kind="SkipRMSNorm"), FLOAT, FLOAT),
    Case(NormSpec(kind="GatedRMSNorm"), FLOAT, FLOAT),
]
SHARED = {
    dtype: [
        Case(NormSpec(), dtype, dtype),
        Case(NormSpec(scale_offset=1.0), dtype, dtype),
        Case(NormSpec(), dtype),
    ]
    for dtype in (FLOAT, FLOAT16)
}


@pytest.mark.parametrize("opset", CHANGES)
@pytest.mark.parametrize(
    ("cases", "separate"), [(FUSED, True), (SHARED[FLOAT], False), (SHARED[FLOAT16], False)]
)
def test_onnxruntime_fuses_the_ordinary_norm(opset, cases, separate, tmp_path):
    """In a shared body even one without a weight."""
    proto = model(cases, opset, weights=True, separate=separate)
    assert separate or len(proto.functions) == 1
    ops = optimized_ops(proto, tmp_path)
    assert ops.count("SimplifiedLayerNormalization") == len(cases)
    assert not {"Pow", "ReduceMean"} & set(ops)


@pytest.mark.parametrize("opset", CHANGES)
def test_onnxruntime_does_not_fuse_float64(opset, tmp_path):
    """Its fusion reads epsilon as a float32 tensor and takes 1e-5 for any other."""
    proto = model([Case(NormSpec(epsilon=1e-12, stash_type=DOUBLE), DOUBLE, DOUBLE)], opset)
    assert "SimplifiedLayerNormalization" not in optimized_ops(proto, tmp_path)


def test_names_inside_cannot_meet_names_outside():
    proto = model(variants(), 18)
    for function in proto.functions:
        values = [*function.input]
        for node in function.node:
            values += node.output
        assert all(name.startswith(f"{DOMAIN}.{function.name}.") for name in values)
        assert len(set(values)) == len(values)


def test_attributes_are_those_that_the_body_refers_to():
    for function in model(variants(), 18, separate=True).functions:
        referred = {a.ref_attr_name for node in function.node for a in node.attribute}
        assert referred - {""} == set(function.attribute)
        assert set(function.attribute) <= {"epsilon", "scale_offset"}
