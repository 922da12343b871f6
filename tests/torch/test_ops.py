"""The operators compute what the spec says, to the bit; their schema, errors and types."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.qwen3 import modeling_qwen3 as qwen

import rmsnorm_export.torch as rt
from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.dtypes import numpy_dtype, type_name
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.torch.dtypes import TORCH_TYPES
from rmsnorm_export.torch.operator.plan import NAMES, OPERANDS
from tests.op.norm_models import Case, steps
from tests.op.torch_arrays import to_numpy, to_torch
from tests.sample import crossed
from tests.torch.norm_cases import DTYPES, FORMS, SIZES, case_of, cases, spec_of, tensors

OPS = torch.ops.rmsnorm_export
WRAPPERS = {kind: getattr(rt, name) for kind, name in NAMES.items()}
X = torch.ones(2, 6)


def _tuple(value) -> tuple:
    return value if isinstance(value, tuple) else (value,)


def exact_operands(case: Case) -> dict[str, np.ndarray]:
    """Operands by name of which no sum or sigmoid is rounded.

    The sum of squares is the one step whose rounding depends on its order. Here x is made of small
    integers, whose squares add up exactly in any order, and gates are 0 or 40, whose sigmoid is
    exact, so that two correct implementations agree in every bit. Rows are of three sizes, by
    powers of two: some far below their epsilon, some far above.
    """
    rng = np.random.default_rng(case.shape[-1])
    powers = (0, -7, -10) if FLOAT16 in (case.dtype, case.spec.stash_type) else (0, -60, 40)
    sizes = np.exp2(np.resize(powers, (*case.shape[:-1], 1)))
    # No zero, alone or as a sum: a row of zeros without an epsilon is NaN, which compares nothing.
    whole = {
        "x": rng.choice([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0], case.shape),
        "residual": rng.choice([-6.0, -5.0, -4.0, 4.0, 5.0, 6.0], case.shape),
        "gate": rng.choice([0.0, 40.0], case.shape),
    }
    whole["gate"][..., 0] = 40.0
    if case.spec.axis == -1 and case.spec.stash_type in (FLOAT, case.dtype):
        whole["x"], whole["residual"] = whole["x"] * sizes, whole["residual"] * sizes
    operands = case.operands()
    own = {name: values.astype(numpy_dtype(case.dtype)) for name, values in whole.items()}
    return {name: own.get(name, values) for name, values in operands.items()}


@crossed(6, dtype=DTYPES, form=[*FORMS], n=SIZES)
def test_every_bit_is_that_of_the_exact_reference(dtype, form, n):
    for case in cases(dtype, form, n):
        if case.spec.kind == "RotaryRMSNorm" and DOUBLE in (dtype, case.spec.stash_type):
            continue  # what is rounded twice, or a root an ulp off, cancels
        operands = exact_operands(case)
        expected = _tuple(reference_exact(case.spec, **operands))
        got = _tuple(rt.call(case.spec, **{k: to_torch(v) for k, v in operands.items()}))
        assert len(got) == len(expected)
        for value, right in zip(got, expected, strict=True):
            assert value.dtype == TORCH_TYPES[dtype]
            assert value.is_contiguous()
            assert np.isfinite(right.astype(np.float64)).mean() > 0.9
            if dtype != DOUBLE == case.spec.stash_type and dtype != FLOAT:
                # PyTorch casts float64 to a half type by way of float32, which rounds twice.
                distance = steps(to_numpy(value), right)
                assert distance.max() <= 1
                assert (distance > 0).mean() <= 0.01 or right.size < 1000
            elif DOUBLE == dtype == case.spec.stash_type:
                # The square root of MKL is an ulp off now and then, of what a bias may cancel.
                largest = np.abs(right[np.isfinite(right)]).max()
                bound = {"rtol": 2.0**-50, "atol": 2.0**-50 * largest}
                np.testing.assert_allclose(to_numpy(value), right, **bound)
            else:
                np.testing.assert_array_equal(to_numpy(value), right, err_msg=str(case))


@pytest.mark.parametrize("dtype", DTYPES, ids=type_name)
def test_special_rows(dtype):
    rows = np.array([[0, 0, 0], [np.inf, 1, 2], [-np.inf, np.inf, 2], [np.nan, 1, 2]])
    x = torch.from_numpy(rows).to(TORCH_TYPES[dtype])
    for attributes in ({}, {"scale_before_cast": True}, {"round_rstd": True}, {"epsilon": 0.0}):
        expected = reference_exact(NormSpec(**attributes), to_numpy(x))
        got = to_numpy(rt.rms_norm(x, **attributes))
        np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4)])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_empty_input(kind, shape):
    operands = [torch.zeros(shape, dtype=torch.float16) for _ in OPERANDS[kind][:-2]]
    for output in _tuple(WRAPPERS[kind](*operands)):
        assert output.shape == shape


@pytest.mark.parametrize("form", FORMS)
def test_strided_input_and_inputs_left_alone(form):
    case = case_of(spec_of(form, 6), FLOAT, FLOAT, FLOAT, (4, 5, 6))
    dense = tensors(case)
    strided = {
        name: value.mT.contiguous().mT if value.ndim > 1 else torch.stack([value, value], 1)[:, 0]
        for name, value in dense.items()
    }
    before = {name: value.clone() for name, value in strided.items()}
    expected, got = _tuple(rt.call(case.spec, **dense)), _tuple(rt.call(case.spec, **strided))
    for value, right in zip(got, expected, strict=True):
        torch.testing.assert_close(value, right, rtol=0, atol=0)
        assert value.is_contiguous()
    for name, value in strided.items():
        assert torch.equal(value, before[name])
        assert all(output.data_ptr() != value.data_ptr() for output in got)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rotary_norm_is_that_of_transformers(dtype):
    norm = qwen.Qwen3RMSNorm(12, eps=1e-6).to(dtype)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 5, 3, 12).to(dtype)
    cos, sin = (torch.randn(2, 5, 12).to(dtype) for _ in range(2))
    expected, _ = qwen.apply_rotary_pos_emb(*[norm(x).transpose(1, 2)] * 2, cos, sin)
    got = rt.rotary_rms_norm(x, cos[:, :, None], sin[:, :, None], norm.weight, epsilon=1e-6)
    # The sum of 12 squares in another order is all that differs.
    bound = 16 * 2.0**-24 if dtype == torch.float32 else 2.0**-6
    torch.testing.assert_close(got.transpose(1, 2), expected, rtol=bound, atol=bound)


def test_float32_tables_turn_half_rows_in_float32():
    x = torch.randn(3, 8).half()
    cos, sin = torch.randn(2, 3, 8)
    y = rt.rms_norm(x).float()
    turned = y * cos + torch.cat([-y[:, 4:], y[:, :4]], -1) * sin
    assert torch.equal(rt.rotary_rms_norm(x, cos, sin), turned.half())


# Errors.

ROTARY = {"x": X, "cos": X, "sin": X}


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("RMSNorm", {"x": X.int()}, "float tensors only"),
        ("RMSNorm", {"x": X, "axis": -3}, "dimensions"),
        ("RMSNorm", {"x": X, "partial_size": 7}, "partial_size"),
        ("RMSNorm", {"x": X, "group_size": 4}, "group_size does not fit"),
        ("RMSNorm", {"x": X, "scale_offset": 1.0}, "scale_offset does not fit"),
        ("RMSNorm", {"x": X.half(), "stash_type": 10, "association": 1}, "association 1"),
        ("RMSNorm", {"x": X, "scale": X}, "scale does not fit x"),
        ("RMSNorm", {"x": X, "scale": X[0].to("meta")}, "another device"),
        ("RMSNorm", {"x": X[..., None], "axis": -2, "last_axis": -2, "scale": X[0, :5]}, "scale"),
        ("SkipRMSNorm", {"x": X, "residual": X[:1]}, "shape and type"),
        ("GatedRMSNorm", {"x": X, "gate": X, "activation": "relu"}, "activation"),
        ("RotaryRMSNorm", ROTARY | {"cos": X[None, None]}, "cos does not fit x"),
        ("RotaryRMSNorm", ROTARY | {"cos": X.double()}, "cos does not fit x"),
        ("RotaryRMSNorm", ROTARY | {"rotary_dim": 8}, "rotary_dim does not fit"),
    ],
)
def test_operands_that_do_not_fit_are_rejected(kind, arguments, message):
    for function in (WRAPPERS[kind], getattr(OPS, NAMES[kind])):
        with pytest.raises(UsageError, match=message) as caught:
            function(**arguments)
        assert caught.value.found
        assert caught.value.fix


# RMSNorm, the module: parameters, state dicts, errors.

N = 111


@pytest.mark.parametrize("shape", [N, (5, 7)])
def test_the_state_dict_of_torch_loads(shape):
    theirs = torch.nn.RMSNorm(shape, eps=1e-6)
    torch.nn.init.normal_(theirs.weight)
    ours = rt.RMSNorm(shape, 1e-6, scale_before_cast=True)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, *theirs.normalized_shape)
    torch.testing.assert_close(ours(x), theirs(x), rtol=N * 2.0**-24, atol=1e-9)


def test_parameters_start_as_a_gain_of_one():
    module = rt.RMSNorm(7, bias=True, scale_offset=1, dtype=torch.bfloat16)
    zeros = torch.zeros(7, dtype=torch.bfloat16)
    assert set(module.state_dict()) == {"weight", "bias"}
    assert torch.equal(module.weight, zeros)
    assert torch.equal(module.bias, zeros)
    assert torch.equal(rt.RMSNorm((2, 3)).weight, torch.ones(2, 3))
    assert not rt.RMSNorm(7, weight=False).state_dict()
    assert rt.RMSNorm(7, device="meta").weight.device.type == "meta"
    assert repr(module) == "RMSNorm((7,), epsilon=1e-05, scale_offset=1.0, bias=True)"


ROWS = torch.randn(2, 6)
REJECTED = [
    ({"normalized_shape": 6, "partial_size": 7}, (), "partial_size does not fit"),
    ({"normalized_shape": (2, 3), "group_size": 3}, (), "need axis = -1"),
    ({"normalized_shape": 6, "weight": False, "scale_offset": 1.0}, (), "without a scale"),
    ({"normalized_shape": 6, "epsilno": 1.0}, (), "epsilno"),
    ({"normalized_shape": 5}, (ROWS,), "normalised shape"),
    ({"normalized_shape": 6, "weight": False}, (ROWS[:, :5],), "normalised shape"),
    ({"normalized_shape": 6}, (ROWS, ROWS), "takes 1 tensors"),
    ({"normalized_shape": 6, "kind": "SkipRMSNorm"}, (ROWS,), "takes 2 tensors"),
]


@pytest.mark.parametrize(("arguments", "inputs", "message"), REJECTED)
def test_what_does_not_fit_is_rejected(arguments, inputs, message):
    with pytest.raises(UsageError, match=message) as caught:
        rt.RMSNorm(**arguments)(*inputs)
    assert caught.value.found
    assert caught.value.fix
