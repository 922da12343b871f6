"""What a command does not use, it does not wait for; what it uses is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx

from tests.cli.conftest import model

PROGRAM = """
import sys
from rmsnorm_export.cli.main import main

sys.argv[1:] = ["inspect", sys.argv[1]]
assert main() == 0
assert "onnx_ir" in sys.modules
assert "sympy.core" not in sys.modules

import onnx_ir

half = onnx_ir.SymbolicDim("N") // 2
assert str(half.simplify()) == str(onnx_ir.SymbolicDim("floor(N/2)").simplify())
assert "sympy.core" in sys.modules
import sympy
assert sympy.Integer(2) + 1 == 3
print("as usual")
"""


def test_sympy_is_loaded_when_it_is_used(tmp_path: Path) -> None:
    three = tmp_path / "three.onnx"
    onnx.save(model(3), three)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, three], capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("as usual\n"), done.stderr
