"""What of ONNX Runtime's own operators is written out: sums, biases, second outputs, scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from recognize.text_models import WEIGHT, function, model, norm, ops, optimized

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import load_session
from tests.tools.tables import table

DEAD, SKIP, SECOND = (table(__file__)[name] for name in ("dead", "skip", "second"))


@pytest.mark.parametrize(
    ("domain", "name", "called"),
    [("com.microsoft", "SkipSimplifiedLayerNormalization", False), ("mine", "Norm", False),
     ("mine", "Norm", True)],
)  # fmt: skip
def test_a_function_that_is_not_run_is_not_counted(domain: str, name: str, called: bool) -> None:
    """ONNX Runtime runs its own operator, and not the function of that name."""
    model = onnx.parser.parse_model(DEAD.replace("DOMAIN", domain).replace("NAME", name))
    if called:
        model.graph.node[0].domain, model.graph.node[0].op_type = domain, name
        del model.graph.node[0].attribute[:]
        model.opset_import.add(domain=domain, version=1)
    report = rx.optimize(model).report
    assert len(report.fused) + len(report.kept) + len(report.unfused) == 1
    (verdict,) = (entry for entry in report.runs_in if entry.runtime == "onnxruntime")
    assert ("com.example.MyRoiPlugin" in verdict.unknown) == called


TYPES = {"float": np.float32, "float16": np.float16}
OWN = ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormalization")


def _ran(model: bytes, dtype: Any) -> list[np.ndarray]:
    """The outputs of ONNX Runtime, of the file as it is: no fusion of its own takes part."""
    rng = np.random.default_rng(3)
    session = load_session(model, threads=1)
    feeds = {}
    for entry in session.get_inputs():
        shape = [size if isinstance(size, int) else 3 for size in entry.shape]
        feeds[entry.name] = np.asarray(rng.standard_normal(shape) * 2).astype(dtype)
    return [np.asarray(array) for array in session.run(None, feeds)]


def _same(a: np.ndarray, b: np.ndarray) -> None:
    """Equal; where nothing is rounded behind the norm, to a few roundings: sums have no order."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    bound = {np.dtype("float32"): 2.0**-21, np.dtype("float64"): 2.0**-50}.get(a.dtype, 0)
    wide = a.astype(np.float64), b.astype(np.float64)
    np.testing.assert_allclose(*wide, rtol=bound, atol=bound)


def _optimized(text: str, target: Any, **options: Any) -> tuple[bytes, rx.Result]:
    source = onnx.parser.parse_model(text).SerializeToString()
    return source, rx.optimize(source, target=target, **options)


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("target", ["portable", "onnx", "plain"])
@pytest.mark.parametrize("bias", ["", ", b"])
@pytest.mark.parametrize("outputs", [(), ("sum",), ("inverse",), ("inverse", "sum")])
def test_a_residual_node_is_written_out(
    outputs: tuple[str, ...], bias: str, target: str, dtype: str, opset: int
) -> None:
    """The sum is not rounded before it is normalised, and gets its bias last."""
    places = ["y", "", "inverse" if "inverse" in outputs else "", "sum" if "sum" in outputs else ""]
    named = ", ".join(places) if outputs else "y"
    types = {"sum": f", {dtype}[B, S, 24] sum", "inverse": ", float[B, S, 1] inverse"}
    text = SKIP.replace("OUTPUTS", "".join(types[name] for name in outputs)).replace(
        "T[", f"{dtype}["
    )
    text = text.replace("NAMES", named).replace("BIAS", bias).replace("OPSET", str(opset))
    source, result = _optimized(text, target)
    nodes = {(node.domain, node.op_type) for node in result.model.graph}
    assert not {domain for domain, _ in nodes} & {"com.microsoft"}
    assert target != "plain" or not {name for _, name in nodes} & {*OWN}
    assert result.report.unfused == ()
    for a, b in zip(_ran(source, TYPES[dtype]), _ran(result.to_bytes(), TYPES[dtype]), strict=True):
        _same(a, b)


@pytest.mark.parametrize(("bias", "outputs"), [(", b", ()), ("", ("inverse",))])
def test_the_target_that_has_the_node_keeps_it(bias: str, outputs: tuple[str, ...]) -> None:
    text = SKIP.replace("OUTPUTS", "".join(", float[B, S, 1] inverse" for _ in outputs))
    text = text.replace("T[", "float16[").replace("OPSET", "17").replace("BIAS", bias)
    source, result = _optimized(text.replace("NAMES", "y, , inverse" if outputs else "y"), "ort")
    report = result.report
    assert (len(report.kept), report.fused, report.unfused) == (1, (), ())
    assert [node.op_type for node in result.model.graph] == [OWN[1]]
    # A single node that would be written out does not lose what it computes beside the norm.
    (alone,) = rx.optimize(source, target="plain", sites=("*",), numerics="upcast").report.unfused
    assert alone.reason == ("native-form" if outputs else "sum-bias")


