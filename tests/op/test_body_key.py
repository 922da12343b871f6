import itertools

import pytest

from rmsnorm_export.op.body_key import BodyKey, assign_bodies, body_key, unify
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from tests.op.norm_models import variants


def key(spec=None, dtype=FLOAT16, scale=FLOAT16, bias=None, opset=18, **attributes):
    spec = spec or NormSpec(**attributes)
    return body_key(spec, dtype=dtype, scale_dtype=scale, bias_dtype=bias, opset=opset)


def test_no_casts_where_nothing_is_rounded():
    assert key(dtype=FLOAT, scale=FLOAT) == BodyKey()
    assert key(dtype=FLOAT, scale=FLOAT, scale_before_cast=True) == BodyKey()
    assert key(dtype=FLOAT16, stash_type=FLOAT16) == BodyKey(stash_type=FLOAT16)
    assert key() == BodyKey(casts=True)


def test_scale_is_cast_when_its_type_is_not_that_of_the_product():
    assert not key().scale_cast
    assert key(scale=FLOAT).scale_cast
    assert key(scale_before_cast=True).scale_cast
    assert not key(scale=FLOAT, scale_before_cast=True).scale_cast
    assert key(bias=FLOAT).bias_cast


def test_type_is_named_only_where_castlike_is_missing():
    assert key(opset=14).dtype == FLOAT16
    assert key(opset=15).dtype is None
    assert key(dtype=FLOAT, scale=FLOAT, opset=14).dtype is None


def test_literals_only_where_float32_cannot_hold_the_value():
    double = {"dtype": DOUBLE, "scale": DOUBLE, "stash_type": DOUBLE}
    assert key(**double, epsilon=1e-6).literal_epsilon == 1e-6
    assert key(**double, epsilon=2.0**-20).literal_epsilon is None
    assert key(epsilon=1e-6).literal_epsilon is None
    assert key(**double, epsilon=0.0, scale_offset=0.1).literal_offset == 0.1
    assert key(scale_offset=0.1).literal_offset is None


def test_unify_joins_what_is_neutral():
    plain, offset, biased = key(), key(scale_offset=1.0), key(bias=FLOAT16)
    joined = unify(unify(plain, offset), biased)
    assert joined == BodyKey(casts=True, has_bias=True, has_offset=True)
    single = key(dtype=FLOAT, scale=FLOAT)
    assert unify(single, plain) == plain
    assert unify(key(scale=None), plain) == plain
    assert unify(key(dtype=BFLOAT16, scale=BFLOAT16), plain) == plain


def test_unify_takes_over_the_order_of_the_site_where_it_matters():
    before = key(scale_before_cast=True)
    assert unify(key(dtype=FLOAT, scale=FLOAT), before) == before
    assert unify(before, key(scale=None)) == before
    rstd = key(round_rstd=True)
    assert unify(rstd, key(dtype=FLOAT, scale=FLOAT)) == rstd


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (key(), key(scale_before_cast=True)),
        (key(), key(round_rstd=True)),
        (key(scale=None), key(scale=None, round_rstd=True)),
        (key(), key(stash_type=FLOAT16)),
        (key(), key(group_size=8)),
        (key(partial_size=4), key(partial_size=5)),
        (key(), key(axis=-2)),
        (key(), key(epsilon_outside=True)),
        (key(), key(epsilon_clamp=True)),
        (key(axis=-3), key(axis=-3, last_axis=-3)),
        (key(), key(kind="SkipRMSNorm")),
        (key(kind="GatedRMSNorm"), key(kind="GatedRMSNorm", activation="sigmoid")),
        (key(kind="GatedRMSNorm"), key(kind="GatedRMSNorm", gate_first=True)),
        (key(opset=14), key(dtype=BFLOAT16, scale=BFLOAT16, opset=14)),
        (key(opset=14), key(dtype=FLOAT, scale=FLOAT, opset=14)),
        (
            key(dtype=DOUBLE, scale=DOUBLE, stash_type=DOUBLE, epsilon=1e-6),
            key(dtype=DOUBLE, scale=DOUBLE, stash_type=DOUBLE, epsilon=1e-5),
        ),
    ],
)
def test_unify_refuses_what_one_body_cannot_say(a, b):
    assert unify(a, b) is None
    assert unify(b, a) is None


def test_unify_is_symmetric_and_idempotent():
    keys = list(dict.fromkeys(case.key(18) for case in variants()))
    for a in keys:
        assert unify(a, a) == a
    for a, b in itertools.combinations(keys, 2):
        joined = unify(a, b)
        assert joined == unify(b, a)
        if joined is not None:
            assert unify(joined, a) == joined


def test_a_gate_after_the_norm_makes_the_order_of_a_weightless_norm_matter():
    plain = key(scale=None, kind="GatedRMSNorm")
    before = key(scale=None, kind="GatedRMSNorm", scale_before_cast=True)
    assert unify(plain, before) is None
    first = key(scale=None, kind="GatedRMSNorm", gate_first=True)
    assert first == key(scale=None, kind="GatedRMSNorm", gate_first=True, scale_before_cast=True)


def test_most_sites_have_the_plain_name_and_the_others_say_why_not():
    llama, gemma, group = key(), key(scale_before_cast=True), key(group_size=64)
    skip, weightless = key(kind="SkipRMSNorm"), key(scale=None)
    keys = [gemma, llama, weightless, group, llama, skip]
    names = [name for name, _ in assign_bodies(keys)]
    assert names == [
        "RMSNorm_scale_before_cast",
        "RMSNorm",
        "RMSNorm",
        "RMSNorm_grouped",
        "RMSNorm",
        "SkipRMSNorm",
    ]
    names = [name for name, _ in assign_bodies([gemma, gemma, gemma, llama])]
    assert names == ["RMSNorm", "RMSNorm", "RMSNorm", "RMSNorm_scale_after_cast"]


def test_ties_go_to_the_earlier_site_and_nothing_else_depends_on_the_order():
    llama, gemma = key(), key(scale_before_cast=True)
    assert assign_bodies([gemma, llama])[0][0] == "RMSNorm"
    assert assign_bodies([llama, gemma])[0][0] == "RMSNorm"
    weightless, group = key(scale=None), key(group_size=8)
    keys = [llama] * 3 + [gemma] * 2 + [weightless, group]
    expected = dict(zip(keys, assign_bodies(keys), strict=True))
    assert expected[gemma][0] == "RMSNorm_scale_before_cast"
    for order in itertools.permutations(keys):
        assert assign_bodies(order) == [expected[own] for own in order]


def test_every_site_can_use_its_body_and_names_are_unique():
    for opset in (13, 18):
        keys = [case.key(opset) for case in variants()]
        assigned = assign_bodies(keys)
        for own, (_, shared) in zip(keys, assigned, strict=True):
            assert unify(own, shared) == shared
        by_name = {}
        for name, body in assigned:
            assert by_name.setdefault(name, body) == body
        assert len(set(by_name.values())) == len(by_name)
        assert {"RMSNorm", "SkipRMSNorm", "GatedRMSNorm"} <= set(by_name)
