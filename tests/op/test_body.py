"""Function bodies: valid in every opset, right in two runtimes, fused by ONNX Runtime."""

import functools
import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rmsnorm_export.op.body_key import BodyKey, assign_bodies, body_key, unify
from rmsnorm_export.op.operands import row_shape
from rmsnorm_export.op.spec import BFLOAT16, DOMAIN, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.proof.evaluate import run_numpy
from tests.op.norm_models import Case, feeds, model, optimized_ops, reference, steps, variants
from tests.sample import sampled

OPSETS = range(13, 25)
# The opsets at which a body changes, and the last: CastLike from 15, axes as an input from 18.
CHANGES = (13, 15, 18, 24)
# Every case with its own smallest body in every opset; sites sharing bodies where bodies change.
BODIES = [(opset, True) for opset in OPSETS] + [(opset, False) for opset in CHANGES]
# Of the opsets at which they change one has the smallest bodies, the next those that sites share.
SAMPLE = {(opset, index % 2 == 0) for index, opset in enumerate(CHANGES)}


@functools.cache
def cached_reference(case):
    """The same inputs serve every opset."""
    return reference(case, case.operands())


@sampled("opset, separate", BODIES, SAMPLE)
def test_checker_accepts_every_variant(opset, separate):
    proto = model(variants(), opset, separate=separate)
    onnx.checker.check_model(proto, full_check=True)
    for function in proto.functions:
        assert function.domain == DOMAIN
        assert [(entry.domain, entry.version) for entry in function.opset_import] == [("", opset)]
        names = [*function.input, *(name for node in function.node for name in node.output)]
        assert all(name.startswith(f"{DOMAIN}.{function.name}.") for name in names)
        assert len(set(names)) == len(names)
        referred = {a.ref_attr_name for node in function.node for a in node.attribute} - {""}
        assert referred == set(function.attribute) <= {"epsilon", "scale_offset"}


def most_steps(case):
    """Return how far two evaluations may be apart that round after every node.

    Only the sum of n squares in float32 or float64 is in another order: n / 2 roundings of the
    root, and 4 of what is made of it. It moves a rounding to a half type across a midpoint now and
    then, by one step, by two after a gain; in a half stash type the sum is rounded once in both.
    """
    if case.spec.stash_type in (FLOAT16, BFLOAT16):
        return 0
    if case.dtype in (FLOAT, DOUBLE):
        return int(np.prod(row_shape(case.spec, case.shape))) / 2 + 4
    return 2


@sampled("opset, separate", itertools.product(CHANGES, (True, False)), {(13, True), (24, False)})
def test_rounds_exactly_where_the_reference_does(opset, separate):
    """In NumPy, node by node; test_spellings runs bodies of all types in ONNX Runtime."""
    differing, every = [], variants()
    for cases in (every[start : start + 64] for start in range(0, len(every), 64)):
        proto = model(cases, opset, separate=separate)
        computed = run_numpy(ir.from_proto(proto), feeds(cases, proto))
        for index, case in enumerate(cases):
            for name, value in zip(("y", "sum"), cached_reference(case), strict=False):
                wider = (case.dtype, case.spec.stash_type) == (DOUBLE, FLOAT)
                unit = np.float32 if wider else value.dtype
                distance = steps(computed[f"{name}{index}"].astype(unit), value.astype(unit))
                # A bias or a pair may cancel leading digits: a step of a term is many of the sum.
                if case.bias_dtype is None and case.spec.kind != "RotaryRMSNorm":
                    assert distance.max() <= most_steps(case), (name, case)
                if case.dtype in (FLOAT16, BFLOAT16):
                    differing.append((distance > 0).mean())
                    assert differing[-1] < 0.02, (name, case)
    assert np.mean(differing) < 2e-3


