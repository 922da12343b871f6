"""A file of less than 10 KB is answered in 5 s and 500 MB, whatever it asks for; work grows with
the size of a graph."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnx
import pytest

import rmsnorm_export as rx
from tests.recognize import text_models as text
from tests.recognize.attacks import nested
from tests.sample import crossed


@pytest.mark.parametrize(
    ("step", "offset"),
    [(17, 0), *(pytest.param(8, offset, marks=pytest.mark.thorough) for offset in range(8))],
)
def test_every_attack_is_answered(step: int, offset: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.recognize.attacks", str(step), str(offset)],
        cwd=Path(__file__).parents[2],
        env={"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr[-2000:]


def _model(body: str, shape: str = "[2, 16]", calls: str = "") -> onnx.ModelProto:
    return text.model(
        body, inputs=f"float{shape} x", outputs="float[] y", imports=', "f" : 1', functions=calls
    )


NORM, BEHIND = text.norm("x", "y", weight=None), text.norm("h", "y", weight=None)
HUGE = f"[1, {2**36}]"


@pytest.mark.parametrize("target", text.TARGETS)
def test_functions_that_call_functions_are_walked_once(target: Any) -> None:
    """The norm behind 2 ** 40 paths needs the rank, which only their end tells."""
    source = _model("h = f.F0(x)\n" + BEHIND, calls=nested(40))
    report = rx.inspect(source, target=target)
    # To be raised, the model would have to be inlined.
    reasons = ["opset"] if target == "onnx" else []
    assert [one.reason for one in report.refused] == reasons
    assert len(report.fused) == 1 - len(reasons)


@pytest.mark.parametrize("levels", [150, 3000])
def test_functions_may_call_functions_very_deeply(levels: int) -> None:
    report = rx.inspect(_model("h = f.F0(x)\n" + BEHIND, calls=nested(levels)))
    told = [one.reason for one in report.refused]
    assert (report.fused, told) == ((), ["type-unknown"])


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_ones_of_a_size_that_a_file_merely_declares_are_not_made(target: Any) -> None:
    report = rx.optimize(_model(NORM, HUGE), target=target).report
    assert [refusal.reason for refusal in report.refused] == ["row-too-long"]
    assert f"{2**36:,}" in report.refused[0].found


def test_a_norm_without_a_scale_shares_no_function_that_would_need_ones_for_it() -> None:
    body = text.norm("x", "z", "p") + text.norm("h", "y", weight=None)
    ends = {"inputs": f"float[B,8] x, float{HUGE} h", "outputs": f"float[B,8] z, float{HUGE} y"}
    report = rx.optimize(text.model(body, **ends)).report
    assert ([site.n for site in report.fused], report.functions) == ([8, 2**36], 2)


ROW = "float[b, 16]"
GAIN = text.CONSTANTS + ", float[16] gain = {" + ", ".join("1" * 16) + "}"


def _casts(size: int) -> tuple[str, int]:
    """A chain of Identity and Cast nodes; every tenth is divided by the root of x."""
    x, body, rows = "x", text.norm("x", "h", weight=None).partition("h =")[0], []
    for index in range(size):
        operator = "Cast<to = 1>" if index % 2 else "Identity"
        body += f"x{index} = {operator}({x})\n "
        x = f"x{index}"
        if index % 10 == 9:
            rows.append(f"row{index}")
            body += f"row{index} = Div({x}, s)\n "
    return f"{body} y = Sum({', '.join(rows)})", len(rows)


def _one_gain(size: int) -> tuple[str, int]:
    """Nodes that read one gain: half of them scale norms, half of them anything."""
    x, body = "x", ""
    for index in range(0, size, 2):
        body += f"x{index} = Mul({x}, gain)\n "
        x = f"y{index}"
        body += text.norm(f"x{index}", x, f"n{index}_", "gain")
    return f"{body} y = Identity({x})", -(-size // 2)


def _one_row(size: int) -> tuple[str, int]:
    """A normalised row that many nodes read: the norm ends there."""
    body = text.norm("x", "row", weight=None)
    body += "".join(f"y{index} = Mul(row, gain)\n " for index in range(size))
    return f"{body} y = Sum({', '.join(f'y{index}' for index in range(size))})", 1


HARD = {"casts": _casts, "one gain": _one_gain, "one row": _one_row}
"""Graphs on which work must grow with their size, and no faster."""


def _hard(name: str, size: int) -> tuple[onnx.ModelProto, int]:
    body, norms = HARD[name](size)
    return text.model(body, inputs=f"{ROW} x", outputs=f"{ROW} y", constants=GAIN), norms


@crossed(3, name=[*HARD], target=text.TARGETS)
def test_work_grows_with_the_size_of_a_graph(name: str, target: Any) -> None:
    """Counted in calls of functions, which do not depend on the machine."""
    calls = []
    for size in (0, 400, 800):  # the first is for what is imported
        model, norms = _hard(name, size or 10)
        result, count = text.calls_of(rx.optimize, model, target=target)
        assert len(result.report.fused) == norms
        calls.append(count)
    assert calls[2] < 2.2 * calls[1]


def test_a_row_that_many_nodes_read_is_looked_at_once() -> None:
    """Its list of readers is no call of a function: told by the clock, with room for a slow one."""
    model, _ = _hard("one row", 40_000)
    start = time.process_time()
    assert len(rx.optimize(model, target="ort").report.fused) == 1
    assert time.process_time() - start < 10
