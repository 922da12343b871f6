"""Parts in functions and branches, names and sizes: rewritten, or left with a reason."""

from __future__ import annotations

import itertools
import re

import onnx
import pytest
from recognize.text_models import WEIGHT, function, model, norm, optimized

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.recognize.finish import same_where_added


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


@pytest.mark.parametrize("target", ["portable", "onnx", "ort"])
def test_a_function_of_others_by_the_name_of_our_operator_is_one_like_any_other(
    target: Target,
) -> None:
    body = function("RMSNorm", "(x, w) => (y)", norm("x", "y")).replace('"my"', '"rmsnorm_export"')
    call = "y = rmsnorm_export.RMSNorm(x, w)"
    source = model(call, imports=', "rmsnorm_export" : 1', functions=body)
    assert len(rx.inspect(source).fused) == len(optimized(source, target)[0].fused) == 1
    report = rx.optimize(source, target=target, dtype="f16", prove=True).report
    assert (len(report.fused), report.proof_error) == (1, None)
    assert [one.op for one in rx.inspect(source, health=True).health] == ["Pow"]


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
    (0, 1): "spelling-unknown", (3, 4): "epsilon-not-constant",
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


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
@pytest.mark.parametrize(
    "name", ["Sqrt", "Pow", "Cast", "Mul", "RMSNormalization", "SimplifiedLayerNormalization"]
)
@pytest.mark.parametrize("overload", ["", "second"])
def test_a_function_named_as_an_operator(name: str, domain: str, overload: str) -> None:
    source = model(norm("x", "y"))
    body, imports = [onnx.helper.make_node("Abs", ["a"], ["b"])], [onnx.helper.make_opsetid("", 17)]
    own = onnx.helper.make_function(domain, name, ["a"], ["b"], body, imports, overload=overload)
    source.functions.append(own)
    source.ir_version = 10
    for call in (rx.inspect, rx.optimize):
        with pytest.raises(rx.InputError, match="name of an operator of ONNX"):
            call(source)
