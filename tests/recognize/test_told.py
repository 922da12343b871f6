"""A square, a mean and a root that divide a row are fused, or there is a refusal that says why:
beside operators of other domains and attributes of a caller, too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.recognize import scan

from .text_models import CONSTANTS, TARGETS, WEIGHT, feeds, function, model, norm, optimized

MY = ', "my" : 1'
THREE = "float[2,3,8] x"
SKIP = "com.microsoft.SkipSimplifiedLayerNormalization"
STATISTICS = "float[2,3,8] y, float[2,3,1] v"
SUM = "float[2,3,8] y, float[2,3,8] h"


def answers(report: rx.Report) -> tuple[int, int]:
    """Norms that are one node now, and everything that the report has a word for."""
    norms = len(report.fused) + len(report.kept)
    return norms, norms + len(report.refused)


def namesake(op_type: str, body: str) -> onnx.ModelProto:
    """A function with the name of a standard operator that adds one: exporters name functions
    after module classes (Identity, Dropout, Sigmoid)."""
    inner = "one = Constant<value_float = 1.0>()\n b = Add(a, one)"
    return model(body, imports=MY, functions=function(op_type, "(a) => (b)", inner))


def native(body: str, outputs: str = "float[2,3,8] y", opset: int = 23) -> onnx.ModelProto:
    inputs = f"{THREE}, float[2,3,8] r, float[1,3,8] one_row"
    more = "float[8] b = {9, 8, 7, 6, 5, 4, 3, 2}, float[1] one = {2}, float[3,1] rows = {1, 2, 3}"
    imports = ', "com.microsoft" : 1'
    return model(body, inputs=inputs, outputs=outputs, constants=f"{WEIGHT}, {more}",
                 opset=opset, imports=imports)  # fmt: skip


MEAN = "ReduceMean<axes = [-1], keepdims = 1>"
CALLED = "".join(function(f"F{i}", "(x, w) => (y)", norm("x", "y"), imports=MY) for i in range(3))
CALLER = function(
    "Top", "(x, w) => (y)", "a = my.F0(x, w)\n b = my.F1(a, w)\n y = my.F2(b, w)", imports=MY
)
TYPED = norm("x", "y").replace("Pow(x, two)", "Mul(x, x)").replace("Add(m, eps)", "Add(m, e0)")

NAMESAKES = [
    ("Identity", "q = my.Identity(x)\n" + norm("q", "y").replace("Div(q", "Div(x"), 0, None),
    ("Identity", "w2 = my.Identity(w)\n" + norm("x", "y", "", "w2"), 1, 1),
    ("Sqrt", norm("x", "y").replace("= Sqrt", "= my.Sqrt"), 0, None),
    ("ReduceMean", norm("x", "y").replace(f"= {MEAN}", "= my.ReduceMean"), 0, None),
    ("RMSNormalization", "y = my.RMSNormalization(x)", 0, 0),
]
CASES: dict[str, tuple[onnx.ModelProto, int | None, int | None]] = {
    **{f"namesake {i}, {op}": (namesake(op, body), *counts)
       for i, (op, body, *counts) in enumerate(NAMESAKES)},
    "functions that call one another": (
        model("y = my.Top(x, w)", imports=MY, functions=CALLED + CALLER), None, 3,
    ),
    "a function called with two element types": (model(
        "y = my.F(x, w, eps)\n y2 = my.F(x2, w2, eps2)",
        inputs="float[B,S,8] x, double[B,8] x2",
        outputs="float[B,S,8] y, double[B,8] y2",
        constants=f"{WEIGHT}, {CONSTANTS}, double eps2 = {{0.00001}},"
        " double[8] w2 = {1, 2, 3, 4, 5, 6, 7, 8}",
        imports=MY,
        functions=function("F", "(x, w, e0) => (y)", TYPED),
    ), None, 2),
    "scale of one element": (native("y = RMSNormalization(x, one)"), None, 1),
    "scale over rows": (native("y = RMSNormalization(x, rows)"), None, 1),
    "statistics": (native("y, v = SimplifiedLayerNormalization(x, w)", STATISTICS, 17), 1, None),
    "skip statistics": (native(f"y, , v, h = {SKIP}(x, r, w)", STATISTICS, 17), 1, None),
    "skip": (native(f"y, , , h = {SKIP}(x, r, w)", SUM, 17), None, 1),
    "skip that repeats": (native(f"y, , , h = {SKIP}(x, one_row, w)", SUM, 17), None, 1),
    "skip with bias": (native(f"y, , , h = {SKIP}(x, r, w, b)", SUM, 17), None, 1),
    "two epsilons on one mean are two norms": (model(
        norm("x", "y") + "e2 = Add(m, big)\n s2 = Sqrt(e2)\n n2 = Div(x, s2)\n y2 = Mul(n2, w)",
        outputs="float[B,S,8] y, float[B,S,8] y2",
        constants=f"{WEIGHT}, {CONSTANTS}, float big = {{0.25}}",
    ), 2, 2),
    "the gain of a norm is the outcome of another": (model(
        norm("x", "y") + norm("v", "gain", "k") + "z = Relu(y)\n" + norm("z", "o", "l", "gain"),
        inputs=f"{THREE}, float[8] v",
        outputs="float[2,3,8] o",
    ), 3, 3),
    "two reshapes of one tensor are one row": (model(
        "x1 = Reshape(x, shape)\n x2 = Reshape(x, shape)\n"
        + norm("x1", "y").replace("Div(x1", "Div(x2"),
        inputs=THREE,
        outputs="float[6,8] y",
        constants=f"{WEIGHT}, {CONSTANTS}, int64[2] shape = {{6, 8}}",
    ), 1, 1),
}  # fmt: skip
"""Model, norms that are found, norms and refusals in all; None: more than one answer is right."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_norm_is_found_or_told(name: str, target: Target) -> None:
    source, *expected = CASES[name]
    report, _ = optimized(source, target)
    pairs = zip(expected, answers(report), strict=True)
    assert all(count in (None, actual) for count, actual in pairs), report.refused


