"""Find the formula of a norm from its responses, in exact arithmetic.

``f`` maps rows ``x`` to ``y``, both float64; a gate or residual has been taken out by the caller.
For an RMSNorm with scale g and bias b

- changing one element changes those that share its root mean square: axes, groups, partial;
- at a scale where epsilon vanishes, ``(f(x) + f(-x)) / 2 = b`` and ``(f(x) - f(-x)) / 2 * rms / x``
  is g, the same for every row;
- ``x * g / (f(x) - b)`` is the divisor D: ``D ** 2 - mean(x ** 2)`` (epsilon inside the root) or
  ``D - rms(x)`` (outside) is the same at every scale, or D is the larger of rms(x) and a number
  (clamp).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.torch.operator.eager import in_groups, part_of, reduced_axes
from rmsnorm_export.torch.probe.fit import Formula, RefusedError

Tensors = Mapping[str, torch.Tensor]
Function = Callable[[torch.Tensor, frozenset[str]], torch.Tensor]
"""``f(x, zero)``: the rows, and the names of parameters to set to zero."""

_Stabilise = Callable[[torch.Tensor], torch.Tensor]

_RELATIVE = 1e-9  # of float64 responses: a few hundred roundings of 1e-16, times the scale's range
_LARGE = 2.0**30  # epsilon vanishes beside its square; a power of two, so that scaling is exact


def rows(shape: tuple[int, ...], device: torch.device, seed: int = 7) -> torch.Tensor:
    """Magnitudes in [0.5, 2], random signs: nothing is near zero, so every ratio is accurate."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.rand(shape, generator=generator, dtype=torch.float64) * 1.5 + 0.5
    sign = torch.rand(shape, generator=generator) < 0.5
    return torch.where(sign, -size, size).to(device)


def root_mean_square(norm: NormSpec, x: torch.Tensor) -> torch.Tensor:
    """That of the elements which share it, in the shape of ``x``."""
    cut = in_groups(norm, x)
    mean = part_of(norm, cut).square().mean(reduced_axes(norm), keepdim=True)
    return mean.sqrt().expand(cut.shape).reshape(x.shape)


def fit_formula(f: Function, x: torch.Tensor, values: Tensors, start: Formula) -> Formula:
    """The formula of ``f``.

    Args:
        x: rows that it accepts, from ``rows``.
        values: its parameters.
        start: what the second input does, which ``f`` has taken out.

    Raises:
        RefusedError: ``f`` is no RMSNorm, or none that the operator can say.
    """
    support = dataclasses.replace(start, **find_support(lambda x: f(x, frozenset()), x))
    if support.last_axis != -1:
        axis = support.axis

        def rows_last(x: torch.Tensor, zero: frozenset[str]) -> torch.Tensor:
            return f(x.movedim(-1, axis), zero).movedim(axis, -1)

        found = fit_formula(rows_last, x.movedim(axis, -1), values, start)
        return dataclasses.replace(found, axis=axis, last_axis=axis)
    large = x * _LARGE
    up, down = f(large, frozenset()), f(-large, frozenset())
    bias, odd = (up + down) / 2, (up - down) / 2
    name_of_bias = _find_bias(bias, odd, values, f, x)
    response = odd * root_mean_square(support, x) / x
    scale, offset, in_front = None, 0.0, False
    if _same_for_every_row(response, support.axis):
        scale, offset = _find_scale(response, values, name_of_bias)
        front = torch.ones_like(x)
    else:
        scale, offset, front = _scale_in_front(odd, x, support, values, f)
        response, in_front = torch.ones_like(x), True
    unused = set(values) - {scale, name_of_bias}
    if unused and not torch.equal(f(x, frozenset()), f(x, frozenset(unused))):
        raise RefusedError(f"its {sorted(unused)[0]!r} is neither the scale nor the bias")
    zero = frozenset({name_of_bias} - {None})

    def divisor(x: torch.Tensor) -> torch.Tensor:
        return x * front * response / f(x, zero)  # type: ignore[arg-type]  # no None in zero

    place = _find_epsilon(divisor, lambda x: root_mean_square(support, x * front), x)
    return dataclasses.replace(
        support,
        **place,
        scale=scale,
        scale_offset=offset,
        scale_in_front=in_front,
        bias=name_of_bias,
    )


