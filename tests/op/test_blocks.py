"""MXFP8: the reference against the definition in whole numbers, the function body against it."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

from rmsnorm_export.op.blocks import reference_blocks
from rmsnorm_export.op.spec import Quantize
from tests.op.test_codes import body_model

HOW: tuple[Quantize, ...] = ("mxfp8", "mxfp8_floor")


def block_of(number: float) -> np.ndarray:
    """A block whose greatest magnitude is ``number``, at some place."""
    block = np.linspace(-0.9, 0.9, 32, dtype=np.float32) * np.float32(number)
    block[int(abs(number)) % 32 if number < 1e6 else 7] = -number
    return block


def at_the_ends() -> np.ndarray:
    """Blocks where one scale ends and the next begins, below the least one, and of all sizes."""
    powers = [np.ldexp(np.float32(m), e) for m in (1.0, 1.75) for e in range(-149, 128)]
    near = [np.nextafter(p, np.float32(to)) for p in powers for to in (0, np.inf)]
    most = np.finfo(np.float32).max
    blocks = [block_of(m) for m in (*powers, *near, 0.0, most) if np.isfinite(m)]
    rng = np.random.default_rng(5)
    size = np.float32(10.0) ** rng.integers(-44, 38, (500, 1)).astype(np.float32)
    return np.concatenate([blocks, rng.uniform(-1, 1, (500, 32)).astype(np.float32) * size])


@pytest.mark.parametrize("how", HOW)
def test_the_reference_is_the_definition(how: Quantize) -> None:
    y = at_the_ends()[::5]
    codes, scales = reference_blocks(y, how)
    numbers = codes.astype(np.float32)
    for block, row, stored in zip(y, numbers, scales[:, 0], strict=True):
        greatest, code = Fraction(float(np.abs(block).max())), int(stored)
        scale = Fraction(2) ** (code - 127)
        if how == "mxfp8":
            assert greatest <= 448 * scale
            assert code == 0 or greatest > 448 * scale / 2
        else:
            assert greatest < 512 * scale
            assert code == 0 or greatest >= 256 * scale
        exact = np.array([float(Fraction(float(v)) / scale) for v in block])
        nearest = np.clip(exact, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
        assert np.array_equal(row, nearest.astype(np.float32))


@pytest.mark.parametrize("opset", [19, 23])
@pytest.mark.parametrize("how", HOW)
def test_the_body_is_the_reference(how: Quantize, opset: int) -> None:
    session = onnxruntime.InferenceSession(body_model(how, opset))
    blocks = at_the_ends()
    blocks = np.concatenate([blocks, blocks[:8]])
    blocks[-8:, 20] = [np.nan, np.inf, -np.inf, *[np.nan] * 5]
    rows = len(blocks) // 2
    tail = blocks[: 2 * rows].reshape(rows, 64)
    # The rest of the first block is 0, so that its own scale is that of the 1.
    first = np.pad(np.ones((rows, 1), np.float32), ((0, 0), (0, 31)))
    for x in (
        np.concatenate([first, tail], axis=-1),
        np.concatenate([first, tail], axis=-1)[: 2 * (rows // 2)].reshape(2, -1, 96),
        np.zeros((3, 0, 64), np.float32),
    ):
        codes, scales = reference_blocks(x, how)
        numbers, stored = session.run(None, {"x": x})
        assert np.array_equal(stored, scales)
        assert np.array_equal(numbers, codes.astype(np.float32), equal_nan=True)
