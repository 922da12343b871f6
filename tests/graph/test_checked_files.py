"""What was checked is what is used: a file that was changed since is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx.parser
import pytest

import rmsnorm_export as rx
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.graph.pieces import parse

MODEL = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 18]> main (float[B, 8] x) => (float[B, 8] y)'
    "{ y = Identity (x) }"
)


def test_a_file_that_was_changed_after_it_was_checked_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(MODEL, path)
    loaded = load_model(path)
    assert loaded.to_bytes() == path.read_bytes()
    other = tmp_path / "other.onnx"
    onnx.save(MODEL, other)
    other.replace(path)
    with pytest.raises(rx.InputError, match="changed"):
        loaded.to_bytes()
    onnx.save(MODEL, other)

    def then_replaced(*arguments: Any) -> Any:
        parsed = parse(*arguments)
        other.replace(path)
        return parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rmsnorm_export.graph.load.parse", then_replaced)
        loaded = load_model(path)
    with pytest.raises(rx.InputError, match="changed"):
        loaded.to_bytes()