def find_support(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> dict[str, Any]:
    """Which elements share one root mean square: change single ones, see which results change.

    Returns:
        Attributes of ``NormSpec``.

    Raises:
        RefusedError: not the elements of trailing axes, of channels, of leading groups or of a
            leading part.
    """
    y = f(x)
    lead = (0,) * (x.ndim - 1)

    def changed(index: int) -> torch.Tensor:
        other = x.clone()
        other[lead][index] *= 1.5
        difference = (f(other) - y).abs()
        return (difference > 1e-12 * y.abs().max()).cpu()

    first = changed(0)
    if not bool(first.any()):
        raise RefusedError("its result does not depend on the first element of a row")
    touched = [axis for axis in range(x.ndim) if bool(first.movedim(axis, 0)[1:].any())]
    if not touched:
        raise RefusedError("elementwise: no result depends on a second element")
    axes = x.ndim - touched[0]
    if axes == x.ndim:
        raise RefusedError("mixes the rows of a batch")
    block = first[(0,) * (x.ndim - axes)]
    if touched == [1] and x.ndim in (4, 5):
        return {"axis": -axes, "last_axis": -axes}
    if axes > 1:
        if not bool(block.all()):
            names = ", ".join(str(axis - x.ndim) for axis in touched)
            raise RefusedError(
                f"normalises over axes ({names}) of {x.ndim}: not whole trailing axes"
            )
        return {"axis": -axes}
    n = x.shape[-1]
    size = int(block.sum())
    if n % size or not bool(block[:size].all()):
        raise RefusedError(f"{size} of {n} elements share a statistic, not in groups side by side")
    last = changed(n - 1)[lead]
    if bool(last[n - size :].all()) and int(last.sum()) == size:
        return {"group_size": 0 if size == n else size}
    if size < n or int(last.sum()) != 1:
        raise RefusedError("its elements share no common statistic")
    inside, outside = 0, n - 1
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if int(changed(middle)[lead].sum()) > 1:
            inside = middle
        else:
            outside = middle
    return {"partial_size": outside}


def _near(value: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal but for the rounding of responses, next to the largest of ``expected``."""
    return bool((value - expected).abs().max() <= _RELATIVE * expected.abs().max())


def _same_for_every_row(value: torch.Tensor, axis: int) -> bool:
    if not bool(value.isfinite().all()):
        return False
    flat = value.reshape(-1, *value.shape[axis:])
    return _near(flat[:1], flat)


def _matches(row: torch.Tensor, parameter: torch.Tensor, offset: float = 0.0) -> bool:
    """Whether ``row``, flat, is ``parameter + offset``."""
    return row.numel() == parameter.numel() and _near(row, parameter.reshape(-1) + offset)


def _find_bias(
    bias: torch.Tensor, odd: torch.Tensor, values: Tensors, f: Function, x: torch.Tensor
) -> str | None:
    if not bool(bias.isfinite().all()):
        raise RefusedError("its result is not finite for large rows")
    if bool(bias.abs().max() <= _RELATIVE * odd.abs().max()):
        return None
    for name, value in values.items():
        count = value.numel()
        if _matches(bias.reshape(-1)[:count], value):
            whole = bias.reshape(-1, count)
            if _near(whole[:1], whole):
                return name
    raise RefusedError(_what_instead(f, x))


def _find_scale(
    response: torch.Tensor, values: Tensors, name_of_bias: str | None
) -> tuple[str | None, float]:
    """Name of the scale and what is added to it."""
    for name, value in values.items():
        if name == name_of_bias:
            continue
        row = response.reshape(-1)[: value.numel()]
        offset = snap(float((row - value.reshape(-1)).mean()))
        if abs(offset) <= _RELATIVE:
            offset = 0.0
        if _matches(row, value, offset):
            return name, offset
    factor = float(response.reshape(-1)[0])
    if not bool((response - factor).abs().max() <= _RELATIVE * abs(factor)):
        raise RefusedError("its scale is no parameter plus a constant")
    if abs(factor - 1) > _RELATIVE:
        raise RefusedError(
            f"multiplies the row by the constant {factor:.6g}, which is no parameter"
        )
    return None, 0.0


def _scale_in_front(
    odd: torch.Tensor, x: torch.Tensor, support: NormSpec, values: Tensors, f: Function
) -> tuple[str, float, torch.Tensor]:
    """A parameter that multiplies the row before it is normalised."""
    shape = x.shape[support.axis :]
    for name, value in values.items():
        for offset in (0.0, 1.0):
            if value.numel() != math.prod(shape):
                continue
            front = (value + offset).reshape(shape).expand_as(x)
            scaled = x * front
            if bool(
                ((odd * root_mean_square(support, scaled) / scaled) - 1).abs().max() <= _RELATIVE
            ):
                return name, offset, front
    raise RefusedError(_what_instead(f, x))


def _find_epsilon(
    divisor: Callable[[torch.Tensor], torch.Tensor],
    rms: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
) -> dict[str, Any]:
    """Epsilon and where it is: attributes of ``NormSpec``."""
    tiny = 2.0**-100  # the mean square is about 1e-60
    root = divisor(x * tiny)
    if not bool(root.isfinite().all()):
        raise RefusedError("its result is not finite for tiny rows")
    least = float(root.reshape(-1)[0])
    rows_tried = [x * scale for scale in (tiny, 2.0**-10, 1.0, least / 10, least, least * 10)]
    inside, outside = snap(least**2), snap(least)
    tried: tuple[tuple[float, dict[str, Any], _Stabilise], ...] = (
        (0.0, {}, lambda mean: mean),
        (inside, {}, lambda mean: (mean.square() + inside).sqrt()),
        (outside, {"epsilon_outside": True}, lambda mean: mean + outside),
        (outside, {"epsilon_clamp": True}, lambda mean: mean.clamp_min(outside)),
    )
    for epsilon, place, stabilised in tried:
        expected = [stabilised(rms(at)) for at in rows_tried]
        if all(
            bool(((divisor(at) - root).abs() <= _RELATIVE * root).all())
            for at, root in zip(rows_tried, expected, strict=True)
        ):
            return {"epsilon": epsilon, **place}
    raise RefusedError(
        "its divisor is the root mean square of large rows only: two epsilons, or the like"
    )


def snap(value: float) -> float:
    """The shortest decimal within 1e-9 of ``value``, else the float32 there, else ``value``."""
    for digits in range(1, 8):
        decimal = float(f"{value:.{digits}g}")
        if abs(decimal - value) <= _RELATIVE * abs(value):
            return decimal
    single = float(np.float32(value))
    return single if abs(single - value) <= _RELATIVE * abs(value) else value


def _what_instead(f: Function, x: torch.Tensor) -> str:
    """A name for a function that is no RMSNorm, from its invariances."""

    def at(scale: float, shift: float = 0.0) -> torch.Tensor:
        return f(x * scale + shift, frozenset())

    one, two, three = at(2.0**10), at(2.0**11), at(3 * 2.0**10)
    size = one.abs().max()

    def same(a: torch.Tensor, b: torch.Tensor) -> bool:
        return bool((a - b).abs().max() <= 1e-4 * size)

    if same(three - two, two - one) and not same(two, one):
        return "affine: its result follows its input without any statistic of the row"
    if same(two, one):
        if same(at(2.0**10, 2.0**10), one):
            return "centred: shifting a row changes nothing (LayerNorm, GroupNorm)"
        return "scale invariant, but its divisor is not the root mean square of the row"
    return "neither scale invariant nor affine"
