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
from fuzz.norms import norm
from tests.tools.fuzz.judge import SETTINGS, Finding, Setting, judge
from tests.tools.fuzz.subject import Mutant

Change = Callable[[onnx.ModelProto], None]

PORTABLE, ORT, ONNX = (Setting(target, "reordered") for target in ("portable", "ort", "onnx"))


def findings(order: str, dtype: str, optimize: Any, *settings: Setting) -> list[Finding]:
    seed = norm(order, dtype)
    mutant = Mutant(seed.model, seed.signature)
    return judge(mutant, settings or SETTINGS, (), optimize).findings


def kinds(found: list[Finding]) -> set[str]:
    return {finding.kind for finding in found}


def changed(change: Change) -> Any:
    """`optimize` with a mistake in the model that it returns."""

    def optimize(model: Any, **options: Any) -> Any:
        result = rx.optimize(model, **options)
        proto = ir.to_proto(result.model)
        change(proto)
        return SimpleNamespace(model=ir.from_proto(proto), report=result.report)

    return optimize


def reported(**fields: Any) -> Any:
    """`optimize` with something else in its report about every site."""

    def optimize(model: Any, **options: Any) -> Any:
        result = rx.optimize(model, **options)
        sites = tuple(dataclasses.replace(site, **fields) for site in result.report.fused)
        return SimpleNamespace(
            model=result.model, report=dataclasses.replace(result.report, fused=sites)
        )

    return optimize


def the_norm(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if "Norm" in node.op_type)


def attribute(name: str, value: float) -> Change:
    def change(model: onnx.ModelProto) -> None:
        node = the_norm(model)
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])

    return change


def no_gain(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == "weight")
    ones = np.ones_like(onnx.numpy_helper.to_array(tensor))
    tensor.CopyFrom(onnx.numpy_helper.from_array(ones, "weight"))


def one_gain_off(model: onnx.ModelProto) -> None:
    """The last number of the gain is its neighbour, in float64 some hundred further."""
    tensor = next(t for t in model.graph.initializer if t.name == "weight")
    array = onnx.numpy_helper.to_array(tensor).copy()
    step = max(1e-13, float(ml_dtypes.finfo(array.dtype).eps))
    array[-1] = (array[-1].astype(np.float64) * (1 - step)).astype(array.dtype)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, "weight"))


@pytest.mark.parametrize("dtype", ["float", "double", "float16", "bfloat16"])
@pytest.mark.parametrize("order", ["llama", "gemma"])
def test_what_is_right_is_no_finding(order: str, dtype: str) -> None:
    """With every target and numerics; nothing compared would be no finding either."""
    seed = norm(order, dtype, opset=23)
    verdict = judge(Mutant(seed.model, seed.signature), SETTINGS, SETTINGS)
    assert verdict.findings == []
    assert verdict.norms == 1
    assert verdict.unjudged < verdict.compared / 10


MISTAKES = {
    "epsilon doubled": attribute("epsilon", 0.002),
    "epsilon one step off": attribute("epsilon", 0.001 * (1 + 2e-7)),
    "another axis": attribute("axis", -2),
    "gain dropped": no_gain,
    "one gain off by a step": one_gain_off,
}


@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_another_number_is_seen(mistake: str, dtype: str) -> None:
    found = kinds(findings("llama", dtype, changed(MISTAKES[mistake]), ORT))
    assert "mathematics" in found or (mistake == "another axis" and "cannot be evaluated" in found)


@pytest.mark.parametrize("dtype", ["double", "float16"])
@pytest.mark.parametrize("target", [PORTABLE, ONNX], ids=str)
def test_another_gain_is_seen_in_every_target(target: Setting, dtype: str) -> None:
    assert "mathematics" in kinds(findings("gemma", dtype, changed(one_gain_off), target))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_class_that_is_too_strict_is_seen(dtype: str) -> None:
    """LLaMA's order as Gemma's: one rounding less than the source has, called exact."""
    assert findings("llama", dtype, rx.optimize, ORT) == []
    found = findings("llama", dtype, reported(numerics="exact"), ORT)
    assert kinds(found) == {"declared types"}
    assert all("exact" in finding.detail for finding in found)


