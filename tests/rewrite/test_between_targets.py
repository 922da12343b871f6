"""From one target to another and back, and the same bytes every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from recognize import text_models as text
from recognize.text_models import CONSTANTS, TARGETS, WEIGHT, function, model, norm

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target

MY = ', "my" : 1'
EIGHT = "{1, 2, 3, 4, 5, 6, 7, 8}"
ZOO = {
    "plain": model(norm("x", "y")),
    "weightless": model(norm("x", "y", weight=None)),
    "offset": model(
        "g = Add(one, w)\n" + norm("x", "y", "", "g"),
        constants=f"{WEIGHT}, {CONSTANTS}, float one = {{1}}",
    ),
    "residual": model(
        "h = Add(x, r)\n" + norm("h", "y") + "z = Relu(h)",
        inputs="float[2,3,8] x, float[2,3,8] r",
        outputs="float[2,3,8] y, float[2,3,8] z",
    ),
    "two axes": model(
        norm("x", "y").replace("axes = [-1]", "axes = [-2, -1]"),
        inputs="float[B,4,2] x",
        outputs="float[B,4,2] y",
        constants=f"{CONSTANTS}, float[4,2] w = {EIGHT}",
    ),
    "branch": model(
        "y = If (c) <then_branch = t () => (float[B,S,8] u) {" + norm("x", "u")
        + "}, else_branch = f () => (float[B,S,8] v) { v = Relu(x) }>",
        inputs="float[B,S,8] x, bool c",
    ),
    "function": model(
        "y = my.F(x, w)", imports=MY, functions=function("F", "(x, w) => (y)", norm("x", "y"))
    ),
    "quantized gain": model(
        "g = DequantizeLinear(q, step)\n" + norm("x", "y", "", "g"),
        constants=f"{CONSTANTS}, int8[8] q = {EIGHT}, float step = {{0.5}}",
    ),
}  # fmt: skip
"""Small models whose norms every target has a form for (a residual may stay an Add)."""

CIRCLES: list[tuple[Target, ...]] = [
    ("portable", "onnx", "ort", "portable"),
    ("portable", "ort", "onnx", "portable"),
]
"""Every target is turned into every other once."""


@pytest.mark.parametrize("circle", CIRCLES, ids="-".join)
@pytest.mark.parametrize("name", ZOO)
def test_round_trips(name: str, circle: tuple[Target, ...]) -> None:
    source = step = ZOO[name]
    for target in circle:
        report, proto = text.optimized(step, target)
        assert len(report.fused) + len(report.kept) == 1, f"{target}: {report.refused}"
        assert all(node.name.count("Norm") <= 1 for node in proto.graph.node), "names grow"
        text.check_same(source, proto)
        step = proto


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ZOO)
def test_a_second_run_changes_no_byte(name: str, target: Target) -> None:
    once = rx.optimize(ZOO[name], target=target).to_bytes()
    assert rx.optimize(onnx.load_from_string(once), target=target).to_bytes() == once


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


def with_epsilon(epsilon: float) -> onnx.ModelProto:
    source = model(norm("x", "y"))
    (stored,) = (tensor for tensor in source.graph.initializer if tensor.name == "eps")
    stored.CopyFrom(onnx.numpy_helper.from_array(np.float32(epsilon), "eps"))
    return source


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("epsilon", [0.0, 1e-45, 1e-40, 1e-12, 1e30, 3e38])
def test_extreme_epsilons(epsilon: float, target: Target) -> None:
    report, _ = text.optimized(with_epsilon(epsilon), target)
    assert [site.epsilon for site in report.fused] == [float(np.float32(epsilon))]


SCALED = "sq = Pow(x, two)\n m0 = ReduceMean<axes = [-1]>(sq)\n m = Mul(m0, small)\n "
SCALED += "e = Add(m, large)\n s0 = Sqrt(e)\n s = Mul(s0, back)\n y = Div(x, s)"
NUMBERS = "float small = {1e-10}, float large = {1e30}, float back = {1e5}"


def test_an_epsilon_that_is_none() -> None:
    """sqrt(1e-10 * m + 1e30) * 1e5 is an RMSNorm with epsilon 1e40, which float32 cannot hold."""
    report = rx.optimize(model(SCALED, constants=f"{CONSTANTS}, {NUMBERS}")).report
    assert (len(report.fused), len(report.refused)) == (0, 1)
