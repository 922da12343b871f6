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

import rmsnorm_export as rx
from fuzz.seeds import ROW, norm
from tests.tools.fuzz.judge import SETTINGS, Mutant, Setting, judge

Change = Callable[[onnx.ModelProto], None]

PORTABLE, ORT, ONNX = (
    {"target": target, "numerics": "reordered"} for target in ("portable", "ort", "onnx")
)


def findings(order: str, dtype: str, optimize: Any, setting: Setting) -> set[str]:
    seed = norm(order, dtype)
    return judge(Mutant(seed.model, seed.feeds), [setting], optimize).findings.keys()


def changed(
    change: Change = lambda _: None, refused: tuple[rx.Refusal, ...] = (), **fields: Any
) -> Any:
    """`optimize` with a mistake in the model that it returns, or in its report of every site."""

    def optimize(model: Any, **options: Any) -> Any:
        result = rx.optimize(model, **options)
        proto = ir.to_proto(result.model)
        change(proto)
        sites = tuple(dataclasses.replace(site, **fields) for site in result.report.fused)
        report = dataclasses.replace(result.report, fused=sites, refused=refused)
        return SimpleNamespace(model=ir.from_proto(proto), report=report)

    return optimize


def the_norm(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if "Norm" in node.op_type)


def attribute(name: str, value: float) -> Change:
    def change(model: onnx.ModelProto) -> None:
        attributes = the_norm(model).attribute
        for one in [one for one in attributes if one.name == name]:
            attributes.remove(one)
        attributes.append(onnx.helper.make_attribute(name, value))

    return change


def gain(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Other numbers in the gain."""

    def replace(model: onnx.ModelProto) -> None:
        (tensor,) = (t for t in model.graph.initializer if list(t.dims) == [ROW])
        array = change(onnx.numpy_helper.to_array(tensor))
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))

    return replace


def last_off(array: np.ndarray) -> np.ndarray:
    """The last number is its neighbour, in float64 some thousand further."""
    wide, step = array.astype(np.float64), max(1e-9, float(ml_dtypes.finfo(array.dtype).eps))
    return np.append(wide[:-1], wide[-1] * (1 - step)).astype(array.dtype)


one_gain_off, no_gain = gain(last_off), gain(np.ones_like)


def through_bfloat16(model: onnx.ModelProto) -> None:
    node = the_norm(model)
    out, node.output[0] = node.output[0], "exactly"
    for to, (source, result) in ((16, ("exactly", "few bits")), (10, ("few bits", out))):
        model.graph.node.append(onnx.helper.make_node("Cast", [source], [result], to=to))


def renamed(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "rows"


def unknown(model: onnx.ModelProto) -> None:
    the_norm(model).op_type = "SimplifiedLayerNormalisation"


def reshaped(model: onnx.ModelProto) -> None:
    node = the_norm(model)
    shape = onnx.numpy_helper.from_array(np.asarray([5, 2, ROW]), "shape")
    model.graph.initializer.append(shape)
    out, node.output[0] = node.output[0], "inner"
    model.graph.node.append(onnx.helper.make_node("Reshape", ["inner", "shape"], [out]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("order", ["llama", "gemma"])
def test_what_is_right_is_no_finding(order: str, dtype: str) -> None:
    """With every target, class and proof; nothing compared would be no finding either."""
    seed = norm(order, dtype, opset=23)
    proofs = ({**setting, "prove": True} for setting in SETTINGS)
    verdict = judge(Mutant(seed.model, seed.feeds), (*SETTINGS, *proofs))
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