def test_a_rounding_more_is_seen() -> None:
    """It changes nothing in float64: only the declared types tell."""

    def rounded(model: onnx.ModelProto) -> None:
        node = the_norm(model)
        out, node.output[0] = node.output[0], "exactly"
        for to, (source, result) in ((16, ("exactly", "few bits")), (10, ("few bits", out))):
            model.graph.node.append(onnx.helper.make_node("Cast", [source], [result], to=to))

    found = findings("gemma", "float16", changed(rounded), PORTABLE)
    assert kinds(found) == {"declared types", "onnxruntime"}


def test_worse_than_the_source_is_seen() -> None:
    """``upcast`` allows other numbers, and none that are further from float64."""
    wrong = changed(one_gain_off)

    def optimize(model: Any, **options: Any) -> Any:
        result = wrong(model, **options)
        sites = tuple(dataclasses.replace(s, numerics="upcast") for s in result.report.fused)
        report = dataclasses.replace(result.report, fused=sites)
        return SimpleNamespace(model=result.model, report=report)

    assert "mathematics" in kinds(findings("llama", "float16", optimize, PORTABLE))


def test_changed_names_and_types_are_seen() -> None:
    def renamed(model: onnx.ModelProto) -> None:
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "rows"

    assert kinds(findings("llama", "float", changed(renamed), ORT)) == {"interface"}


def test_what_cannot_be_loaded_is_seen() -> None:
    def unknown(model: onnx.ModelProto) -> None:
        the_norm(model).op_type = "SimplifiedLayerNormalisation"

    assert "does not load" in kinds(findings("llama", "float", changed(unknown), ORT))


def test_shapes_of_empty_batches_are_seen() -> None:
    """A Reshape without allowzero takes a size of 0 for the size of its input."""

    def reshaped(model: onnx.ModelProto) -> None:
        node = the_norm(model)
        shape = onnx.numpy_helper.from_array(np.asarray([2, -1, 12]), "shape")
        model.graph.initializer.append(shape)
        out, node.output[0] = node.output[0], "inner"
        model.graph.node.append(onnx.helper.make_node("Reshape", ["inner", "shape"], [out]))

    found = findings("llama", "float", changed(reshaped), ORT)
    assert kinds(found) & {"cannot be evaluated", "does not run", "shape"}, found


def test_a_changed_input_and_an_exception_are_seen() -> None:
    def careless(model: onnx.ModelProto, **options: Any) -> Any:
        model.graph.node[0].name = "mine"
        return rx.optimize(model, **options)

    def broken(*_: Any, **__: Any) -> Any:
        raise IndexError("tuple index out of range")

    def refusing(*_: Any, **__: Any) -> Any:
        raise rx.InputError("The model is odd.", found="a norm", fix="none")

    assert "input changed" in kinds(findings("llama", "float", careless, ORT))
    assert kinds(findings("llama", "float", broken, ORT)) == {"exception"}
    assert kinds(findings("llama", "float", refusing, ORT)) == {"refused"}


def test_a_proof_that_fails_a_right_rewrite_is_seen() -> None:
    def doubting(model: Any, *, prove: bool, **options: Any) -> Any:
        result = rx.optimize(model, prove=prove, **options)
        if not prove:
            return result
        refusal = rx.Refusal("y", "Mul", "proof-failed", "It failed.", "7 ulp", "none", "main")
        report = dataclasses.replace(result.report, refused=(refusal,))
        return SimpleNamespace(model=result.model, report=report)

    seed = norm("llama", "float")
    verdict = judge(Mutant(seed.model, seed.signature), (ORT,), (ORT,), doubting)
    assert kinds(verdict.findings) == {"proof-failed"}
