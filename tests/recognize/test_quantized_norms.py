"""QuantizeLinear and DequantizeLinear inside a norm, and variances: each has its own reason."""

from __future__ import annotations

import pytest
import torch

import rmsnorm_export as rx
from recognize.text_models import CONSTANTS, WEIGHT, model

QUANTIZERS = "float qs = {0.01}, int8 qz = {0}, int8 q_two = {127}, float two_s = {0.015748}"
STEPS = {
    "sq": "Pow(a, {two})",
    "m": "ReduceMean<axes = [-1], keepdims = 1>(sq)",
    "e": "Add(m, eps)",
    "s": "Sqrt(e)",
    "n": "Div({row}, s)",
    "y": "Mul(n, w)",
}


def quantized_norm(at: str) -> str:
    """A norm whose value ``at`` is quantized and made a float again."""
    lines = ["a = Identity(x)"]
    row, two = "a", "two"
    if at == "row":
        lines += ["ai = QuantizeLinear(a, qs, qz)", "aq = DequantizeLinear(ai, qs, qz)"]
        row = "aq"
    if at == "two":
        lines += ["twoq = DequantizeLinear(q_two, two_s, qz)"]
        two = "twoq"
    for name, step in STEPS.items():
        text = step.format(row=row, two=two)
        if name == at:
            lines += [f"{name}0 = {text}", f"{name}i = QuantizeLinear({name}0, qs, qz)"]
            lines += [f"{name} = DequantizeLinear({name}i, qs, qz)"]
        else:
            lines += [f"{name} = {text}"]
    return "\n".join(lines)


@pytest.mark.parametrize("at", ["row", "two", "sq", "m", "e", "s"])
def test_inside_the_norm(at: str) -> None:
    source = model(quantized_norm(at), constants=f"{WEIGHT}, {CONSTANTS}, {QUANTIZERS}")
    (refusal,) = rx.inspect(source).refused
    assert (refusal.reason, refusal.kind) == ("quantized", "norm")
    assert ("Div 'n'" if at == "row" else "Linear") in refusal.found


@pytest.mark.parametrize(("at", "spelling"), [("n", 5), ("y", 6)])
def test_behind_what_is_a_norm_already(at: str, spelling: int) -> None:
    source = model(quantized_norm(at), constants=f"{WEIGHT}, {CONSTANTS}, {QUANTIZERS}")
    report = rx.inspect(source)
    assert not report.refused
    assert [len(site.nodes) for site in report.fused] == [spelling]


def test_one_row_made_a_float_twice_is_one_row() -> None:
    body = """i = QuantizeLinear(x, qs, qz)
    a = DequantizeLinear(i, qs, qz)
    b = DequantizeLinear(i, qs, qz)
    """ + "\n".join(f"{k} = {v.format(row='b', two='two')}" for k, v in STEPS.items())
    source = model(body, constants=f"{WEIGHT}, {CONSTANTS}, {QUANTIZERS}")
    report = rx.inspect(source)
    assert (len(report.fused), report.refused) == (1, ())


class SimpleNorm(torch.nn.Module):
    """timm's: the row over its standard deviation."""

    def __init__(self, *, unbiased: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(24))
        self.unbiased = unbiased

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        variance = wide.var(dim=-1, keepdim=True, unbiased=self.unbiased)
        return (wide * torch.rsqrt(variance + 1e-5)).to(x.dtype) * self.weight


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize(
    "exporter",
    [
        {"dynamo": True, "opset_version": 18},
        {"dynamo": True, "opset_version": 23, "optimize": False},
        {"dynamo": False, "opset_version": 17},
    ],
    ids=["dynamo18", "dynamo23-plain", "torchscript17"],
)
def test_a_variance_is_no_refused_norm(
    exporter: dict[str, object], unbiased: bool, tmp_path: object
) -> None:
    path = f"{tmp_path}/simple.onnx"
    sizes: dict[str, object] = {"dynamic_axes": {"x": {0: "b", 1: "s"}}}
    if exporter["dynamo"]:
        dynamic = torch.export.Dim.DYNAMIC
        sizes = {"dynamic_shapes": ({0: dynamic, 1: dynamic},)}
    torch.onnx.export(
        SimpleNorm(unbiased=unbiased), (torch.randn(2, 5, 24),), path, input_names=["x"],
        **exporter, **sizes,  # type: ignore[arg-type]
    )  # fmt: skip
    report = rx.inspect(path)
    assert [(r.reason, r.kind) for r in report.refused] == [("variance", "look-alike")]
    assert not report.fused
