"""Half precision, bit for bit: what an exported norm declares is what PyTorch computes.

One class of ``transformers`` of each order of rounding, and files that declare a wrong one.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers", reason="needs the catalogue: pip install transformers")

import onnx_ir as ir

from tests.tools.parity import half_proof
from tests.tools.tables import table
from toolbox.corpus.norm_classes import norm_classes

NORMS = {norm.key: norm for norm in norm_classes()}
TABLE: dict[str, Any] = table(__file__)


@functools.cache
def subject(key: str, dtype: str) -> half_proof.Subject:
    return half_proof.Subject(NORMS[key], dtype)


@pytest.mark.parametrize(("key", "dtype"), TABLE["orders"])
def test_declared_order_is_that_of_the_class(key: str, dtype: str) -> None:
    outcome = half_proof.prove(subject(key, dtype))
    assert outcome.holds, outcome


@pytest.mark.parametrize(("key", "dtype"), TABLE["rsqrt"])
def test_what_onnx_cannot_say_is_named(key: str, dtype: str) -> None:
    """PyTorch's rsqrt of a half type is rounded once; ONNX takes root and inverse apart."""
    outcome = half_proof.prove(subject(key, dtype))
    assert not outcome.holds
    assert outcome.declared == "x * rsqrt"


@pytest.mark.parametrize(("key", "dtype", "changes"), TABLE["wrong"])
def test_a_wrong_declaration_is_caught(
    key: str, dtype: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in changes.items():
        kind = ir.AttrFloat32 if isinstance(value, float) else ir.AttrInt64
        monkeypatch.setitem(subject(key, dtype).node.attributes, name, kind(name, value))
    outcome = half_proof.prove(subject(key, dtype))
    assert outcome.declared == ""
    assert not outcome.holds


def test_a_wrong_order_in_the_operator_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator scales before the cast, its spec says after."""
    library = importlib.import_module("rmsnorm_export.torch.operator.library")
    make_plan = library.make_plan

    def wrong_plan(*arguments: Any) -> Any:
        plan = make_plan(*arguments)
        return dataclasses.replace(plan, product=plan.stash)

    monkeypatch.setattr(library, "make_plan", wrong_plan)
    outcome = half_proof.prove(subject("LlamaRMSNorm", "float16"))
    assert outcome.declared
    assert not outcome.ours
