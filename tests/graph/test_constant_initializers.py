"""Files of IR version 3, whose initializers are graph inputs as well."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes import common
from recognize.text_models import model, norm

import rmsnorm_export as rx


def _ir3() -> onnx.ModelProto:
    source = model(norm("x", "y"), opset=13)
    source.ir_version = 3
    for tensor in source.graph.initializer:
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        source.graph.input.append(info)
    onnx.checker.check_model(source)
    return source


@pytest.mark.parametrize("look", [rx.optimize, rx.inspect])
def test_what_a_caller_may_replace_is_no_constant(look: Any) -> None:
    result = look(_ir3())
    report = getattr(result, "report", result)
    assert not report.fused
    assert {refusal.kind for refusal in report.refused} <= {"norm", "look-alike"}
    assert any("3 initializers are graph inputs" in note for note in report.notes)
    constant = ir.from_proto(_ir3())
    common.RemoveInitializersFromInputsPass()(constant)  # as the note says
    assert len(rx.optimize(constant).report.fused) == 1
