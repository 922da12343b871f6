"""Wrong rewrites are planted in what `optimize` returns: the judge sees each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from spellings.case import Case
from spellings.choices import Frame, Spelling
from spellings.place import build

import rmsnorm_export as rx
from tests.sample import crossed
from tests.tools.judge import SETTINGS, Setting, Subject, judge

Change = Callable[[ir.Model], None]
ROW = 12

PORTABLE, ORT, ONNX = (
    {"target": target, "numerics": "reordered"} for target in ("portable", "ort", "onnx")
)


def norm(order: str, dtype: str, opset: int = 18) -> Case:
    """One norm of rows of ``ROW`` elements, in the spelling of torch.onnx.export, all dynamic."""
    rounding = order if dtype in ("float16", "bfloat16") else "plain"
    spelling = Spelling(rounding=rounding, epsilon_value=1e-3, inverse="reciprocal")
    shape = {"lead": (2, 5), "row": (ROW,), "symbolic": True}
    return build(spelling, Frame(dtype=dtype, opset=opset, value_infos=False, **shape))


def findings(order: str, dtype: str, optimize: Any, setting: Setting) -> set[str]:
    case = norm(order, dtype)
    return judge(Subject(case.model, case.feeds), [setting], optimize).findings.keys()


def changed(
    change: Change = lambda _: None, refused: tuple[rx.Refusal, ...] = (), **fields: Any
) -> Any:
    """`optimize` with a mistake in the model that it returns, or in its report of every site."""

    def optimize(model: Any, **options: Any) -> Any:
        result = rx.optimize(model, **options)
        change(result.model)
        sites = tuple(dataclasses.replace(site, **fields) for site in result.report.fused)
        report = dataclasses.replace(result.report, fused=sites, refused=refused)
        return SimpleNamespace(model=result.model, report=report)

    return optimize


def the_norm(model: ir.Model) -> ir.Node:
    return next(node for node in model.graph if "Norm" in node.op_type)


def attribute(name: str, value: float) -> Change:
    def change(model: ir.Model) -> None:
        the_norm(model).attributes[name] = ir.convenience.convert_attribute(name, value)

    return change


def gain(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Other numbers in the gain."""

    def replace(model: ir.Model) -> None:
        (value,) = (v for v in model.graph.initializers.values() if v.const_value.shape == [ROW])
        value.const_value = ir.tensor(change(value.const_value.numpy()), name=value.name)

    return replace


def last_off(array: np.ndarray) -> np.ndarray:
    """The last number is its neighbour, in float64 some thousand further."""
    wide, step = array.astype(np.float64), max(1e-9, float(ml_dtypes.finfo(array.dtype).eps))
    return np.append(wide[:-1], wide[-1] * (1 - step)).astype(array.dtype)


one_gain_off, no_gain = gain(last_off), gain(np.ones_like)


def appended(model: ir.Model, op_type: str, *operands: ir.Value, **attributes: int) -> None:
    """Put an operator behind the output."""
    (old,) = model.graph.outputs
    node = ir.node(op_type, [old, *operands], attributes)
    (new,) = model.graph.outputs[:] = node.outputs
    new.name, new.type, new.shape = old.name, old.type, old.shape
    old.name, old.type, old.shape = f"inner_{len(model.graph)}", None, None
    model.graph.append(node)


def through_bfloat16(model: ir.Model) -> None:
    appended(model, "Cast", to=16)
    appended(model, "Cast", to=10)


def renamed(model: ir.Model) -> None:
    model.graph.outputs[0].shape = ir.Shape(["rows", *model.graph.outputs[0].shape[1:]])


def unknown(model: ir.Model) -> None:
    the_norm(model).op_type = "SimplifiedLayerNormalisation"


def reshaped(model: ir.Model) -> None:
    shape = ir.val("shape", const_value=ir.tensor([5, 2, ROW], name="shape"))
    model.graph.register_initializer(shape)
    appended(model, "Reshape", shape)


@crossed(4, order=["llama", "gemma"], dtype=["float32", "float64", "float16", "bfloat16"])
def test_what_is_right_is_no_finding(order: str, dtype: str) -> None:
    """With every target, class and proof; nothing compared would be no finding either."""
    case = norm(order, dtype, opset=23)
    proofs = ({**setting, "prove": True} for setting in SETTINGS)
    verdict = judge(Subject(case.model, case.feeds), (*SETTINGS, *proofs))
    assert verdict.findings == {}
    assert verdict.norms == 1
    assert verdict.compared > 1000


NUMBERS = (
    attribute("epsilon", 0.002), attribute("epsilon", 0.001 * (1 + 2e-7)), no_gain, one_gain_off
)  # fmt: skip
MATHEMATICS, HALVES = {"mathematics"}, ("float16", "bfloat16")
MISTAKES = [
    *(("llama", dtype, changed(one), ORT, MATHEMATICS)
      for dtype in ("float32", *HALVES) for one in NUMBERS),
    *(("gemma", dtype, changed(one_gain_off), target, MATHEMATICS)
      for dtype in ("float64", "float16") for target in (PORTABLE, ONNX)),
    # LLaMA's order as Gemma's: one rounding less than the source has, called exact.
    *(("llama", dtype, changed(numerics="exact"), ORT, {"rounding"}) for dtype in HALVES),
    ("gemma", "float16", changed(through_bfloat16), ORT, {"rounding", "accuracy"}),
    ("llama", "float16", changed(one_gain_off, numerics="upcast"), ORT, MATHEMATICS),
    ("llama", "float32", changed(attribute("axis", -2)), ORT, MATHEMATICS),
    ("llama", "float32", changed(renamed), ORT, {"interface"}),
    ("llama", "float32", changed(unknown), ORT, {"invalid"}),
    ("llama", "float32", changed(reshaped), ORT, {"shape"}),
]  # fmt: skip


@pytest.mark.parametrize(("order", "dtype", "mistake", "setting", "seen"), MISTAKES)
def test_mistakes_are_seen(
    order: str, dtype: str, mistake: Any, setting: Setting, seen: set[str]
) -> None:
    assert findings(order, dtype, mistake, setting) & seen


def careless(model: onnx.ModelProto, **options: Any) -> Any:
    model.graph.node[0].name = "mine"
    return rx.optimize(model, **options)


def raising(error: Exception) -> Any:
    def optimize(*_: Any, **__: Any) -> Any:
        raise error

    return optimize


FAILED = rx.Refusal("y", "Mul", "proof-failed", "It failed.", "7 ulp", "none", "main")


@pytest.mark.parametrize(
    ("optimize", "kind"),
    [
        (careless, "input changed"),
        (raising(IndexError("tuple index out of range")), "exception"),
        (raising(rx.InputError("The model is odd.", found="a norm", fix="none")), "refused"),
        (changed(refused=(FAILED,)), "proof-failed"),
    ],
)
def test_what_is_no_number_is_seen(optimize: Any, kind: str) -> None:
    assert findings("llama", "float32", optimize, ORT) == {kind}
