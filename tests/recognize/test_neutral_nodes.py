"""Nodes that keep the numbers and the shape of a value lose no norm, wherever they stand; their
look-alikes are not taken for them."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.recognize.context import FLOATS, widens

from .text_models import CONSTANTS, WEIGHT, model, norm, optimized

_EXTRA = (
    "float one = {1}, float zero = {0}, float ratio = {0.5}, int64[1] all = {-1},"
    "int64[3] back = {0, 0, -1}, int64[3] rank3 = {1, 1, 1}, int64[4] rank4 = {1, 1, 1, 1},"
    "int64[1] last = {-1}, int64[1] zeroth = {0}, int64[1] endless = {9223372036854775807},"
    "int64[1] lowest = {-9223372036854775808}, bool yes = {1}, bool no = {0}"
)

PLACES: dict[str, tuple[str, tuple[str, ...]]] = {
    "row": ("x", ("sq", "n")), "square": ("x", ("sq",)), "numerator": ("x", ("n",)),
    "mean": ("m", ("e",)), "sum": ("e", ("s",)), "root": ("s", ("n",)),
    "normalised": ("n", ("y",)), "y": ("y", ()),
}  # fmt: skip
"""Value of a norm, and its readers that read something else instead."""


def _chain(place: str, nodes: str) -> onnx.ModelProto:
    """Return a norm with nodes at one place."""
    value, readers = PLACES[place]
    inner = nodes.format(x=value, y="v")
    lines = [inner] if value == "x" else []
    for line in filter(str.strip, norm("x", "y").splitlines()):
        name, step = line.strip().split(" = ", 1)
        step = re.sub(rf"\b{value}\b", "v", step) if name in readers else step
        lines += [f"{name} = {step}", *([inner] if name == value else [])]
    shape = "[?,?,?,?]" if "rank4" in nodes else "[B,S,8]"
    return model(
        "\n".join(lines),
        inputs="float[B,S,8] x, float[B,S,8] z, bool[B,S,8] mask, bool mode",
        outputs=f"float{shape} {'v' if place == 'y' else 'y'}",
        constants=f"{WEIGHT}, {CONSTANTS}, {_EXTRA}",
    )


@pytest.mark.parametrize("nodes", ["Dropout({x}, ratio, no)", "Where(yes, {x}, {x})"])
@pytest.mark.parametrize("place", ["square", "mean", "root"])
def test_what_no_exporter_writes_inside_a_norm_is_told(nodes: str, place: str) -> None:
    report, _ = optimized(_chain(place, f"{{y}} = {nodes}"), "portable")
    assert [refusal.reason for refusal in report.refused] == ["spelling-unknown"]


@pytest.mark.parametrize(("place", "fused"), [("square", 1), ("numerator", 0)])
def test_squares_may_be_added_from_the_end(place: str, fused: int) -> None:
    source = _chain(place, "{y} = Slice({x}, endless, lowest, last, last)")
    report = rx.optimize(source, prove=True).report
    assert (len(report.fused), len(report.refused)) == (fused, 1 - fused)


@pytest.mark.parametrize("mode", ["yes", "mode"])
def test_dropout_in_training_or_whose_mode_is_fed_is_not_neutral(mode: str) -> None:
    source = _chain("square", f"{{y}} = Dropout<seed = 3>({{x}}, ratio, {mode})")
    report = rx.optimize(source, numerics="upcast").report
    assert not report.fused
    assert {refusal.reason for refusal in report.refused} == {"different-numerator"}


@pytest.mark.parametrize("to", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_a_type_is_wider_where_it_has_every_number_of_the_other(source, to) -> None:
    """Of half types every number is tried; of wider ones the ends, and the number above 1."""
    own = source.numpy()
    info = ml_dtypes.finfo(own)
    numbers = np.array([info.max, info.tiny, 1 + info.eps], own)
    if source.bitwidth == 16:
        numbers = np.arange(1 << 16, dtype=np.uint16).view(own)
    with np.errstate(all="ignore"):
        back = numbers.astype(to.numpy()).astype(own)
        is_kept = np.array_equal(back.astype(float), numbers.astype(float), equal_nan=True)
    assert widens(source, to) == is_kept
