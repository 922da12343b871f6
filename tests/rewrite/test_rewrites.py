"""Sums, parts in functions, names and sizes: folded and rewritten, or left with a reason."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser
from recognize.text_models import TARGETS, WEIGHT, function, model, norm, optimized

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.recognize.finish import same_where_added
from rmsnorm_export.show import to_html, to_text

XR = "float[2,3,8] x, float[2,3,8] r"
FOLDED = {"portable": "SkipRMSNorm", "ort": "SkipSimplifiedLayerNormalization"}
REASONS: dict[str, tuple[str, str, str]] = {
    "unknown": ("h = Add(x, r)\n" + norm("h", "y"), "float[2,S,8] x, float[2,T,8] r",
                "its operands are not known to be of one shape"),
    "repeated": ("h = Add(x, r)\n" + norm("h", "y"), "float[2,3,8] x, float[1,3,8] r",
                 "one operand is repeated over the other"),
    "branch": ("h = Add(x, r)\n"
               "y = If (c) <then_branch = t () => (float[2,3,8] u) {" + norm("h", "u") + "},\n"
               "else_branch = f () => (float[2,3,8] v) { v = Abs(h) }>", XR + ", bool c",
               "the sum and the norm are in different graphs"),
}  # fmt: skip


@pytest.mark.parametrize("target", FOLDED)
@pytest.mark.parametrize("name", REASONS)
def test_every_miss_has_a_reason(name: str, target: Target) -> None:
    body, inputs, why = REASONS[name]
    source = model(body, inputs=inputs)
    report, _ = optimized(source, target)
    (kept,) = report.unfolded
    assert (kept.op, kept.reason, kept.kind) == ("Add", "residual-kept", "residual")
    assert kept.message == f"the residual Add is not folded: {why}"
    assert all((kept.found, kept.hint))
    assert report.headline() == "1 of 1 RMSNorm, 0 of 1 residual are one node"
    assert "residuals (1)" in to_text(report)
    assert why in to_html(report)


def test_sizes_without_a_name_are_not_known_to_be_the_same() -> None:
    assert same_where_added(("n", 8), ("n", 8))
    assert not same_where_added((None, 8), (None, 8))


# Norms of which functions hold parts, and of which branches hold them.

_IMPORT = ', "my" : 1'


@pytest.mark.parametrize("given", ["", "<epsilon>"])
@pytest.mark.parametrize("root", ["r = Sqrt(e)", "l = Log(e)\n h = Exp(l)\n r = Sqrt(h)"])
def test_functions_around_one_another_hold_a_norm_or_it_is_told(given: str, root: str) -> None:
    """One squares, one takes the mean of what that gives, and one divides."""
    epsilon = "Constant<value_float : float = @epsilon>()" if given else "Identity(eps)"
    squares = function("Squares", "(v) => (q)", "q = Mul(v, v)", imports=_IMPORT)
    mean = function("Mean", "(v) => (m)", "q = my.Squares(v)\n m = ReduceMean<axes = [-1]>(q)",
                    imports=_IMPORT)  # fmt: skip
    body = f"m = my.Mean(a)\n e0 = {epsilon}\n e = Add(m, e0)\n {root}\n y = Div(a, r)"
    outer = function("Norm", f"{given}(a) => (y)", body, imports=_IMPORT)
    call = "my.Norm<epsilon = 0.25>" if given else "my.Norm"
    source = model(f"b = {call}(x)\n y = {call}(b)", imports=_IMPORT,
                   functions=squares + mean + outer)  # fmt: skip
    report = rx.inspect(source)
    found = [(one.node, one.reason) for one in report.refused]
    if "Log" in root:
        told = ["b", "y"] if given else ["y"]
        assert (len(report.fused), found) == (0, [(name, "spelling-unknown") for name in told])
    else:
        assert (len(report.fused), found) == (2 if given else 1, [])


@pytest.mark.parametrize("options", [{"opset": 20}, {"dtype": "f16"}])
def test_outputs_that_a_call_omits(options: dict[str, object]) -> None:
    """Where functions are put in the place of their calls."""
    mean = "q = Mul(a, a)\n m = ReduceMean<axes = [-1]>(q)"
    body = f"{mean}\n e = Add(m, b)\n r = Sqrt(e)\n y = Div(a, r)"
    gate = function("Gate", "(a) => (y, g)", "g = Sigmoid(a)\n y = Mul(g, a)", imports=_IMPORT)
    both = function("Norm", "(a, b) => (y, m)", body, imports=_IMPORT) + gate
    calls = "z, s = my.Norm(x, eps)\n h = my.Gate(z)\n y = my.Norm(h, eps)"
    result = rx.optimize(model(calls, imports=_IMPORT, functions=both), **options)
    assert len(result.report.fused) == 2
    onnx.checker.check_model(onnx.load_from_string(result.to_bytes()), full_check=True)


_STEPS = """two = Constant<value_float = 2.0>()
q = Pow(x, two)
m = ReduceMean<axes = [-1]>(q)
eps = Constant<value_float = 0.00001>()
e = Add(m, eps)
one = Constant<value_float = 1.0>()
i = Div(one, e)
half = Constant<value_float = 0.5>()
r = Pow(i, half)
g = Mul(r, w)
y = Mul(x, g)""".splitlines()
_ALONE = {
    (0, 1): "exponent-not-two", (3, 4): "epsilon-not-constant",
    (5, 6): "count-not-constant", (7, 8): "power-not-constant",
}  # fmt: skip
"""The steps of which nothing but a constant comes out of the branch, and the reason then."""


def test_a_norm_that_an_if_cuts_anywhere_is_told() -> None:
    for start, end in itertools.combinations(range(len(_STEPS) + 1), 2):
        behind = {*re.findall(r"\w+", " ".join(_STEPS[end:])), "y"}
        made = [step.split()[0] for step in _STEPS[start:end]]
        inside = re.sub(rf"\b({'|'.join(made)})\b", r"\1_", "\n ".join(_STEPS[start:end]))
        outputs = [name for name in made if name in behind]
        branch = f"() => ({', '.join(f'float[] {name}_' for name in outputs)}) {{ {inside} }}"
        cut = f"{', '.join(outputs)} = If (c) <then_branch = t {branch}, else_branch = o {branch}>"
        body = "\n".join([*_STEPS[:start], cut, *_STEPS[end:]])
        source = model(body, inputs="float[B,S,8] x, bool c", constants=WEIGHT)
        report = rx.optimize(source, numerics="upcast").report
        reasons = {refusal.reason for refusal in report.refused}
        whole = end == len(_STEPS)  # the end of the norm may stand in branches
        told = set() if whole else {_ALONE.get((start, end), "crosses-subgraph")}
        assert (len(report.fused), reasons) == (2 if whole else 0, told), (start, end)


# Models that came out wrong, or did not load, because a size or a name was taken for granted.

STORED = "float two = {2}, int64[1] ax = {-1}, float e = {1e-05}, int64[1] one = {1}"
ROOT = "s = Pow({x}, two) m = ReduceMean<keepdims = 1>(s, ax) a = Add(m, e) r = Sqrt(a) "
NORM = ROOT + "y = Div({x}, r)"


def _model(body: str, inputs: str = "float[B, 264] x", more: str = "") -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g ({inputs}) => (float[] y) '
        f"<{STORED}> {{ {body} }} {more}"
    )


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
@pytest.mark.parametrize(
    "name", ["Sqrt", "Pow", "Cast", "Mul", "RMSNormalization", "SimplifiedLayerNormalization"]
)
@pytest.mark.parametrize("overload", ["", "second"])
def test_a_function_named_as_an_operator(name: str, domain: str, overload: str) -> None:
    model = _model(NORM.format(x="x"))
    body, imports = [onnx.helper.make_node("Abs", ["a"], ["b"])], [onnx.helper.make_opsetid("", 18)]
    own = onnx.helper.make_function(domain, name, ["a"], ["b"], body, imports, overload=overload)
    model.functions.append(own)
    model.ir_version = 10
    for call in (rx.inspect, rx.optimize):
        with pytest.raises(rx.InputError, match="name of an operator of ONNX"):
            call(model)


# From one target to another and back, and the same bytes every time.

MY = ', "my" : 1'
_PROGRAM = """import sys, rmsnorm_export as rx
for target in sys.argv[2:]:
    r = rx.optimize(sys.argv[1], target=target)
    print([(s.name, s.scope) for s in r.report.fused], r.to_bytes().hex())"""


def test_names_do_not_depend_on_hash_order(tmp_path: Path) -> None:
    """Of many functions and equal wishes for names."""
    body = "".join(f"y{i} = my.F{i}(x, w)\n" for i in range(5)) + " y = Sum(y0, y1, y2, y3, y4)"
    bodies = {**{f"F{i}": norm("x", "y") for i in range(5)}, "Top": body}
    functions = [function(name, "(x, w) => (y)", b, imports=MY) for name, b in bodies.items()]
    source = model("y = my.Top(x, w)", imports=MY, functions="".join(functions))
    onnx.save(source, path := tmp_path / "model.onnx")
    command = [sys.executable, "-c", _PROGRAM, path, *TARGETS]
    one, other = (
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout.splitlines()
        for seed in ("0", "4711")
    )
    assert one == other
    assert len(one) == len(TARGETS)
