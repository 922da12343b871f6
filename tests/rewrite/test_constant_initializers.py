"""Files of IR version 3, whose initializers are graph inputs as well."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from click.testing import CliRunner
from recognize.text_models import feeds, model, norm, run

import rmsnorm_export as rx
from rmsnorm_export.cli.main import cli


def _ir3() -> onnx.ModelProto:
    source = model(norm("x", "y"), opset=13)
    source.ir_version = 3
    for tensor in source.graph.initializer:
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        source.graph.input.append(info)
    onnx.checker.check_model(source)
    return source


def test_what_a_caller_may_replace_is_no_constant() -> None:
    report = rx.optimize(_ir3()).report
    assert not report.fused
    assert {refusal.kind for refusal in report.refused} <= {"norm", "look-alike"}
    assert any("3 initializers are graph inputs" in note for note in report.notes)


@pytest.mark.parametrize("target", ["portable", "ort"])
def test_the_option_takes_them_for_constants(target: str) -> None:
    source = _ir3()
    result = rx.optimize(source, target=target, constant_initializers=True)
    assert len(result.report.fused) == 1
    assert any("constant now" in note for note in result.report.notes)
    proto = ir.to_proto(result.model)
    assert [value.name for value in proto.graph.input] == ["x"]
    assert len(source.graph.input) == 4, "the caller's model was changed"
    arrays = feeds(source)
    for old, new in zip(run(source, arrays), run(proto, arrays), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-6)


def test_the_proof_is_made() -> None:
    report = rx.optimize(_ir3(), constant_initializers=True, prove=True).report
    assert [site.proof is not None and site.proof.passed for site in report.fused] == [True]


def test_inspect_says_the_same() -> None:
    assert not rx.inspect(_ir3()).fused
    assert len(rx.inspect(_ir3(), constant_initializers=True).fused) == 1


def test_the_commands_have_the_option(tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(_ir3(), path)
    for command in (["inspect", str(path)], ["optimize", str(path), "-o", str(out), "--force"]):
        for flags, norms in ([], 0), (["--constant-initializers"], 1):
            done = CliRunner().invoke(cli, [*command, "--format", "json", *flags])
            assert done.exit_code == 0, done.output
            assert len(json.loads(done.stdout)["fused"]) == norms


def test_a_model_without_such_initializers_has_no_note() -> None:
    source = model(norm("x", "y"))
    assert rx.optimize(source).report.notes == ()
    assert rx.optimize(source, constant_initializers=True).report.notes == ()
