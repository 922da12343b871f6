"""``expand``: what is one node in any form becomes standard operators, all of it or a part."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.rewrite.optimize import Result
from rmsnorm_export.runtime.session import load_session
from tests.tools.runtimes.models import BOUNDS, block, feed

HALF = TensorProto.FLOAT16


def _run(model: bytes) -> np.ndarray:
    output: np.ndarray = load_session(model, threads=1).run(None, {"input": feed()})[0]
    return output


def _kinds(result: Result) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(result.to_bytes()).graph.node]


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, HALF])
@pytest.mark.parametrize("target", ["portable", "onnx", "ort"])
def test_every_form_becomes_plain_operators(target: Target, dtype: int) -> None:
    fused = rx.optimize(block(dtype), target=target).to_bytes()
    result = rx.optimize(fused, target="plain", sites=["*"], prove=True)
    assert len(result.report.fused) == 3
    assert result.report.headline().endswith(" are plain operators")
    assert all(s.proof is not None and s.proof.passed for s in result.report.fused)
    assert result.report.opset_before == result.report.opset_after
    assert not any("Norm" in kind or kind in ("Constant", "CastLike") for kind in _kinds(result))
    assert not result.model.functions
    assert set(result.model.opset_imports) <= {"", "com.microsoft"}
    onnx.checker.check_model(onnx.load_from_string(result.to_bytes()), full_check=True)
    bound = BOUNDS["float16" if dtype == HALF else "float32"]
    if target == "portable":  # it is the function body that ran before, rounding by rounding
        bound = 0
    np.testing.assert_allclose(_run(result.to_bytes()), _run(fused), rtol=0, atol=bound)
    again = rx.optimize(result.to_bytes(), target=target)
    assert [site.op for site in again.report.fused] == [
        site.op for site in rx.inspect(fused, target=target).kept
    ]


def test_some_sites_alone() -> None:
    fused = rx.optimize(block(TensorProto.FLOAT))
    names = [site.name for site in fused.report.fused]
    result = rx.optimize(fused.to_bytes(), target="plain", sites=[names[1]])
    assert [site.nodes for site in result.report.fused] == [(names[1],)]
    assert _kinds(result).count("SkipRMSNorm") == 2
    assert len(result.model.functions) == 1
    np.testing.assert_array_equal(_run(result.to_bytes()), _run(fused.to_bytes()))
    assert len(rx.optimize(fused.to_bytes(), target="plain", sites=["*"]).report.fused) == 3
    with pytest.raises(rx.UsageError, match="has this name") as caught:
        rx.optimize(fused.to_bytes(), target="plain", sites=["layers*"])
    assert names[0] in caught.value.fix


def test_norms_that_are_plain_stay_as_they_are() -> None:
    source = block(TensorProto.FLOAT)
    result = rx.optimize(source, target="plain", sites=["*"])
    assert (result.report.fused, result.report.refused) == ((), ())
    assert [n.name for n in result.model.graph] == [n.name for n in source.graph.node]
