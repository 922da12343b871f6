"""Intermediates with several consumers: what else reads them never decides about the norm."""

from __future__ import annotations

import onnx
import pytest

from rmsnorm_export.lower.targets import Target

from .text_models import CONSTANTS, TARGETS, WEIGHT, model, norm, optimized

OTHER_READERS = {
    "clip of the mean": ("after m", "o = Clip(m, eps)", "float[B,S,1] o"),
    "root of the clipped mean": ("after m", "c = Clip(m, eps)\n o = Sqrt(c)", "float[B,S,1] o"),
    "second epsilon": ("after e", "o = Add(e, eps)", "float[B,S,1] o"),
    "variance": ("after m", "o = Sub(m, two)", "float[B,S,1] o"),
    "scaled mean": ("after m", "o = Mul(m, two)", "float[B,S,1] o"),
    "twice the root": ("after s", "o = Add(s, s)", "float[B,S,1] o"),
    "root of the root": ("after s", "o = Sqrt(s)", "float[B,S,1] o"),
    "another numerator": ("after s", "o = Div(z, s)", "float[B,S,8] o"),
    "one over the root": ("after s", "o = Reciprocal(s)", "float[B,S,1] o"),
    "x times the root": ("after s", "o = Mul(x, s)", "float[B,S,8] o"),
    "sum of squares": ("after sq", "o = ReduceSum<keepdims = 1>(sq)", "float[1,1,1] o"),
    "another gain": ("after n", "o = Mul(n, w2)", "float[B,S,8] o"),
    "a rounding": ("after n", "o = Cast<to = 10>(n)", "float16[B,S,8] o"),
}


def _with_reader(name: str, *, first: bool) -> onnx.ModelProto:
    """The norm with one more reader, before or behind the norm's own in the order of nodes."""
    place, reader, output = OTHER_READERS[name]
    value = place.removeprefix("after ")
    lines = norm("x", "y").splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{value} =")) + 1
    lines.insert(at if first else len(lines), " " + reader)
    return model(
        "\n".join(lines),
        inputs="float[B,S,8] x, float[B,S,8] z",
        outputs=f"float[B,S,8] y, {output}",
        constants=f"{WEIGHT}, {CONSTANTS}, float[8] w2 = {{8, 7, 6, 5, 4, 3, 2, 1}}",
    )


@pytest.mark.parametrize("first", [True, False], ids=["reader first", "reader last"])
@pytest.mark.parametrize("name", OTHER_READERS)
def test_another_reader_does_not_decide(name: str, first: bool) -> None:
    report, _ = optimized(_with_reader(name, first=first), "portable")
    assert len(report.fused) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_every_stage_is_a_graph_output_and_read_again(target: Target) -> None:
    source = model(
        norm("x", "y") + "a = Add(sq, eps)\n b = Add(e, eps)\n c = Add(n, eps)\n d = Mul(m, two)",
        outputs="float[B,S,8] y, float[B,S,8] sq, float[B,S,1] m, float[B,S,1] e, float[B,S,1] s,"
        " float[B,S,8] n, float[B,S,8] a, float[B,S,1] b, float[B,S,8] c, float[B,S,1] d",
    )
    report, _ = optimized(source, target)
    assert len(report.fused) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_two_epsilons_on_one_mean_are_two_norms(target: Target) -> None:
    second = "e2 = Add(m, big)\n s2 = Sqrt(e2)\n n2 = Div(x, s2)\n y2 = Mul(n2, w)"
    source = model(
        norm("x", "y") + second,
        outputs="float[B,S,8] y, float[B,S,8] y2",
        constants=f"{WEIGHT}, {CONSTANTS}, float big = {{0.25}}",
    )
    report, _ = optimized(source, target)
    assert sorted(round(site.epsilon, 7) for site in report.fused) == [1e-5, 0.25]


@pytest.mark.parametrize("target", TARGETS)
def test_the_gain_of_a_norm_is_the_outcome_of_another(target: Target) -> None:
    body = norm("x", "y") + norm("v", "gain", "k") + "z = Relu(y)\n" + norm("z", "o", "l", "gain")
    source = model(body, inputs="float[2,3,8] x, float[8] v", outputs="float[2,3,8] o")
    report, _ = optimized(source, target)
    assert len(report.fused) == 3


@pytest.mark.parametrize("target", TARGETS)
def test_two_reshapes_of_one_tensor_are_one_row(target: Target) -> None:
    body = "x1 = Reshape(x, shape)\n x2 = Reshape(x, shape)\n"
    body += norm("x1", "y").replace("Div(x1", "Div(x2")
    source = model(
        body,
        inputs="float[2,3,8] x",
        outputs="float[6,8] y",
        constants=f"{WEIGHT}, {CONSTANTS}, int64[2] shape = {{6, 8}}",
    )
    report, _ = optimized(source, target)
    (site,) = report.fused
    assert site.spelling == "Pow ReduceMean Add Sqrt Div Mul"
