"""A square, a mean and a root that divide a row are fused, or there is a refusal that says why."""

from __future__ import annotations

import numpy as np
import pytest

from rmsnorm_export.lower.targets import Target

from .text_models import (
    CONSTANTS,
    TARGETS,
    WEIGHT,
    found,
    function,
    model,
    norm,
    optimized,
    told,
)

COUNTED = {
    "Gather of Shape": "sh = Shape(x)\n i = Gather(sh, last)",
    "Shape with start": "i = Shape<start = 2>(x)",
    "Shape with negative start": "i = Shape<start = -1>(x)",
    "Slice of Shape": "sh = Shape(x)\n i = Slice(sh, from, to, zero)",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", ["8", "N"])
@pytest.mark.parametrize("name", COUNTED)
def test_a_count_from_the_shape(name: str, size: str, target: Target) -> None:
    source = model(
        f"""sq = Pow(x, two)
        total = ReduceSum<keepdims = 1>(sq, axes)
        {COUNTED[name]}
        n = Cast<to = 1>(i)
        m = Div(total, n)
        e = Add(m, eps)
        s = Sqrt(e)
        y = Div(x, s)""",
        inputs=f"float[B,S,{size}] x",
        outputs=f"float[B,S,{size}] y",
        constants=f"{CONSTANTS}, int64 last = {{2}}, int64[1] axes = {{-1}}, int64[1] from = {{2}},"
        " int64[1] to = {3}, int64[1] zero = {0}",
    )
    report, _ = optimized(source, target)
    assert told(report) == 1


def test_norms_in_functions_that_call_one_another() -> None:
    inner = "".join(
        function(f"F{i}", "(x, w) => (y)", norm("x", "y"), imports=', "my" : 1') for i in range(3)
    )
    top = function(
        "Top", "(x, w) => (y)", "a = my.F0(x, w)\n b = my.F1(a, w)\n y = my.F2(b, w)",
        imports=', "my" : 1',
    )  # fmt: skip
    source = model("y = my.Top(x, w)", imports=', "my" : 1', functions=inner + top)
    report, _ = optimized(source, "portable")
    assert told(report) == 3


def test_a_function_called_with_two_element_types() -> None:
    body = norm("x", "y").replace("Pow(x, two)", "Mul(x, x)").replace("Add(m, eps)", "Add(m, e0)")
    source = model(
        "y = my.F(x, w, eps)\n y2 = my.F(x2, w2, eps2)",
        inputs="float[B,S,8] x, double[B,8] x2",
        outputs="float[B,S,8] y, double[B,8] y2",
        constants=f"{WEIGHT}, {CONSTANTS}, double eps2 = {{0.00001}},"
        " double[8] w2 = {1, 2, 3, 4, 5, 6, 7, 8}",
        imports=', "my" : 1',
        functions=function("F", "(x, w, e0) => (y)", body),
    )
    report, _ = optimized(source, "portable")
    assert len(report.fused) == 2


NATIVE = {
    "scale of one element": ("y = RMSNormalization(x, one)", "float[2,3,8] y"),
    "scale over rows": ("y = RMSNormalization(x, rows)", "float[2,3,8] y"),
    "axis without a rank": (
        "h = Reshape(x, shape)\n y = RMSNormalization<axis = 2>(h, w)",
        "float[2,3,8] y",
    ),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NATIVE)
def test_an_unusual_native_node_is_told(name: str, target: Target) -> None:
    body, outputs = NATIVE[name]
    source = model(
        body,
        inputs="float[2,3,8] x, int64[K] shape",
        outputs=outputs,
        constants=f"{WEIGHT}, float[1] one = {{2}}, float[3,1] rows = {{1, 2, 3}}",
        opset=23,
    )
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((2, 3, 8)).astype(np.float32), "shape": np.array([2, 3, 8])}
    report, _ = optimized(source, target, arrays=arrays)
    assert told(report) == 1


MICROSOFT = {
    "statistics": ("y, v = SimplifiedLayerNormalization(x, w)", "float[2,3,8] y, float[2,3,1] v"),
    "skip statistics": (
        "y, , v, h = com.microsoft.SkipSimplifiedLayerNormalization(x, r, w)",
        "float[2,3,8] y, float[2,3,1] v",
    ),
    "skip": (
        "y, , , h = com.microsoft.SkipSimplifiedLayerNormalization(x, r, w)",
        "float[2,3,8] y, float[2,3,8] h",
    ),
    "skip without the sum": (
        "y = com.microsoft.SkipSimplifiedLayerNormalization(x, r, w)",
        "float[2,3,8] y",
    ),
    "skip that repeats": (
        "y, , , h = com.microsoft.SkipSimplifiedLayerNormalization(x, one_row, w)",
        "float[2,3,8] y, float[2,3,8] h",
    ),
    "skip with bias": (
        "y, , , h = com.microsoft.SkipSimplifiedLayerNormalization(x, r, w, b)",
        "float[2,3,8] y, float[2,3,8] h",
    ),
    "stash float16": (
        "y = SimplifiedLayerNormalization<stash_type = 10>(x, w)",
        "float[2,3,8] y",
    ),
    "stash float64": (
        "y = SimplifiedLayerNormalization<stash_type = 11>(x, w)",
        "float[2,3,8] y",
    ),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MICROSOFT)
def test_onnx_runtime_operators_keep_their_numbers(name: str, target: Target) -> None:
    body, outputs = MICROSOFT[name]
    source = model(
        body,
        inputs="float[2,3,8] x, float[2,3,8] r, float[1,3,8] one_row",
        outputs=outputs,
        constants=f"{WEIGHT}, float[8] b = {{9, 8, 7, 6, 5, 4, 3, 2}}",
        imports=', "com.microsoft" : 1',
    )
    report, _ = optimized(source, target)
    assert told(report) == 1
    if target == "ort":
        assert found(report) == 1 or name in ("statistics", "skip statistics", "skip with bias")
