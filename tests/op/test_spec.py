import ml_dtypes
import numpy as np
import pytest

from rmsnorm_export.op.dtypes import element_type, numpy_dtype, round_to, type_name
from rmsnorm_export.op.numerics import NUMERICS_ORDER
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.op.words import WORDS


def test_default_is_the_llama_norm():
    """In the order of the plugin's fields; what came later stands behind."""
    words = "epsilon axis stash_type scale_before_cast scale_offset epsilon_outside partial_size "
    words += "group_size round_rstd association epsilon_clamp last_axis"
    values = (1e-5, -1, FLOAT, 0, 0.0, 0, 0, 0, 0, 0, 0, -1)
    own = NormSpec().attributes().items()
    assert list(own)[: len(values)] == list(zip(words.split(), values, strict=True))
    assert NormSpec(epsilon=1e-6).non_default() == {}
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
def test_a_spec_is_read_back_from_its_attributes_and_all_have_words(spec):
    attributes = spec.attributes()
    assert NormSpec.from_attributes(spec.kind, {**attributes, "plugin_version": "1"}) == spec
    assert [name for name in WORDS if name in attributes] == list(attributes)
    assert WORDS.keys() >= set(NUMERICS_ORDER)
    assert not {name for name in attributes if f"        {name}: " not in NormSpec.__doc__}


@pytest.mark.parametrize(
    "attributes",
    [
        {"epsilon": -1e-5},
        {"axis": 0},
        {"stash_type": 7},
        {"scale_offset": float("inf")},
        {"partial_size": -1},
        {"partial_size": 2, "group_size": 2},
        {"round_rstd": True, "scale_before_cast": True},
        {"scale_rstd": True},
        {"scale_rstd": True, "round_rstd": True, "group_size": 2},
        {"scale_varies": True, "axis": -2},
        {"scale_varies": True, "group_size": 2},
        {"epsilon_outside": True, "epsilon_clamp": True},
        {"axis": -3, "last_axis": -2},
        {"axis": -2, "last_axis": -2, "group_size": 4},
        {"kind": "RotaryRMSNorm", "rotary_dim": 3},
        {"kind": "RotaryRMSNorm", "partial_size": 2},
    ],
)
def test_contradictions_are_rejected(attributes):
    with pytest.raises(ValueError):
        NormSpec(**attributes)


LATE, RSTD = {"scale_before_cast": True}, {"round_rstd": True}


@pytest.mark.parametrize(
    ("attributes", "dtype", "same"),
    [
        *((own, dtype, own) for own in (LATE, RSTD) for dtype in (FLOAT16, BFLOAT16, DOUBLE)),
        *((own, FLOAT, {}) for own in (LATE, RSTD)),
        ({"stash_type": FLOAT16, **LATE}, FLOAT16, {"stash_type": FLOAT16}),
        ({"stash_type": FLOAT16, **LATE}, FLOAT, {"stash_type": FLOAT16, **LATE}),
        ({"epsilon": 0.0, "epsilon_outside": True}, FLOAT16, {"epsilon": 0.0}),
        ({"epsilon": 0.0, "epsilon_clamp": True}, FLOAT, {"epsilon": 0.0}),
    ],
)
def test_canonical_keeps_what_rounds_and_drops_what_cannot_matter(attributes, dtype, same):
    assert NormSpec(**attributes).canonical(dtype) == NormSpec(**same)


ALL = (FLOAT, FLOAT16, DOUBLE, BFLOAT16)


def test_types_map_both_ways():
    assert [type_name(t) for t in ALL] == ["float32", "float16", "float64", "bfloat16"]
    assert [element_type(numpy_dtype(t)) for t in ALL] == list(ALL)


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16])
def test_every_half_number_rounds_to_itself(half):
    bits = np.arange(2**16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        stored = bits.view(numpy_dtype(half)).astype(np.float64)
    rounded = round_to(stored, half)
    np.testing.assert_array_equal(rounded, stored)
    np.testing.assert_array_equal(np.signbit(rounded), np.signbit(stored))


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16])
def test_rounds_once_to_nearest_even(half):
    """Every midpoint of two neighbours, and a float64 hair, less than float32 has, beside it."""
    bits = np.arange(0, 2**15 - 1, 7, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        low = bits.view(numpy_dtype(half)).astype(np.float64)
        high = (bits + np.uint16(1)).view(numpy_dtype(half)).astype(np.float64)
    finite = np.isfinite(high)
    low, high, even = low[finite], high[finite], (bits % 2 == 0)[finite]
    middle = (low + high) / 2
    np.testing.assert_array_equal(round_to(middle, half), np.where(even, low, high))
    np.testing.assert_array_equal(round_to(np.nextafter(middle, np.inf), half), high)
    np.testing.assert_array_equal(round_to(np.nextafter(middle, 0), half), low)


@pytest.mark.parametrize("target", [FLOAT, FLOAT16, BFLOAT16])
def test_overflow_is_infinite_from_the_midpoint_on(target):
    info = ml_dtypes.finfo(numpy_dtype(target))
    largest = float(info.max)
    limit = largest + (largest - float(np.nextafter(info.max, info.dtype.type(0)))) / 2
    values = [largest, np.nextafter(limit, 0), limit, -limit, np.inf, -np.inf]
    expected = [largest, largest, np.inf, -np.inf, np.inf, -np.inf]
    np.testing.assert_array_equal(round_to(values, target), expected)
    assert np.isnan(round_to(np.nan, target))