LATE = NormSpec(scale_before_cast=True)
FUSED = (
    Case(NormSpec(), FLOAT, FLOAT),
    *(Case(spec, FLOAT16, scale) for scale in (FLOAT16, FLOAT) for spec in (NormSpec(), LATE)),
    Case(NormSpec(stash_type=FLOAT16), FLOAT16, FLOAT16),
    Case(LATE, BFLOAT16, BFLOAT16),
    Case(NormSpec(scale_offset=1.0), FLOAT, FLOAT),
    Case(NormSpec(scale_offset=1.0, scale_before_cast=True), FLOAT16, FLOAT16),
    Case(NormSpec(), FLOAT, FLOAT, FLOAT),
    Case(NormSpec(kind="SkipRMSNorm"), FLOAT, FLOAT),
    Case(NormSpec(kind="GatedRMSNorm"), FLOAT, FLOAT),
)


def shared(dtype):
    offset = Case(NormSpec(scale_offset=1.0), dtype, dtype)
    return Case(NormSpec(), dtype, dtype), offset, Case(NormSpec(), dtype)


@pytest.mark.parametrize("opset", CHANGES)
@pytest.mark.parametrize(
    ("cases", "separate"), [(FUSED, True), (shared(FLOAT), False), (shared(FLOAT16), False)]
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
    proto = model((Case(NormSpec(epsilon=1e-12, stash_type=DOUBLE), DOUBLE, DOUBLE),), opset)
    assert "SimplifiedLayerNormalization" not in optimized_ops(proto, tmp_path)


# Which bodies a model needs, and how they are named.


def key(dtype=FLOAT16, scale=FLOAT16, bias=None, opset=18, **attributes):
    spec = NormSpec(**attributes)
    return body_key(spec, dtype=dtype, scale_dtype=scale, bias_dtype=bias, opset=opset)


SINGLE = {"dtype": FLOAT, "scale": FLOAT}
IN_DOUBLE = {"dtype": DOUBLE, "scale": DOUBLE, "stash_type": DOUBLE}
SCALED_LATE, GATED = {"scale_before_cast": True}, {"kind": "GatedRMSNorm"}


@pytest.mark.parametrize(
    ("a", "b", "joined"),
    [
        (key(), key(scale_offset=1.0), BodyKey(casts=True, has_offset=True)),
        (key(), key(bias=FLOAT16), BodyKey(casts=True, has_bias=True)),
        (key(**SINGLE), key(), key()),
        (key(scale=None), key(), key()),
        # The order of the site where it matters.
        (key(**SINGLE), key(**SCALED_LATE), key(**SCALED_LATE)),
        (key(round_rstd=True), key(**SINGLE), key(round_rstd=True)),
        # What one body cannot say.
        (key(), key(**SCALED_LATE), None),
        (key(), key(round_rstd=True), None),
        (key(), key(stash_type=FLOAT16), None),
        (key(partial_size=4), key(partial_size=5), None),
        (key(**GATED, scale=None), key(**GATED, **SCALED_LATE, scale=None), None),
        (key(opset=14), key(dtype=BFLOAT16, scale=BFLOAT16, opset=14), None),
        (key(**IN_DOUBLE, epsilon=1e-6), key(**IN_DOUBLE, epsilon=1e-5), None),
    ],
)
def test_bodies_join_what_is_neutral(a, b, joined):
    assert unify(a, b) == unify(b, a) == joined


def test_ties_go_to_the_earlier_site_and_nothing_else_depends_on_the_order():
    llama, gemma = key(), key(**SCALED_LATE)
    assert assign_bodies([gemma, llama])[0][0] == assign_bodies([llama, gemma])[0][0] == "RMSNorm"
    keys = [llama] * 3 + [gemma] * 2 + [key(scale=None), key(group_size=8)]
    expected = dict(zip(keys, assign_bodies(keys), strict=True))
    assert expected[gemma][0] == "RMSNorm_scale_before_cast"
    for order in set(itertools.permutations(keys)):
        assert assign_bodies(order) == [expected[own] for own in order]


@pytest.mark.parametrize("opset", [13, 18])
def test_every_site_can_use_its_body_and_names_are_unique(opset):
    keys = [case.key(opset) for case in variants()]
    by_name = {}
    for own, (name, shared) in zip(keys, assign_bodies(keys), strict=True):
        assert unify(own, shared) == shared
        assert by_name.setdefault(name, shared) == shared
    assert len(set(by_name.values())) == len(by_name)
    assert {"RMSNorm", "SkipRMSNorm", "GatedRMSNorm"} <= set(by_name)
