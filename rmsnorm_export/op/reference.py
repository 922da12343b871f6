"""Two NumPy references of the operator: the plain formula, and every rounding step of the spec.

Both evaluate the formula in ``spec.py`` with the same code; they differ in what happens after each
primitive (nothing, or one rounding to the type in which the spec declares the step). The primitives
are square, mean, add, square root, divide, multiply, sigmoid and cast. The mean is one primitive:
its sum is not rounded on the way, so a runtime that accumulates in a half type differs from it.

Rounding float64 results once to a type of at most 24 bits is exact: 53 >= 2 * 24 + 2 makes the
double rounding innocuous for +, *, / and the square root (Figueroa 1995).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

from rmsnorm_export.op.dtypes import Array, Float64Array, element_type, numpy_dtype, round_to
from rmsnorm_export.op.operands import check_operands, row_shape
from rmsnorm_export.op.spec import DOUBLE, FLOAT, NormSpec

Result = Array | tuple[Array, Array]
_Step = Callable[[Float64Array], Float64Array]


def reference_float64(
    spec: NormSpec,
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    **more: Array | None,
) -> Result:
    """Evaluate the formula in float64, inputs taken as they are stored, nothing rounded on the way.

    Args:
        spec: the norm.
        x: ``[..., n]``, float16, bfloat16, float32 or float64 (``n``: the axes from ``spec.axis``).
        scale: ``n`` elements in the shape of the normalised axes, leading dimensions of 1 allowed.
        bias: as ``scale``.
        **more: what else the operator takes: ``residual`` or ``gate`` of the shape of ``x``, or
            ``cos`` and ``sin``, ``[..., w]``, w the elements that are rotated or half of them, of
            the type of ``x`` or float32 for a half one.

    Returns:
        ``y``, float64, shape of ``x``; for ``SkipRMSNorm`` the pair ``(y, x + residual)``.

    Raises:
        UsageError: operands that do not fit the spec or one another.
    """
    operands = _widened(spec, {"x": x, "scale": scale, "bias": bias, **more})
    return _Formula(spec, operands).evaluate()


def reference_exact(
    spec: NormSpec,
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    **more: Array | None,
) -> Result:
    """Evaluate the formula with every rounding step that the spec declares: an oracle for runtimes.

    Arguments and errors as ``reference_float64``. ``scale`` and ``bias`` of another float type are
    cast to the type in which the product is computed. ``epsilon`` and ``scale_offset`` are float32
    attributes, so they pass through float32 unless they are used in float64.

    Returns:
        ``y`` of the type and shape of ``x``; for ``SkipRMSNorm`` the pair ``(y, sum)``.
    """
    operands = _widened(spec, {"x": x, "scale": scale, "bias": bias, **more})
    dtype, cos = element_type(x.dtype), more.get("cos")
    table = dtype if cos is None else element_type(cos.dtype)
    exact = spec.canonical(dtype)
    stash = exact.stash_type
    stored = dataclasses.replace(
        exact,
        epsilon=_as_attribute(exact.epsilon, stash),
        scale_offset=_as_attribute(exact.scale_offset, exact.scale_type(dtype)),
    )
    return _Formula(
        stored,
        operands,
        stash=lambda values: round_to(values, stash),
        out=lambda values: round_to(values, dtype),
        table=lambda values: round_to(values, table),
        mean=_accurate_mean if stash == DOUBLE else _mean,
        result=dtype,
    ).evaluate()


def activated(spec: NormSpec, gate: Float64Array, stash: _Step | None = None) -> Float64Array:
    """Return ``sigmoid(z)`` or ``silu(z) = z * sigmoid(z)``, each step rounded by ``stash``."""
    stash = stash or _keep
    sigmoid = stash(1.0 / (1.0 + np.exp(-gate)))
    return sigmoid if spec.activation == "sigmoid" else stash(gate * sigmoid)


def _keep(values: Float64Array) -> Float64Array:
    return values


def _mean(values: Float64Array) -> Float64Array:
    # Pairwise in float64: relative error about log2(n) * 2**-53, far below half an ulp of float32.
    return np.asarray(values.mean(axis=-1, keepdims=True))


def mean_square(
    spec: NormSpec, rows: Float64Array, stash: _Step = _keep, mean: _Step = _mean
) -> Float64Array:
    """Return the mean square of each row or group, [..., 1], each step rounded by ``stash``.

    Of a ``unit_length`` it is the sum of squares, not rounded: the length is one operator.
    """
    part = rows[..., : spec.partial_size or None]
    if spec.unit_length:
        return np.asarray(mean(np.square(part)) * part.shape[-1])
    return stash(mean(stash(np.square(part))))


def root(spec: NormSpec, mean: Float64Array, stash: _Step = _keep) -> Float64Array:
    """Return the root of a mean square, with its epsilon, each step rounded by ``stash``."""
    epsilon = stash(np.float64(spec.epsilon))
    if spec.unit_length == 2 and stash is not _keep:
        largest = ml_dtypes.finfo(numpy_dtype(spec.stash_type)).max  # type: ignore[no-untyped-call]
        return np.clip(stash(np.sqrt(mean)), epsilon, np.float64(largest))
    if spec.epsilon_outside:
        return stash(stash(np.sqrt(mean)) + epsilon)
    if spec.epsilon_clamp or spec.unit_length:
        return np.maximum(stash(np.sqrt(mean)), epsilon)
    return stash(np.sqrt(stash(mean + epsilon)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Formula:
    """A norm of operands whose rows are on the last axes, with a rounding after each primitive.

    Attributes:
        stash, out, table: roundings to S of the row, T of X and C of the tables.
        mean: of the last axis.
        result: element type of what is returned.
    """

    spec: NormSpec
    operands: dict[str, Float64Array]
    stash: _Step = _keep
    out: _Step = _keep
    table: _Step = _keep
    mean: _Step = _mean
    result: int = DOUBLE

    def evaluate(self) -> Result:
        """Return the output, and the residual sum of a ``SkipRMSNorm``."""
        total, residual = self.operands["x"], self.operands.get("residual")
        with np.errstate(all="ignore"):
            if residual is not None:
                total = self.out(total + residual)
            y = self._norm(total) if total.size else total
            if residual is None:
                return self._in_place(y)
            return self._in_place(y), self._in_place(total)

    def _in_place(self, value: Float64Array) -> Array:
        return np.moveaxis(value, -1, self.spec.last_axis).astype(numpy_dtype(self.result))

    def _norm(self, total: Float64Array) -> Float64Array:
        spec, gate = self.spec, self.operands.get("gate")
        row, numerator = self.stash(total), total
        activation = None
        if gate is not None:
            activation = activated(spec, self.stash(gate), self.stash)
            if spec.gate_first:
                row = self.stash(row * activation)
                numerator = self.out(row)
        product = self.stash if spec.scale_before_cast else self.out
        factor = self._factor(self.stash if spec.scale_rstd else product)
        y = product(self._normalise(row, numerator, factor))
        if factor is not None and not (spec.association or spec.scale_rstd):
            y = product(y * factor)
        if "bias" in self.operands:
            y = product(y + product(self.operands["bias"]))
        if activation is not None and not spec.gate_first:
            y = self.stash(self.stash(y) * activation)
        y = self.out(y)
        return self._rotated(y) if "cos" in self.operands else y

    def _normalise(
        self, row: Float64Array, numerator: Float64Array, factor: Float64Array | None
    ) -> Float64Array:
        """Return ``v``; ``numerator`` is what ``1 / rms`` multiplies when it is rounded.

        With an ``association`` or ``scale_rstd`` the scale is in it already.
        """
        spec, axis = self.spec, self.spec.trailing().axis
        n = math.prod(row.shape[axis:])
        size = spec.group_size or n
        rows = row.reshape(*row.shape[:axis], n // size, size)
        rms = root(spec, mean_square(spec, rows, self.stash, self.mean), self.stash)
        if factor is not None and (spec.association or spec.scale_rstd):
            # One group only: the scale of the whole row fits the rows as they are cut here.
            factor = np.broadcast_to(factor, row.shape).reshape(rows.shape)
            if spec.association == 2:
                rows = numerator = self.out(rows * factor)
        if not spec.round_rstd:
            return self.stash(rows / rms).reshape(row.shape)
        reciprocal = self.stash(1.0 / rms)
        if factor is not None and spec.scale_rstd:
            reciprocal = self.stash(reciprocal * factor)
        reciprocal = self.out(reciprocal)
        if factor is not None and spec.association == 1:
            reciprocal = self.out(reciprocal * factor)
        return self.out(numerator.reshape(rows.shape) * reciprocal).reshape(row.shape)

    def _factor(self, product: _Step) -> Float64Array | None:
        """Return ``scale_offset + scale`` in the type of the product."""
        if "scale" not in self.operands:
            return None
        factor, offset = product(self.operands["scale"]), self.spec.scale_offset
        return product(product(np.asarray(np.float64(offset))) + factor) if offset else factor

    def _rotated(self, y: Float64Array) -> Float64Array:
        """Return the norm with its rotary embedding."""
        size = self.spec.rotary_dim or y.shape[-1]
        pairs = (size // 2, 2) if self.spec.rotary_interleaved else (2, size // 2)
        axis = -1 if self.spec.rotary_interleaved else -2
        part = y[..., :size]
        first, second = np.moveaxis(part.reshape(*y.shape[:-1], *pairs), axis, 0)
        rotated = np.stack([-second, first], axis).reshape(part.shape)
        cos, sin = self.operands["cos"], self.operands["sin"]
        if cos.shape[-1] != size:
            cos, sin = (
                np.stack([table, table], axis).reshape(*table.shape[:-1], size)
                for table in (cos, sin)
            )
        turned = self.table(self.table(part * cos) + self.table(rotated * sin))
        return np.concatenate([self.out(turned), y[..., size:]], axis=-1)


def _accurate_mean(values: Float64Array) -> Float64Array:
    """The mean from a correctly rounded float64 sum of each row."""
    rows = values.reshape(-1, values.shape[-1])
    sums = rows.sum(axis=-1)
    for index in np.flatnonzero(np.isfinite(sums)):
        try:
            sums[index] = math.fsum(rows[index].tolist())
        except OverflowError:  # within rounding of the largest float64: the plain sum stands
            continue
    return np.asarray(sums / values.shape[-1]).reshape(*values.shape[:-1], 1)


def _as_attribute(value: float, used_in: int) -> float:
    """The value of a float32 attribute when it is used in the type ``used_in``."""
    return value if used_in == DOUBLE else float(round_to(value, FLOAT))


def _widened(spec: NormSpec, operands: dict[str, Array | None]) -> dict[str, Float64Array]:
    """The operands that there are, checked, as float64, with their rows on the last axes."""
    present = {name: value for name, value in operands.items() if value is not None}
    check_operands(spec, {name: (element_type(v.dtype), v.shape) for name, v in present.items()})
    wide = {name: value.astype(np.float64) for name, value in present.items()}
    for name, value in wide.items():
        if name == "bias" or (name == "scale" and not spec.scale_varies):
            wide[name] = value.reshape(row_shape(spec, present["x"].shape))
        elif name in ("x", "residual", "gate"):
            wide[name] = np.moveaxis(value, spec.last_axis, -1)
    return wide
