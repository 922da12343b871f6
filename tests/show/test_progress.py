"""Long work says how far it is to who asks, and to nobody else."""

from __future__ import annotations

import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.diagnosis import _MODEL


def test_who_asks_is_told_and_nobody_else(capfd: pytest.CaptureFixture[str]) -> None:
    model, told = onnx.parser.parse_model(_MODEL), []
    rx.optimize(model, prove=True)
    rx.optimize(model, prove=True, progress=lambda *step: told.append(step))
    assert told == [("proving", 0, 1), ("proving", 1, 1)]
    assert capfd.readouterr() == ("", "")
