"""From one target to another and back, and the same bytes every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
from recognize.text_models import TARGETS, function, model, norm

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