def test_a_namesake_does_not_tell_shapes() -> None:
    """my::Relu transposes: with the shape rule of Relu the Add would seem to keep its shape."""
    source = model(
        "h = my.Relu(x)\n t = my.Relu(h)\n a = Add(t, r)\n" + norm("a", "y"),
        inputs="float[2,8,1] x, float[2,1,8] r",
        outputs="float[2,8,8] y",
        imports=MY,
        functions=function("Relu", "(a) => (b)", "b = Transpose<perm = [0, 2, 1]>(a)"),
    )
    report, _ = optimized(source, "portable")
    assert [site.op for site in report.fused] == ["RMSNorm"]


REFERENCES = {
    "Concat": ("h = Concat<axis : int = @a>(x, x)", 16),
    "Gather": ("i = Constant<value_ints = [0, 1]>()\n h = Gather<axis : int = @a>(x, i)", 2),
    "Split": ("h, k = Split<axis : int = @a>(x)", 4),
    "Gemm": ("h = Gemm<transB : int = @a>(x, x)", 8),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", REFERENCES)
def test_an_attribute_reference_is_no_crash(name: str, target: Target) -> None:
    body, width = REFERENCES[name]
    source = model(
        "y = my.F<a = 1>(x, w)",
        inputs="float[8,8] x, float[W] w",
        outputs="float[A,B] y",
        constants=CONSTANTS,
        imports=MY,
        functions=function("F", "<a>(x, w) => (y)", f"{body}\n" + norm("h", "y")),
    )
    arrays = {**feeds(source), "w": np.linspace(1, 2, width, dtype=np.float32)}
    report, _ = optimized(source, target, arrays=arrays)
    assert answers(report)[1] == 1


UNUSUAL_CONSTANTS = {
    "integer to a negative power": "p = Pow(itwo, iminus)\n c = Cast<to = 1>(p)",
    "integer division by zero": "p = Div(itwo, izero)\n c = Cast<to = 1>(p)",
    "zero over zero": "c = Div(fzero, fzero)",
    "root of a negative number": "p = Neg(two)\n c = Sqrt(p)",
    "an overflow of float16": "p = Cast<to = 10>(huge)\n c = Cast<to = 1>(p)",
}


@pytest.mark.parametrize("name", UNUSUAL_CONSTANTS)
def test_a_constant_without_a_value_is_no_epsilon(name: str) -> None:
    """Not run: division of integers by zero ends the process in some runtimes."""
    source = model(
        UNUSUAL_CONSTANTS[name] + "\n" + norm("x", "y").replace("Add(m, eps)", "Add(m, c)"),
        constants=f"{WEIGHT}, {CONSTANTS}, int64 itwo = {{2}}, int64 iminus = {{-1}},"
        " int64 izero = {0}, float fzero = {0}, float huge = {1e30}",
    )
    report = rx.optimize(source).report
    assert answers(report) == (0, 1)


def test_an_error_of_ours_costs_no_norm_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in one transfer function: the norm that needs it is found by what it computes."""

    def failing(*_: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setitem(scan._STANDARD, "Reciprocal", failing)
    inverse = norm("x", "u").replace("n = Div(x, s)", "r = Reciprocal(s)\n n = Mul(x, r)")
    source = model(inverse + norm("x", "v", "p"), outputs="float[B,S,8] u, float[B,S,8] v")
    report = rx.optimize(source).report
    assert [site.n for site in report.fused] == [8, 8]
    (refusal,) = [r for r in report.refused if r.reason == "recognition-failed"]
    assert (refusal.kind, refusal.op) == ("norm", "Reciprocal")
    assert refusal.found == "IndexError: tuple index out of range"
