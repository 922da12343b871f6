"""The length of a row follows from how its shape was computed, with the gain in the new node."""

from __future__ import annotations

import numpy as np
import pytest

from tests.recognize import text_models as text

BEGIN = "sh = Shape(a)\n b = Slice(sh, zero, one)\n s = Slice(sh, one, two_i)\n "

WAYS = {
    "unflatten": "m = Mod(five, three)\n m1 = Add(m, one)\n h = Slice(sh, zero, m)\n "
    "t = Slice(sh, m1, far)\n to = Concat<axis = 0>(h, heads, t)\n x = Reshape(a, to)",
    "one-hot tile": "u = Slice(a, zero, eight, two_i)\n v = Unsqueeze(u, two_i)\n "
    "w4 = OneHot<axis = -1>(two_i, depth, off_on)\n w5 = Reshape(w4, minus)\n x = Tile(v, w5)",
    "channels": "c = Reshape(a, nchw)\n "
    "d = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(c, k)\n "
    "x = Transpose<perm = [0, 2, 3, 1]>(d)",
    # What TorchScript makes of torch.nn.functional.pad(x, (0, -8)).
    "padded": "to = Concat<axis = 0>(last_axis, none)\n t = Reshape(to, pairs)\n "
    "r = Slice(t, minus, first, zero, minus)\n u = Transpose<perm = [1, 0]>(r)\n "
    "v = Reshape(u, minus)\n p = Cast<to = 7>(v)\n x = Pad(a, p)",
    "symbols of a shape": "to = Concat<axis = 0>(b, s, two_i, minus)\n r = Reshape(a, to)\n "
    "p = Transpose<perm = [0, 2, 1, 3]>(r)\n ps = Shape(p)\n q0 = Slice(ps, zero, three)\n "
    "back = Concat<axis = 0>(q0, minus)\n q = Relu(p)\n x = Reshape(q, back)",
    "unknown rank": "z = Squeeze(a)\n zs = Shape(z)\n h = Gather(zs, leading)\n "
    "to = Concat<axis = 0>(h, two_i, eight)\n x = Reshape(z, to)",
}
CONSTANTS = (
    f"{text.WEIGHT}, {text.CONSTANTS}, int64[1] zero = {{0}}, int64[1] one = {{1}}, "
    "int64[1] two_i = {2}, int64[1] three = {3}, int64[1] five = {5}, int64[1] eight = {8}, "
    "int64[1] minus = {-1}, int64[1] far = {9223372036854775807}, "
    "int64[1] first = {-9223372036854775807}, int64 depth = {4}, int64[2] heads = {2, -1}, "
    "int64[2] leading = {0, 1}, int64[2] off_on = {1, 2}, int64[2] pairs = {-1, 2}, "
    "int64[2] last_axis = {0, -8}, int64[4] none = {0, 0, 0, 0}, int64[4] nchw = {0, 4, 2, -1}"
)


@pytest.mark.parametrize("target", text.TARGETS)
@pytest.mark.parametrize("way", WAYS)
def test_row_length_follows(way: str, target: text.Target) -> None:
    kernel = ", ".join(str(0.01 * (i % 7 - 3)) for i in range(8 * 4 * 9))
    source = text.model(
        BEGIN + WAYS[way] + "\n " + text.norm("x", "y", "norm_"),
        inputs="float[?,?,16] a",
        outputs="float[?,?,?] y" if way == "padded" else "float[?,?,?,?] y",
        constants=f"{CONSTANTS}, float[8,4,3,3] k = {{{kernel}}}",
    )
    shape = (3, 4 if way == "channels" else 5, 16)
    arrays = {"a": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    report, proto = text.optimized(source, target, arrays=arrays)
    (site,) = report.fused
    assert site.n == 8
    assert "Mul" not in text.ops(proto)


def test_another_values_sizes_do_not_cancel() -> None:
    """-1 is what is left of a, and nothing says that a and c are alike."""
    source = text.model(
        "sh = Shape(c)\n h = Slice(sh, zero, two_i)\n to = Concat<axis = 0>(h, heads)\n "
        "x = Reshape(a, to)\n " + text.norm("x", "y", "norm_"),
        inputs="float[?,?,16] a, float[?,?,16] c",
        outputs="float[?,?,?,?] y",
        constants=CONSTANTS,
    )
    x = np.random.default_rng(0).standard_normal((2, 4, 16)).astype(np.float32)
    arrays = {"a": x, "c": x.reshape(4, 2, 16)}
    for target in text.TARGETS:
        report, _ = text.optimized(source, target, arrays=arrays)
        assert not [site for site in report.fused if site.n]
