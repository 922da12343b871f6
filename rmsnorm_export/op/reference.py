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

from rmsnorm_export.op.dtypes import Array, Float64Array, element_type, numpy_dtype, round_to
from rmsnorm_export.op.operands import check_operands, row_shape
from rmsnorm_export.op.spec import DOUBLE, FLOAT, NormSpec

Result = Array | tuple[Array, Array]
_Step = Callable[[Float64Array], Float64Array]
_Operands = dict[str, Float64Array]


@dataclasses.dataclass(frozen=True, slots=True)
class _Rounding:
    """Roundings after a primitive, to S of the row, T of X and C of the tables; and the mean."""

    stash: _Step
    out: _Step
    table: _Step
    mean: _Step


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
            ``cos`` and ``sin``, ``[..., w]``, w the elements that are turned or half of them, of
            the type of ``x`` or float32 for a half one.

    Returns:
        ``y``, float64, shape of ``x``; for ``SkipRMSNorm`` the pair ``(y, x + residual)``.

    Raises:
        UsageError: operands that do not fit the spec or one another.
    """
    operands = _widened(spec, {"x": x, "scale": scale, "bias": bias, **more})
    results = _evaluate(spec.trailing(), operands, _Rounding(_keep, _keep, _keep, _mean))
    return _in_place(spec, results)


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
    exact = spec.canonical(dtype).trailing()
    rounding = _Rounding(
        stash=lambda values: round_to(values, exact.stash_type),
        out=lambda values: round_to(values, dtype),
        table=lambda values: round_to(values, table),
        mean=_accurate_mean if exact.stash_type == DOUBLE else _mean,
    )
    product_type = exact.stash_type if exact.scale_before_cast else dtype
    stored = dataclasses.replace(
        exact,
        epsilon=_as_attribute(exact.epsilon, exact.stash_type),
        scale_offset=_as_attribute(exact.scale_offset, product_type),
    )
    results = _evaluate(stored, operands, rounding)
    return _in_place(spec, [value.astype(numpy_dtype(dtype)) for value in results])


def _evaluate(spec: NormSpec, operands: _Operands, rounding: _Rounding) -> list[Float64Array]:
    """The output, and the residual sum of a ``SkipRMSNorm``; rows are on the last axes."""
    total = operands["x"]
    with np.errstate(all="ignore"):
        if "residual" in operands:
            total = rounding.out(total + operands["residual"])
        y = _norm(spec, total, operands, rounding) if total.size else total.copy()
    return [y, total] if "residual" in operands else [y]


def _norm(
    spec: NormSpec, total: Float64Array, operands: _Operands, rounding: _Rounding
) -> Float64Array:
    row, numerator = rounding.stash(total), total
    activation = None
    if "gate" in operands:
        activation = activated(spec, rounding.stash(operands["gate"]), rounding.stash)
        if spec.gate_first:
            row = rounding.stash(row * activation)
            numerator = rounding.out(row)
    product = rounding.stash if spec.scale_before_cast else rounding.out
    factor = _factor(spec, operands, product)
    y = product(_normalise(spec, row, numerator, rounding, factor))
    if factor is not None and not spec.association:
        y = product(y * factor)
    if "bias" in operands:
        y = product(y + product(operands["bias"]))
    if activation is not None and not spec.gate_first:
        y = rounding.stash(rounding.stash(y) * activation)
    y = rounding.out(y)
    return _turned(spec, y, operands, rounding) if "cos" in operands else y


def _normalise(
    spec: NormSpec,
    row: Float64Array,
    numerator: Float64Array,
    rounding: _Rounding,
    factor: Float64Array | None,
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
    if factor is not None and spec.association:
        # One group only: the scale of the whole row fits the rows as they are cut here.
        factor = np.broadcast_to(factor, row.shape[spec.axis :]).reshape(1, size)
        if spec.association == 2:
            rows = numerator = rounding.out(rows * factor)
    if not spec.round_rstd:
        return rounding.stash(rows / rms).reshape(row.shape)
    reciprocal = rounding.out(rounding.stash(1.0 / rms))
    if factor is not None and spec.association == 1:
        reciprocal = rounding.out(reciprocal * factor)
    return rounding.out(numerator.reshape(rows.shape) * reciprocal).reshape(row.shape)


def _factor(spec: NormSpec, operands: _Operands, product: _Step) -> Float64Array | None:
    """``scale_offset + scale`` in the type of the product."""
    if "scale" not in operands:
        return None
    factor = product(operands["scale"])
    if spec.scale_offset:
        factor = product(product(np.asarray(np.float64(spec.scale_offset))) + factor)
    return factor


def _turned(
    spec: NormSpec, y: Float64Array, operands: _Operands, rounding: _Rounding
) -> Float64Array:
    """The norm with its rotary embedding."""
    size = spec.rotary_dim or y.shape[-1]
    pairs = (size // 2, 2) if spec.rotary_interleaved else (2, size // 2)
    axis = -1 if spec.rotary_interleaved else -2
    part = y[..., :size]
    first, second = np.moveaxis(part.reshape(*y.shape[:-1], *pairs), axis, 0)
    rotated = np.stack([-second, first], axis).reshape(part.shape)
    cos, sin = (
        table
        if table.shape[-1] == size
        else np.stack([table, table], axis).reshape(*table.shape[:-1], size)
        for table in (operands["cos"], operands["sin"])
    )
    turned = rounding.table(rounding.table(part * cos) + rounding.table(rotated * sin))
    return np.concatenate([rounding.out(turned), y[..., size:]], axis=-1)


def activated(spec: NormSpec, gate: Float64Array, stash: _Step | None = None) -> Float64Array:
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


def _widened(spec: NormSpec, operands: dict[str, Array | None]) -> _Operands:
    """The operands that there are, checked, as float64, with their rows on the last axes."""
    given = {name: value for name, value in operands.items() if value is not None}
    check_operands(spec, {name: (element_type(v.dtype), v.shape) for name, v in given.items()})
    wide = {name: value.astype(np.float64) for name, value in given.items()}
    for name, value in wide.items():
        if name in ("scale", "bias"):
            wide[name] = value.reshape(row_shape(spec, given["x"].shape))
        elif name in ("x", "residual", "gate"):
            wide[name] = np.moveaxis(value, spec.last_axis, -1)
    return wide


def _in_place(spec: NormSpec, results: list[Array]) -> Result:
    """Results for rows on the last axis, moved to where the rows are."""
    moved = [np.moveaxis(value, -1, spec.last_axis) for value in results]
    return (moved[0], moved[1]) if len(moved) > 1 else moved[0]
