"""Models for the command-line tests, and a way to run the program as a user does."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from rmsnorm_export.cli.main import main

Run = Callable[..., "Outcome"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The exit code and the streams of a run."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def json(self) -> dict[str, Any]:
        """stdout as one strict JSON document."""

        def refuse(constant: str) -> float:
            raise AssertionError(f"not JSON: {constant}")

        loaded: dict[str, Any] = json.loads(self.stdout, parse_constant=refuse)
        return loaded

    def assert_error(self, code: int, *words: str) -> None:
        """The exit code and exactly three lines on stderr, which hold ``words``."""
        lines = self.stderr.splitlines()
        assert self.code == code, self.stderr
        assert [line.split(": ", 1)[0] for line in lines] == ["error", "found", "fix"], self.stderr
        assert all(line.split(": ", 1)[1] for line in lines)
        for word in words:
            assert word in self.stderr


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in ``tmp_path`` with no terminal; arguments are made strings."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def start(*arguments: object, stdin: bytes = b"") -> Outcome:
        out, err = io.BytesIO(), io.BytesIO()
        with monkeypatch.context() as streams:
            streams.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            streams.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8"))
            streams.setattr(sys, "stderr", io.TextIOWrapper(err, encoding="utf-8"))
            code = main([str(argument) for argument in arguments])
            sys.stdout.flush()
            sys.stderr.flush()
            return Outcome(code, out.getvalue(), err.getvalue().decode())

    return start


NORM = """
["{place}/Pow_0"] "{place}/square" = Pow("{x}", two)
["{place}/ReduceMean_1"] "{place}/mean" = ReduceMean("{place}/square", axes)
["{place}/Add_2"] "{place}/sum" = Add("{place}/mean", {epsilon})
["{place}/Sqrt_3"] "{place}/root" = Sqrt("{place}/sum")
["{place}/Reciprocal_4"] "{place}/inverse" = Reciprocal("{place}/root")
["{place}/Mul_5"] "{place}/normalised" = Mul("{x}", "{place}/inverse")
["{place}/Mul_6"] "{place}/y" = Mul("{place}/normalised", weight)
["{place}/tanh"] "{place}/tanh" = Tanh("{place}/y")
"""
"""An RMSNorm as torch.onnx spells it, and what is behind it."""


def model(norms: int = 3, refused: int = 0, n: int = 40, scale: float = 1.0) -> onnx.ModelProto:
    """``norms`` RMSNorms with Tanh after each, then ``refused`` with epsilon a graph input."""
    places = {f"/layers.{i}/norm": "epsilon" for i in range(norms)}
    places |= {f"/odd.{i}/norm": "eps_input" for i in range(refused)}
    outputs = ["x", *(f"{place}/tanh" for place in places)]
    body = "".join(
        NORM.format(place=place, x=x, epsilon=epsilon)
        for x, (place, epsilon) in zip(outputs, places.items(), strict=False)
    )
    parsed = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[rows, {n}] x'
        f"{', float eps_input' if refused else ''}) => (float[rows, {n}] out)"
        f'{{ {body} ["/last"] out = Identity("{outputs[-1]}") }}'
    )
    constants = {
        "two": np.array(2, np.float32),
        "axes": np.array([-1], np.int64),
        "epsilon": np.array(1e-5, np.float32),
        "weight": np.linspace(0.5, 1.5, n, dtype=np.float32) * np.float32(scale),
    }
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    parsed.graph.initializer.extend(tensors)
    return parsed


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A file with three RMSNorms."""
    path = tmp_path / "three.onnx"
    onnx.save(model(3), path)
    return path


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A file with two RMSNorms and one that is refused (its epsilon is a graph input)."""
    path = tmp_path / "mixed.onnx"
    onnx.save(model(2, refused=1), path)
    return path
