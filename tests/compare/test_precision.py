"""Models of different float types, and bfloat16 where ONNX Runtime has no kernels for it."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_export import verify
from rmsnorm_export.errors import InputError, VerificationError
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.runtime.metrics import compare_arrays

F32, F16, F64, BF16 = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16,
)  # fmt: skip
N = 16
ROUGH = {F16: 1e-2, BF16: 4e-2, F32: 1e-4, F64: 1e-9}


def tower(element_type: int, *, epsilon: float = 1e-6, by: str = "x") -> onnx.ModelProto:
    """A product, an RMSNorm that is computed in float32, a product; weights of one seed."""
    rng, make = np.random.default_rng(0), helper.make_node
    weights = {
        "w0": rng.standard_normal((N, N)) / 4,
        "gain": rng.uniform(0.5, 1.5, N),
        "w1": rng.standard_normal((N, N)) / 4,
    }
    kept = {name: value.astype(numpy_dtype(element_type)) for name, value in weights.items()}
    kept |= {"epsilon": np.array(epsilon, np.float32), "last": np.array([-1])}
    nodes = [
        make("MatMul", [by, "w0"], ["h"]),
        make("Cast", ["h"], ["wide"], to=F32),
        make("Mul", ["wide", "wide"], ["squares"]),
        make("ReduceMean", ["squares", "last"], ["mean"], keepdims=1),
        make("Add", ["mean", "epsilon"], ["stable"]),
        make("Sqrt", ["stable"], ["rms"]),
        make("Div", ["wide", "rms"], ["unit"]),
        make("Cast", ["unit"], ["narrow"], to=element_type),
        make("Mul", ["gain", "narrow"], ["scaled"]),
        make("MatMul", ["scaled", "w1"], ["y"]),
    ]
    x = helper.make_tensor_value_info(by, element_type, ["rows", N])
    y = helper.make_tensor_value_info("y", element_type, ["rows", N])
    tensors = [numpy_helper.from_array(value, name) for name, value in kept.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


PAIRS = [pair for pair in itertools.product((F32, F16, F64), repeat=2) if len({*pair}) == 2]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_two_types_of_one_model_agree_and_of_another_differ(a: int, b: int) -> None:
    """The bound is that of the narrower type, and says so; a wrong epsilon is still seen."""
    narrow = max((a, b), key=ROUGH.__getitem__)
    outcome = verify(tower(a), tower(b))
    assert outcome.passed, outcome.found
    (output,) = outcome.outputs
    name = str(numpy_dtype(narrow))
    assert name in output.tolerance
    largest = output.bound_abs / ROUGH[narrow]
    assert 0.5 < largest < 5
    assert 0 < output.metrics.max_abs < output.bound_abs
    assert outcome.inputs == (f"x {name} [2, {N}]",)
    wrong = verify(tower(a), tower(b, epsilon=0.3))
    assert wrong.verdict == "differ"
    assert wrong.first_difference is not None
    assert wrong.first_difference.value == "stable"


@pytest.mark.parametrize(("a", "b"), [(BF16, BF16), (BF16, F32), (F32, BF16)])
def test_a_type_without_kernels_is_not_compared(a: int, b: int) -> None:
    outcome = verify(tower(a), tower(b))
    assert (outcome.passed, outcome.verdict, outcome.outputs) == (False, "not run", ())
    assert "MatMul" in outcome.not_run


def test_the_reference_is_the_wider_one_whichever_side_it_is_on() -> None:
    wide = np.array([1.0, 1.0 + 2**-12, 3.0, 70000.0], np.float32)
    narrow = wide[:3].astype(np.float16)
    for a, b in ((narrow, wide[:3]), (wide[:3], narrow)):
        metrics = compare_arrays(a, b)
        assert metrics.dtype == "float16"
        assert metrics.max_abs == 2**-12
        assert metrics.max_ulp == 0.25  # of float16, whose gap at 1 is 2**-10
        assert (metrics.mismatch, metrics.nan_inf_agree) == (0.0, True)
    with np.errstate(over="ignore"):
        beyond = compare_arrays(wide.astype(np.float16), wide)
    assert not beyond.nan_inf_agree
    assert beyond.max_ulp == np.inf


def test_inputs_that_the_narrower_type_does_not_hold_are_refused() -> None:
    inputs = {"x": np.full((2, N), 1e6, np.float32)}
    with pytest.raises(InputError, match="too large for the type") as caught:
        verify(tower(F32), tower(F16), inputs=inputs)
    assert "float16" in caught.value.found
    assert verify(tower(F32), tower(F32), inputs=inputs).passed


def masked(element_type: int, mask: float, *, epsilon: float = 1e-6) -> onnx.ModelProto:
    """A tower behind scores of which one half is masked; they are an output, too."""
    model = tower(element_type, epsilon=epsilon)
    graph, make = model.graph, helper.make_node
    kept = np.array(mask, np.float32).astype(numpy_dtype(element_type))
    hidden = np.tile([True, False], N // 2)
    graph.initializer.extend(
        numpy_helper.from_array(value, name)
        for name, value in (("mask", kept), ("hidden", hidden), ("shift", np.full_like(kept, 0.5)))
    )
    front = [
        make("Where", ["hidden", "mask", "x"], ["raw"]),
        make("Add", ["raw", "shift"], ["scores"]),
        make("Softmax", ["scores"], ["share"]),
    ]
    graph.node[0].input[0] = "share"
    nodes = [*front, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.output.append(helper.make_tensor_value_info("scores", element_type, ["rows", N]))
    return model


@pytest.mark.parametrize("infinite", [False, True])
def test_masks_of_two_types_are_no_difference(infinite: bool) -> None:
    lowest, half = float(np.finfo(np.float32).min), float(np.finfo(np.float16).min)
    wide = masked(F32, lowest)
    narrow = masked(F16, -np.inf if infinite else half)
    for a, b in ((wide, narrow), (narrow, wide)):
        outcome = verify(a, b)
        assert outcome.passed, outcome.reason
        scores = outcome.outputs[1]
        assert scores.bound_abs < 0.1
        assert scores.metrics.max_abs < scores.bound_abs
    wrong = verify(wide, masked(F16, half, epsilon=0.3))
    assert [output.passed for output in wrong.outputs] == [False, True]
    assert wrong.first_difference is not None
    assert wrong.first_difference.value == "stable"
    # An element that only overflows in the narrower type is no mask.
    assert verify(masked(F32, -1e5), masked(F16, -np.inf)).verdict == "differ"


def test_integers_of_different_types_are_no_match() -> None:
    """Only float types are rounded into each other."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (int64[n] i) => (int64[n] y) { y = Neg (i) }'
    )
    other = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (int32[n] i) => (int32[n] y) { y = Neg (i) }'
    )
    with pytest.raises(VerificationError, match="different types in the two models"):
        verify(model, other)
