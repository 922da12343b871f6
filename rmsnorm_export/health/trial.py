"""The rows that a norm survives: its nodes are evaluated, every result rounded to its type.

On rows of every magnitude: all elements alike, for which sums are largest, and one element among
zeros, for which the normalised row is. A row is survived where the norm is within a quarter of what
float64 makes of it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import Error
from rmsnorm_export.graph.retype import retype
from rmsnorm_export.health.result import BRAIN, KEEP
from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.proof.bounds import smallest
from rmsnorm_export.proof.evaluate import run_float64, run_numpy
from rmsnorm_export.proof.feeds import limits

_HALVINGS = 10
"""Of the distance, in powers, between a row that is survived and one that is not."""

Edges = dict[float, tuple[float, float]]
"""The limits of the norm before, by the end that is not survived: layers are alike."""


class Trial:
    """One norm, cut out, ready to be tried on rows.

    Attributes:
        original: its nodes, with an output ``y0``, ``y1`` ... for each of ``values``.
        values: of the model, that are computed in float types.
        output: that of them which is the norm.
        dtype: element type of the norm.
        shape: of x.
        axes: of it, over which a row goes.
        assumed: operands that are not in the file, taken for 1.
        centred: the mean is subtracted, so that rows of equal elements are rows of zeros.
    """

    original: ir.Model
    values: Sequence[ir.Value]
    output: ir.Value
    dtype: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    assumed: tuple[str, ...] = ()
    centred = False

    @property
    def _end(self) -> str:
        return f"y{self.values.index(self.output)}"

    def feeds(self, rows: Array) -> dict[str, Array]:
        """Return the inputs of the norm for rows, by name."""
        raise NotImplementedError

    def fault(self, size: float) -> tuple[ir.Value, bool] | None:
        """Return the value at which a row fails, and whether its norm fits; None: it survives."""
        for typed, expected in self._failures(self.original, self._end, size):
            odd = (v for i, v in enumerate(self.values) if not np.isfinite(typed[f"y{i}"]).all())
            fits = bool(np.abs(expected).max() <= limits(self.dtype)[0])
            return next(odd, self.output), fits
        return None

    def _rows(self, size: float) -> Iterator[Array]:
        single, alike = np.zeros(self.shape), np.full(self.shape, size)
        first = [slice(None)] * len(self.shape)
        for axis in self.axes:
            first[axis] = slice(1)
        single[tuple(first)] = max(size, 1.0)  # a row of one small element is as good as of zeros
        yield alike * np.resize([1.0, -1.0], self.shape) if self.centred else alike
        yield single

    def _failures(
        self, model: ir.Model, end: str, size: float
    ) -> Iterator[tuple[dict[str, Array], Array]]:
        """Yield what a model makes of rows that it does not survive, and what float64 does.

        Args:
            model: the original, or another model of its inputs.
            end: its output that is the norm.
            size: the magnitude of the rows.
        """
        for row in self._rows(size):
            arrays, feeds = self.feeds(row), {}
            for value in model.graph.inputs:
                port = value.name or ""
                feeds[port] = arrays[port].astype(numpy_dtype(value.dtype or self.dtype))
            typed = {k: v.astype(np.float64) for k, v in run_numpy(model, feeds).items()}
            expected = run_float64(self.original, feeds).outputs[self._end]
            if not np.isfinite(expected).all():  # as of zeros without an epsilon
                expected = np.zeros_like(expected)
            with np.errstate(all="ignore"):
                off = np.abs(typed[end] - expected) - 4 * smallest(self.dtype)
                if not (off <= np.abs(expected) / 4).all():
                    yield typed, expected

    def cure(self, cures: Sequence[str], sizes: Sequence[float]) -> str:
        """Return the first cure with which rows of these magnitudes are survived, or ""."""
        for name in cures:
            with contextlib.suppress(Error):
                model, end = self.cured(name)
                failures = (f for size in sizes for f in self._failures(model, end, size))
                if next(failures, None) is None:
                    return name
        return ""

    def cured(self, cure: str) -> tuple[ir.Model, str]:
        """Return the norm after a cure, and which of the outputs it is.

        Raises:
            Error: it cannot be made so.
        """
        types = {KEEP: ir.DataType.FLOAT, BRAIN: ir.DataType.BFLOAT16}
        model = self.original.clone()
        retype(model, {ir.DataType.FLOAT16: types[cure]})
        return model, self._end

    def edge(self, end: float, edges: Edges) -> tuple[float, float]:
        """Return the last magnitude on the way to the end that is survived, and one beyond it."""
        good, bad = edges.get(end, (end, end))
        if self.fault(good) is not None or self.fault(bad) is None:
            good, bad = 1.0, end
            for _ in range(_HALVINGS):
                middle = math.sqrt(good) * math.sqrt(bad)
                good, bad = (middle, bad) if self.fault(middle) is None else (good, middle)
            edges[end] = good, bad
        return good, bad
