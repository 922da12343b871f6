"""A matrix of weights in blocks of 4 or 8 bits, as MatMulNBits and GatherBlockQuantized read it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rmsnorm_export.op.dtypes import Array

BLOCK = 32
"""Weights that share a scale: as in GGUF, and in onnxruntime-genai's builder."""
_WIDE_BLOCK = 64
"""The same of 8 bits: a scale of 32 bits for 32 of them would be an eighth of the file."""
_ON_GRID = 1 / 64
"""Distance from a grid, in steps of it, that the rounding of a half type makes."""
_SAMPLE = 8
"""Rows that are looked at first."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The rows of a matrix, in blocks: a weight is ``(code - zero) * scale + offset``.

    Attributes:
        codes: [rows, blocks, bytes of a block], uint8; of two codes in a byte the first is low.
        scales: [rows, blocks], in the type of the matrix.
        bits: of a code.
        zeros: [rows, blocks], uint8; None: ``2**(bits - 1)`` everywhere.
        offsets: [rows, blocks]; None: none.
    """

    codes: Array
    scales: Array
    bits: int
    zeros: Array | None = None
    offsets: Array | None = None

    @property
    def size(self) -> int:
        """Return how many weights a block has."""
        return int(self.codes.shape[2]) * 8 // self.bits

    def values(self) -> Array:
        """Return the weights, [rows, blocks, size]."""
        codes = self.codes
        if self.bits == 4:
            codes = np.stack((codes & 15, codes >> 4), -1).reshape(*codes.shape[:2], -1)
        zeros = 2 ** (self.bits - 1) if self.zeros is None else self.zeros[..., None]
        values: Array = (codes.astype(self.scales.dtype) - zeros) * self.scales[..., None]
        return values if self.offsets is None else values + self.offsets[..., None]


def in_blocks(matrix: Array, bits: int, *, offsets: bool) -> Blocks:
    """Return a matrix in blocks along its rows.

    Weights that are such blocks already keep their values: they lie on a grid of 16 or 255 steps in
    each block, as those that were read from a GGUF do. Others are rounded by ONNX Runtime's
    quantizer, symmetrically: a zero point takes room, and what was measured with it is no better.

    Args:
        matrix: [rows, columns], float32 or float16.
        bits: 4 or 8.
        offsets: a grid of 4 bits may begin anywhere (Q4_1, and the K-quants of 4 bits).
    """
    whole, sample = matrix.shape[1] % BLOCK == 0, matrix[:: -(-len(matrix) // _SAMPLE)]
    if bits == 8:
        if whole and _is_exact(_of_255_steps(sample), sample):
            return _of_255_steps(matrix)
        return _rounded(matrix, 8, BLOCK if matrix.shape[1] % _WIDE_BLOCK else _WIDE_BLOCK)
    lost = whole and offsets and not _is_exact(_rounded(sample, 4, BLOCK), sample)
    kept = lost and _is_exact(_of_16_steps(sample), sample)
    return _of_16_steps(matrix) if kept else _rounded(matrix, 4, BLOCK)


def _rounded(matrix: Array, bits: int, size: int) -> Blocks:
    from onnxruntime.quantization import matmul_nbits_quantizer as quantizer

    how: dict[str, Any] = {"block_size": size, "is_symmetric": True, "bits": bits}
    rounding = quantizer.DefaultWeightOnlyQuantizer(quantizer.DefaultWeightOnlyQuantConfig(**how))
    codes, scales, _ = rounding.qbits_block_quant(np.ascontiguousarray(matrix.T))
    return Blocks(codes, scales.reshape(codes.shape[:2]), bits)  # flat in 1.23


def _of_255_steps(matrix: Array) -> Blocks:
    """Return blocks of which the largest element is 127 steps (Q8_0)."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    scales = _as_half(np.abs(blocks).max(-1) / np.float32(127)).astype(matrix.dtype)
    codes = np.rint(blocks / np.where(scales == 0, 1, scales)[..., None]) + 128
    return Blocks(codes.astype(np.uint8), scales, 8)


def _of_16_steps(matrix: Array) -> Blocks:
    """Return blocks whose weights are at most 15 steps above the least of them."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    least = blocks.min(-1, keepdims=True)
    above = blocks - least
    most = above.max(-1, keepdims=True)
    steps = np.where(most == 0, 1, _as_half(most / 15))
    fits = _on_grid(above / steps)
    for count in range(14, 1, -1):  # a K-quant need not use all of its codes
        if fits.all():
            break
        fewer = np.where(most == 0, 1, _as_half(most / count))
        better = ~fits & _on_grid(above / fewer)
        steps, fits = np.where(better, fewer, steps), fits | better
    codes = np.clip(np.rint(above / steps), 0, 15).astype(np.uint8)
    packed = codes[..., ::2] | codes[..., 1::2] << 4
    zeros = np.clip(np.rint(-least / steps), 0, 15)
    offsets = least + zeros * steps
    return Blocks(packed, steps[..., 0], 4, zeros[..., 0].astype(np.uint8), offsets[..., 0])


def _on_grid(steps: Array) -> Array:
    """Return which blocks lie on the grid."""
    fits: Array = (np.abs(steps - np.rint(steps)) < _ON_GRID).all(-1, keepdims=True)
    return fits


def _as_half(steps: Array) -> Array:
    """Return float32 steps in the float16 that GGUF stores, where they are so but for rounding."""
    half = steps.astype(np.float16).astype(steps.dtype)
    return np.where(np.abs(half - steps) <= 1e-5 * np.abs(steps), half, steps)


def _is_exact(blocks: Blocks, matrix: Array) -> bool:
    """Return whether blocks hold a matrix, but for the rounding of its type."""
    values = blocks.values()
    off = np.abs(values - matrix.reshape(values.shape))
    return bool((off <= _ON_GRID * np.abs(blocks.scales)[..., None]).all())
