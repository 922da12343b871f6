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

import numpy as np

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.dtypes import Array, Float64Array, element_type, numpy_dtype, round_to
from rmsnorm_export.op.operands import (
    check_operands,
    check_tables,
    row_shape,
    without_axes_behind,
    without_leading_ones,
)
from rmsnorm_export.op.spec import DOUBLE, FLOAT, NormSpec

Result = Array | tuple[Array, Array]


@dataclasses.dataclass(frozen=True, slots=True)
class _Rounding:
    """What happens after a primitive: in the types S of the row, T of X, C of the tables; and the
    mean."""

    stash: Callable[[Float64Array], Float64Array]
    out: Callable[[Float64Array], Float64Array]
    table: Callable[[Float64Array], Float64Array]
    mean: Callable[[Float64Array], Float64Array]


@dataclasses.dataclass(frozen=True, slots=True)
class _Operands:
    """Inputs as float64, checked; ``scale`` and ``bias`` in the shape of the normalised axes."""

    x: Float64Array
    scale: Float64Array | None
    bias: Float64Array | None
    residual: Float64Array | None
    gate: Float64Array | None
    cos: Float64Array | None
    sin: Float64Array | None


def reference_float64(
    spec: NormSpec,
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    residual: Array | None = None,
    gate: Array | None = None,
    cos: Array | None = None,
    sin: Array | None = None,
) -> Result:
    """The formula in float64, inputs taken as they are stored, nothing rounded on the way.

    Args:
        spec: the norm.
        x: ``[..., n]``, float16, bfloat16, float32 or float64 (``n``: the axes from ``spec.axis``).
        scale: ``n`` elements in the shape of the normalised axes, leading dimensions of 1 allowed.
        bias: as ``scale``.
        residual: shape of ``x``; needed by ``SkipRMSNorm``, and only by it.
        gate: shape of ``x``; needed by ``GatedRMSNorm``, and only by it.
        cos, sin: ``[..., w]``, w the elements that are turned or half of them, of the type of ``x``
            or float32 for a half one; needed by ``RotaryRMSNorm``, and only by it.

    Returns:
        ``y``, float64, shape of ``x``; for ``SkipRMSNorm`` the pair ``(y, x + residual)``.

    Raises:
        UsageError: operands that do not fit the spec or one another.
    """
    operands = _operands(spec, x, scale, bias, residual, gate, cos, sin)
    y, total = _evaluate(spec.trailing(), operands, _Rounding(_keep, _keep, _keep, _mean))
    return _in_place(spec, (y, total) if spec.kind == "SkipRMSNorm" else y)


def reference_exact(
    spec: NormSpec,
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    residual: Array | None = None,
    gate: Array | None = None,
    cos: Array | None = None,
    sin: Array | None = None,
) -> Result:
    """The formula with every rounding step that the spec declares: an oracle for runtimes.

    Arguments and errors as ``reference_float64``. ``scale`` and ``bias`` of another float type are
    cast to the type in which the product is computed. ``epsilon`` and ``scale_offset`` are float32
    attributes, so they pass through float32 unless they are used in float64.

    Returns:
        ``y`` of the type and shape of ``x``; for ``SkipRMSNorm`` the pair ``(y, sum)``.
    """
    operands = _operands(spec, x, scale, bias, residual, gate, cos, sin)
    dtype = element_type(x.dtype)
    table = dtype if cos is None else element_type(cos.dtype)
    given, spec = spec, spec.canonical(dtype).trailing()
    rounding = _Rounding(
        stash=lambda values: round_to(values, spec.stash_type),
        out=lambda values: round_to(values, dtype),
        table=lambda values: round_to(values, table),
        mean=_accurate_mean if spec.stash_type == DOUBLE else _mean,
    )
    product_type = spec.stash_type if spec.scale_before_cast else dtype
    spec = dataclasses.replace(
        spec,
        epsilon=_as_attribute(spec.epsilon, spec.stash_type),
        scale_offset=_as_attribute(spec.scale_offset, product_type),
    )
    y, total = _evaluate(spec, operands, rounding)
    stored = y.astype(numpy_dtype(dtype))
    if spec.kind == "SkipRMSNorm":
        return _in_place(given, (stored, total.astype(numpy_dtype(dtype))))
    return _in_place(given, stored)


