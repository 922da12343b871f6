"""Looser numerics for single norms, and the norms that a converter has left between Casts."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import open_session, run_session
from tests.recognize import text_models as text

CONSTANTS = f"{text.WEIGHT}, {text.CONSTANTS}, float wide_two = {{2}}, float wide_eps = {{0.00001}}"


def half(body: str, constants: str = CONSTANTS) -> onnx.ModelProto:
    """A model in float16 whose nodes are called as their outputs."""
    ends = {"inputs": "float16[B,S,8] x", "outputs": "float16[B,S,8] y"}
    source = text.model(body, constants=constants, **ends)
    for tensor in source.graph.initializer:
        if not tensor.name.startswith("wide"):
            array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for node in source.graph.node:
        node.name = node.output[0]
    return source


NORMS = text.norm("x", "a", "a") + text.norm("a", "y", "y")
TWO = half(NORMS)


@pytest.mark.parametrize("name", ["y", "y/RMSNorm", "[x-z]"])
@pytest.mark.parametrize("numerics", ["upcast", "unclamped"])
def test_looser_numerics_of_one_norm(name: str, numerics: str) -> None:
    result = rx.optimize(TWO, numerics=numerics, sites=[name], prove=True)
    assert [site.numerics for site in result.report.fused] == ["exact", "upcast"]
    (first, second) = result.report.fused
    assert (first.op, second.op) != (second.op, first.op)
    report = rx.optimize(TWO, target="ort", numerics=numerics, sites=[name]).report
    assert [site.numerics for site in report.fused] == ["upcast"]
    assert [(r.node, r.reason) for r in report.refused] == [("a", "numerics")]


def test_every_name_fits_a_norm_and_has_something_to_allow() -> None:
    with pytest.raises(rx.UsageError, match="No node") as caught:
        rx.optimize(TWO, numerics="upcast", sites=["y", "z*"])
    assert (caught.value.found, "a/RMSNorm, y" in caught.value.fix) == ("'z*'", True)
    with pytest.raises(rx.UsageError, match="looser numerics"):
        rx.optimize(TWO, sites=["y"])


VANISHED = half(NORMS, CONSTANTS.replace(" eps = {0.00001}", " eps = {0.000000001}"))


@pytest.mark.parametrize("target", ["portable", "ort", "onnx"])
def test_an_epsilon_that_float16_holds_as_0_comes_back_where_it_is_asked_for(target: str) -> None:
    rows = {"x": np.zeros((1, 2, 8), np.float16)}
    plain = rx.optimize(VANISHED, target=target, numerics="upcast")
    assert {site.epsilon for site in plain.report.fused} == {0.0}
    for source in (VANISHED, plain.model):  # of which the norms are one node each
        result = rx.optimize(source, target=target, numerics="upcast", epsilon=1e-8)
        assert [site.epsilon for site in result.report.fused] == [1e-8] * 2
        assert {site.numerics for site in result.report.fused} == {"upcast"}
        assert "an epsilon of 0" in str(result.report.fused[0].notes)
        sessions = [open_session(one.to_bytes(), threads=1) for one in (plain, result)]
        outputs = [run_session(session, rows)["y"] for session in sessions]
        assert [bool(np.isfinite(y).all()) for y in outputs] == [False, True]
    one = rx.optimize(VANISHED, target=target, numerics="upcast", epsilon=1e-8, sites=["y"])
    assert {site.name[0]: site.epsilon for site in one.report.fused}["y"] == 1e-8
    assert [site.epsilon for site in one.report.fused].count(1e-8) == 1


@pytest.mark.parametrize(
    ("source", "options", "what"),
    [(TWO, {"numerics": "upcast"}, "No half precision norm lacks an epsilon"),
     (VANISHED, {}, "other numbers"), (VANISHED, {"target": "plain"}, "other numbers"),
     (VANISHED, {"numerics": "upcast", "prove": True}, "other numbers"),
     (VANISHED, {"numerics": "upcast", "sites": ["z*"]}, "No node")],
)  # fmt: skip
def test_an_epsilon_is_given_to_none_that_has_one(
    source: onnx.ModelProto, options: dict[str, object], what: str
) -> None:
    with pytest.raises(rx.UsageError, match=what):
        rx.optimize(source, epsilon=1e-8, **options)


STEPS = {"q": "Pow({x}, two)", "m": "ReduceMean<axes = [-1]>({q})", "e": "Add({m}, eps)",
         "r": "Sqrt({e})", "d": "Div({x}, {r})", "y": "Mul({d}, w)"}  # fmt: skip


def converted(wide: str) -> onnx.ModelProto:
    """A norm in float16 of which these steps are computed in float32, each between Casts."""
    lines = []
    for name, step in STEPS.items():
        if name not in wide:
            lines.append(f"{name} = {step.format(**{key: key for key in ('x', *STEPS)})}")
            continue
        read = [key for key in ("x", *STEPS) if f"{{{key}}}" in step]
        lines += [f"{name}{key} = Cast<to = 1>({key})" for key in read]
        step = step.format(**{key: f"{name}{key}" for key in read})
        step = step.replace("two", "wide_two").replace("eps", "wide_eps")
        lines += [f"{name}_ = {step}", f"{name} = Cast<to = 10>({name}_)"]
    return half("\n".join(lines))


@pytest.mark.parametrize("wide", ["q", "qm", "qmr", "qmer", "qmrd", "mr", "qmed", "r", "d", "qr"])
def test_what_a_converter_left_in_float32_is_one_node(wide: str) -> None:
    source = converted(wide)
    default = rx.inspect(source)
    assert not default.look_alikes
    assert [r.reason for r in default.refused] in ([], ["numerics"])
    (site,) = rx.optimize(source, numerics="upcast", prove=True).report.fused
    assert site.numerics == "upcast"
    report = rx.inspect(source, health=True)
    (one,) = (health for health in report.health if health.kind == "norm")
    assert (one.largest > 0, one.problem) == (True, "")