def test_the_mean_of_a_residual_node_has_no_known_meaning() -> None:
    text = SKIP.replace("OUTPUTS", ", float[B, S, 1] mean").replace("NAMES", "y, mean")
    text = text.replace("T[", "float[").replace("OPSET", "17").replace("BIAS", "")
    for target in ("portable", "plain"):
        report = _optimized(text, target)[1].report
        assert ([r.reason for r in report.refused], report.fused) == (["native-form"], ())
    assert len(_optimized(text, "ort")[1].report.kept) == 1


@pytest.mark.parametrize("opset", [14, 18])
@pytest.mark.parametrize("axis", [-1, 2, -2, 1])
@pytest.mark.parametrize("dtype", [*TYPES, "double"])
@pytest.mark.parametrize("target", ["portable", "plain"])
def test_a_second_output_is_written_out(target: str, dtype: str, axis: int, opset: int) -> None:
    several = axis in (-2, 1)
    text = SECOND.replace("ROW", "4, 24" if several else "24").replace("AXIS", str(axis))
    text = text.replace("INVERSE", "B, 1, 1" if several else "B, 4, 1").replace("OPSET", str(opset))
    source, result = _optimized(text.replace("T[", f"{dtype}["), target)
    assert not {node.op_type for node in result.model.graph} & {*OWN}
    assert (len(result.report.fused), result.report.unfused) == (1, ())
    kind = {**TYPES, "double": np.float64}[dtype]
    for a, b in zip(_ran(source, kind), _ran(result.to_bytes(), kind), strict=True):
        _same(a, b)


@pytest.mark.parametrize("target", ["portable", "plain"])
def test_an_inverse_that_multiplies_the_row_again_is_a_norm_of_its_own(target: str) -> None:
    text = SECOND.replace("T[B, 4, 24] y, float[INVERSE] inverse", "T[B, 4, 24] y, T[B, 4, 24] z")
    text = text.replace("(x, w)\n}", "(x, w)\n  z = Mul (x, inverse)\n}").replace("T[", "float[")
    text = text.replace("ROW", "24").replace("AXIS", "-1").replace("OPSET", "14")
    source, result = _optimized(text, target)
    assert [site.n for site in result.report.fused] == [24, 24]
    for a, b in zip(_ran(source, np.float32), _ran(result.to_bytes(), np.float32), strict=True):
        _same(a, b)


def test_inspect_counts_the_sums_that_are_in_a_node_already() -> None:
    text = SKIP.replace("OUTPUTS", "").replace("T[", "float[").replace("OPSET", "17")
    report = rx.inspect(onnx.parser.parse_model(text.replace("NAMES", "y").replace("BIAS", "")))
    assert [(site.op, site.residual) for site in report.kept] == [(OWN[1], True)]
    assert report.unfolded == ()


@pytest.mark.parametrize("opset", [12, 17])
def test_what_is_written_out_already_stays(opset: int) -> None:
    """As the definition has it, in the main graph and in a function, which has no initializers."""
    squared = norm("x", "y").replace("Pow(x, two)", "Mul(x, x)")
    body, called = norm("x", "y"), ""
    if opset > 12:
        body, called = (
            norm("x", "z") + "y = my.Norm(z, w)",
            function("Norm", "(x, w) => (y)", squared),
        )
    source = model(body, imports=', "my" : 1', functions=called, opset=opset)
    report, proto = optimized(source, "plain")
    assert (len(report.fused), len(report.kept)) == (bool(called), 1)
    again = rx.optimize(proto, target="plain")
    assert again.to_bytes() == proto.SerializeToString()
    words = f"0 written out, {1 + bool(called)} already plain operators"
    assert again.report.headline().endswith(words)
    assert {site.op for site in again.report.kept} == {"Pow ReduceMean Add Sqrt Div Mul"}


def test_constants_that_are_nodes_become_initializers() -> None:
    two = "two = Constant <value = float {2}> ()\n "
    source = model(two + norm("x", "y"), constants=f"{WEIGHT}, float eps = {{0.00001}}")
    report, proto = optimized(source, "plain")
    assert (len(report.fused), "Constant" in ops(proto)) == (1, False)