def _evaluate(
    spec: NormSpec, operands: _Operands, rounding: _Rounding
) -> tuple[Float64Array, Float64Array]:
    """The output and the normalised input (the residual sum where there is one)."""
    with np.errstate(all="ignore"):
        total = operands.x
        if operands.residual is not None:
            total = rounding.out(total + operands.residual)
        if total.size == 0:
            return total.copy(), total
        row = rounding.stash(total)
        numerator = total
        activation = None
        if operands.gate is not None:
            activation = activated(spec, rounding.stash(operands.gate), rounding.stash)
            if spec.gate_first:
                row = rounding.stash(row * activation)
                numerator = rounding.out(row)
        y = _normalise(spec, row, numerator, rounding, operands)
        y = _scale(spec, y, operands, rounding)
        if activation is not None and not spec.gate_first:
            y = rounding.stash(rounding.stash(y) * activation)
        y = rounding.out(y)
        if operands.cos is not None and operands.sin is not None:
            y = _turned(spec, y, operands.cos, operands.sin, rounding)
        return y, total


def _turned(
    spec: NormSpec, y: Float64Array, cos: Float64Array, sin: Float64Array, rounding: _Rounding
) -> Float64Array:
    """The norm with its rotary embedding."""
    size = spec.rotary_dim or y.shape[-1]
    pairs = (size // 2, 2) if spec.rotary_interleaved else (2, size // 2)
    axis = -1 if spec.rotary_interleaved else -2
    part = y[..., :size]
    first, second = np.moveaxis(part.reshape(*y.shape[:-1], *pairs), axis, 0)
    rotated = np.stack([-second, first], axis).reshape(part.shape)
    if cos.shape[-1] != size:
        cos, sin = (
            np.stack([table, table], axis).reshape(*table.shape[:-1], size) for table in (cos, sin)
        )
    turned = rounding.table(rounding.table(part * cos) + rounding.table(rotated * sin))
    return np.concatenate([rounding.out(turned), y[..., size:]], axis=-1)


def _normalise(
    spec: NormSpec,
    row: Float64Array,
    numerator: Float64Array,
    rounding: _Rounding,
    operands: _Operands,
) -> Float64Array:
    """``v`` of the formula; ``numerator`` is what ``1 / rms`` multiplies when it is rounded.

    With an ``association`` the scale is in it already.
    """
    lead = row.shape[: spec.axis]
    n = math.prod(row.shape[spec.axis :])
    size = spec.group_size or n
    rows = row.reshape(*lead, n // size, size)
    squares = rounding.stash(np.square(rows[..., : spec.partial_size or size]))
    mean = rounding.stash(rounding.mean(squares))
    epsilon = rounding.stash(np.float64(spec.epsilon))
    if spec.epsilon_outside:
        rms = rounding.stash(rounding.stash(np.sqrt(mean)) + epsilon)
    elif spec.epsilon_clamp:
        rms = np.maximum(rounding.stash(np.sqrt(mean)), epsilon)
    else:
        rms = rounding.stash(np.sqrt(rounding.stash(mean + epsilon)))
    factor = _factor(spec, operands, rounding.out) if spec.association else None
    if factor is not None:
        # One group only: the scale of the whole row fits the rows as they are cut here.
        factor = np.broadcast_to(factor, row.shape[spec.axis :]).reshape(1, size)
    if factor is not None and spec.association == 2:
        rows = rounding.out(rows * factor)
        numerator = rows
    if spec.round_rstd:
        reciprocal = rounding.out(rounding.stash(1.0 / rms))
        if factor is not None and spec.association == 1:
            reciprocal = rounding.out(reciprocal * factor)
        v = rounding.out(numerator.reshape(rows.shape) * reciprocal)
    else:
        v = rounding.stash(rows / rms)
    return v.reshape(row.shape)


def _scale(
    spec: NormSpec, v: Float64Array, operands: _Operands, rounding: _Rounding
) -> Float64Array:
    """Scale and bias, in the stash type or in T."""
    product = rounding.stash if spec.scale_before_cast else rounding.out
    y = product(v)
    factor = None if spec.association else _factor(spec, operands, product)
    if factor is not None:
        y = product(y * factor)
    if operands.bias is not None:
        y = product(y + product(operands.bias))
    return y


def _factor(
    spec: NormSpec, operands: _Operands, product: Callable[[Float64Array], Float64Array]
) -> Float64Array | None:
    """``scale_offset + scale`` in the type of the product."""
    if operands.scale is None:
        return None
    factor = product(operands.scale)
    if spec.scale_offset:
        factor = product(product(np.asarray(np.float64(spec.scale_offset))) + factor)
    return factor


def activated(
    spec: NormSpec, gate: Float64Array, stash: Callable[[Float64Array], Float64Array] | None = None
) -> Float64Array:
    """``sigmoid(z)`` or ``silu(z) = z * sigmoid(z)``, each step rounded by ``stash``."""
    stash = stash or _keep
    sigmoid = stash(1.0 / (1.0 + np.exp(-gate)))
    return sigmoid if spec.activation == "sigmoid" else stash(gate * sigmoid)


def _keep(values: Float64Array) -> Float64Array:
    return values


def _mean(values: Float64Array) -> Float64Array:
    # Pairwise in float64: relative error about log2(n) * 2**-53, far below half an ulp of float32.
    return np.asarray(values.mean(axis=-1, keepdims=True))


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


def _operands(
    spec: NormSpec,
    x: Array,
    scale: Array | None,
    bias: Array | None,
    residual: Array | None,
    gate: Array | None,
    cos: Array | None,
    sin: Array | None,
) -> _Operands:
    """Check the operands against the spec and one another, and widen them to float64."""
    dtype = element_type(x.dtype)
    check_operands(spec, x.shape, scale=scale, residual=residual, gate=gate, cos=cos, sin=sin)
    if cos is not None and sin is not None:
        tables = [(element_type(table.dtype), table.shape) for table in (cos, sin)]
        check_tables(spec, x.shape, dtype, tables)
    like_x = (x.astype(np.float64), _like_x(x, residual, "residual"), _like_x(x, gate, "gate"))
    rows, residuals, gates = (
        None if value is None else np.moveaxis(value, spec.last_axis, -1) for value in like_x
    )
    assert rows is not None
    return _Operands(
        x=rows,
        scale=_per_element(spec, x, scale, "scale"),
        bias=_per_element(spec, x, bias, "bias"),
        residual=residuals,
        gate=gates,
        cos=None if cos is None else cos.astype(np.float64),
        sin=None if sin is None else sin.astype(np.float64),
    )


def _in_place(spec: NormSpec, result: Result) -> Result:
    """Results for rows on the last axis, moved to where the rows are."""
    if isinstance(result, tuple):
        return np.moveaxis(result[0], -1, spec.last_axis), np.moveaxis(
            result[1], -1, spec.last_axis
        )
    return np.moveaxis(result, -1, spec.last_axis)


def _per_element(spec: NormSpec, x: Array, value: Array | None, name: str) -> Float64Array | None:
    if value is None:
        return None
    element_type(value.dtype)
    shape = row_shape(spec, x.shape)
    given = without_axes_behind(spec, value.shape)
    if without_leading_ones(given) != without_leading_ones(shape):
        raise UsageError(
            f"{name} does not have the shape of the normalised axes.",
            found=f"{name} {value.shape}, normalised axes {shape}",
            fix=f"give {name} one element per element of the row",
        )
    return value.astype(np.float64).reshape(shape)


def _like_x(x: Array, value: Array | None, name: str) -> Float64Array | None:
    if value is None:
        return None
    if value.shape != x.shape or value.dtype != x.dtype:
        raise UsageError(
            f"{name} must have the shape and type of x.",
            found=f"{name} {value.dtype} {value.shape}, x {x.dtype} {x.shape}",
            fix=f"broadcast and cast {name} first",
        )
    return value.astype(np.float64)
