"""Which bodies a model needs, and how they are named."""

import itertools

import pytest

from rmsnorm_export.op.body_key import BodyKey, assign_bodies, body_key, unify
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from tests.op.norm_models import variants


def key(dtype=FLOAT16, scale=FLOAT16, bias=None, opset=18, **attributes):
    spec = NormSpec(**attributes)
    return body_key(spec, dtype=dtype, scale_dtype=scale, bias_dtype=bias, opset=opset)


SINGLE = {"dtype": FLOAT, "scale": FLOAT}
IN_DOUBLE = {"dtype": DOUBLE, "scale": DOUBLE, "stash_type": DOUBLE}
LATE, GATED = {"scale_before_cast": True}, {"kind": "GatedRMSNorm"}


@pytest.mark.parametrize(
    ("a", "b", "joined"),
    [
        (key(), key(scale_offset=1.0), BodyKey(casts=True, has_offset=True)),
        (key(), key(bias=FLOAT16), BodyKey(casts=True, has_bias=True)),
        (key(**SINGLE), key(), key()),
        (key(scale=None), key(), key()),
        # The order of the site where it matters.
        (key(**SINGLE), key(**LATE), key(**LATE)),
        (key(round_rstd=True), key(**SINGLE), key(round_rstd=True)),
        # What one body cannot say.
        (key(), key(**LATE), None),
        (key(), key(round_rstd=True), None),
        (key(), key(stash_type=FLOAT16), None),
        (key(partial_size=4), key(partial_size=5), None),
        (key(**GATED, scale=None), key(**GATED, **LATE, scale=None), None),
        (key(opset=14), key(dtype=BFLOAT16, scale=BFLOAT16, opset=14), None),
        (key(**IN_DOUBLE, epsilon=1e-6), key(**IN_DOUBLE, epsilon=1e-5), None),
    ],
)
def test_bodies_join_what_is_neutral(a, b, joined):
    assert unify(a, b) == unify(b, a) == joined


def test_ties_go_to_the_earlier_site_and_nothing_else_depends_on_the_order():
    llama, gemma = key(), key(**LATE)
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
