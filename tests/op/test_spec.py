import itertools

import pytest

from rmsnorm_export.op.spec import ATTRIBUTE_WORDS, BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec


def test_default_is_the_llama_norm():
    assert NormSpec().attributes() == {
        "epsilon": 1e-5,
        "axis": -1,
        "stash_type": FLOAT,
        "scale_before_cast": 0,
        "scale_offset": 0.0,
        "epsilon_outside": 0,
        "partial_size": 0,
        "group_size": 0,
        "round_rstd": 0,
        "association": 0,
        "epsilon_clamp": 0,
        "last_axis": -1,
    }
    assert NormSpec(epsilon=1e-6).non_default() == {}


def test_only_the_gated_form_has_gate_attributes():
    gated = NormSpec(kind="GatedRMSNorm", activation="sigmoid", gate_first=True)
    assert gated.non_default() == {"activation": "sigmoid", "gate_first": 1}
    assert "activation" not in NormSpec(kind="SkipRMSNorm").attributes()


@pytest.mark.parametrize(
    "spec",
    [
        NormSpec(),
        NormSpec(kind="SkipRMSNorm", epsilon=0.0, stash_type=FLOAT16, round_rstd=True),
        NormSpec(kind="GatedRMSNorm", group_size=8, activation="sigmoid", gate_first=True),
        NormSpec(kind="RotaryRMSNorm", rotary_dim=8, rotary_interleaved=True),
    ],
)
def test_a_spec_is_read_back_from_its_attributes(spec):
    assert NormSpec.from_attributes(spec.kind, {**spec.attributes(), "plugin_version": "1"}) == spec


def test_every_attribute_has_its_words():
    kinds = (NormSpec(kind=kind).attributes() for kind in ("GatedRMSNorm", "RotaryRMSNorm"))
    assert list(ATTRIBUTE_WORDS) == list(
        dict(itertools.chain.from_iterable(k.items() for k in kinds))
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"epsilon": -1e-5},
        {"epsilon": float("inf")},
        {"axis": 0},
        {"stash_type": 7},
        {"scale_offset": float("inf")},
        {"partial_size": -1},
        {"partial_size": 2, "group_size": 2},
        {"partial_size": 2, "axis": -2},
        {"round_rstd": True, "scale_before_cast": True},
        {"kind": "RotaryRMSNorm", "rotary_dim": 3},
        {"kind": "RotaryRMSNorm", "partial_size": 2},
        {"kind": "RotaryRMSNorm", "axis": -2},
    ],
)
def test_contradictions_are_rejected(attributes):
    with pytest.raises(ValueError):
        NormSpec(**attributes)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, DOUBLE])
def test_canonical_keeps_what_rounds(dtype):
    for spec in (NormSpec(scale_before_cast=True), NormSpec(round_rstd=True)):
        assert spec.canonical(dtype) == spec


def test_canonical_drops_what_cannot_matter():
    assert NormSpec(scale_before_cast=True).canonical(FLOAT) == NormSpec()
    assert NormSpec(round_rstd=True).canonical(FLOAT) == NormSpec()
    half = NormSpec(stash_type=FLOAT16, scale_before_cast=True)
    assert half.canonical(FLOAT16) == NormSpec(stash_type=FLOAT16)
    assert half.canonical(FLOAT) == half
    outside = NormSpec(epsilon=0.0, epsilon_outside=True)
    assert outside.canonical(FLOAT16) == NormSpec(epsilon=0.0)
    assert NormSpec(epsilon=0.0, epsilon_clamp=True).canonical(FLOAT) == NormSpec(epsilon=0.0)
