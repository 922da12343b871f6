"""Find the operator that rounds as a module does, in one combination of types.

Every order of rounding that a formula leaves open is run on the same rows as the module, which then
is compared element by element. ``x / rms`` and ``x * rsqrt(...)`` or two orders of a sum differ by
a few ulp of the type in which the row is normalised; after rounding to a half type this moves a few
elements of a thousand by one step. A wrong order moves many of a hundred.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import torch

from rmsnorm_export.op.spec import DOUBLE, FLOAT, HALF_TYPES, NormSpec
from rmsnorm_export.torch.dtypes import ELEMENT_TYPES, HALF_DTYPES, dtype_name
from rmsnorm_export.torch.operator.ops import call
from rmsnorm_export.torch.probe.fit import Formula, RefusedError, Rounding

Operands = tuple[torch.Tensor, ...]
Parameters = dict[str, torch.Tensor]
# Compared; less than what PyTorch spreads over threads. 1 in 30,000 differs where the order is
# right, 1 in 5 where it is not.
_ELEMENTS = 2**14
_LEAST_ROWS = 16
_SHARE = 0.005  # of the elements of a half type that may differ
_HALF_ULPS = 2  # a step of the normalised row, times a scale just under a power of two
_WIDE_ULPS = 16  # of the stash type: root, quotient, products, gate; observed: at most 6
_INCOMPARABLE = 2**31  # ulp: one of two numbers is not finite
_EPSILONS = (2.0**-52, 2.0**-23, 2.0**-10, 2.0**-7)  # machine epsilons: some norms default to them


def probe_inputs(
    formula: Formula,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    *,
    seed: int,
    elements: int = _ELEMENTS,
    finite: bool = False,
) -> Operands:
    """Rows of ``shape[axis:]``: random at scales from 0.02 to 20, and the special ones.

    These are rows near epsilon, one of zeros, one ruled by a single element, one of large elements
    and, unless ``finite``, one with an infinite element and one with a NaN.

    Rows with axes behind them stay where ``shape`` has them.

    Of ``shape`` only the sizes after the first are kept; ``elements`` says about how many.
    """
    generator = torch.Generator().manual_seed(seed)
    each = math.prod(shape[1:])
    axis = formula.last_axis
    shape = (*shape[:axis], *shape[axis:][1:], shape[axis])  # rows last
    length = math.prod(shape[formula.trailing().axis :])
    count = max(-(-_LEAST_ROWS * length // each), min(1024, elements // each))
    x, other = (
        torch.randn((count * each // length, length), generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    scales = 10 ** (torch.rand(len(x), generator=generator, dtype=torch.float64) * 3 - 1.7)
    at_root = formula.epsilon_outside or formula.epsilon_clamp
    root = formula.epsilon if at_root else math.sqrt(formula.epsilon)
    root = root or 1e-4
    scales[:4] = torch.tensor([0.1, 0.5, 1.0, 3.0], dtype=torch.float64) * root
    scales[4] = 300.0  # its square overflows in float16
    scales[5] = 1.0 if finite and not formula.epsilon else 0.0
    x *= scales[:, None]
    x[6, 0] *= 1000.0
    if not finite:
        x[7, 0], x[8, -1] = math.inf, math.nan
    if formula.kind == "SkipRMSNorm":
        other *= scales[:, None]
    operands = (x, other)[: formula.inputs]
    return tuple(
        rows.reshape(count, *shape[1:]).movedim(-1, axis).contiguous().to(device, dtype)
        for rows in operands
    )


def fit_rounding(
    formula: Formula,
    results: Operands,
    operands: Operands,
    parameters: Parameters,
    stored: torch.dtype | None,
) -> Rounding:
    """The order of rounding with which a module makes ``results`` of ``operands``.

    Args:
        operands: from ``probe_inputs``, in the type of the rows.
        stored: type of the parameters.

    Raises:
        RefusedError: the results are of another type, or no order explains the numbers.
    """
    dtype = operands[0].dtype
    for result in results:
        if result.dtype != dtype:
            raise RefusedError(
                f"its result is {dtype_name(result.dtype)}, its rows {dtype_name(dtype)}"
            )
        if result.shape != operands[0].shape:
            raise RefusedError("its result has another shape than its rows")
    tried = []
    for epsilon in _epsilons(formula):
        known = dataclasses.replace(formula, epsilon=epsilon)
        for spec in _orders(known, dtype):
            rounding = compare_with_operator(known, spec, results, operands, parameters, stored)
            tried.append(rounding)
            if not rounding.different:
                return rounding
        best = min(tried, key=lambda r: (r.different, r.ulps))
        if accepted(best):
            return best
    raise RefusedError(
        f"no order of rounding explains it: the nearest leaves {best.different} of {best.elements} "
        f"elements different, by up to {best.ulps} ulp"
    )


def accepted(rounding: Rounding) -> bool:
    """Whether it differs only as sums, quotients and roots do between two ways to take them.

    A half type: by single steps in few elements. Others: by a few ulp of the type in which the row
    is normalised, in any number of elements.
    """
    if rounding.dtype in HALF_DTYPES:
        few = rounding.different <= _SHARE * rounding.elements
        return few and rounding.ulps <= _HALF_ULPS
    return rounding.ulps <= _WIDE_ULPS


def _orders(formula: Formula, dtype: torch.dtype) -> Iterator[NormSpec]:
    """The orders of rounding that differ for rows of ``dtype``, plainest first."""
    own = ELEMENT_TYPES[dtype]
    if own not in HALF_TYPES:
        # A double may be normalised in either type; a float rounds nothing on the way.
        for stash in (FLOAT, DOUBLE) if own == DOUBLE else (FLOAT,):
            for late in (False, True) if stash != own else (False,):
                yield formula.spec(stash_type=stash, scale_before_cast=late)
        return
    scaled = formula.scale is not None and not formula.scale_in_front
    affine = scaled or formula.bias is not None or formula.kind == "GatedRMSNorm"
    # Without an offset of its own: the offset is added to the scale before the operator.
    offsets: list[dict[str, float]] = [{}]
    if scaled and formula.scale_offset:
        offsets.append({"scale_offset": 0.0})
    tried: list[dict[str, float]] = [{"stash_type": FLOAT}]
    if affine:
        tried.append({"stash_type": FLOAT, "scale_before_cast": True})
    tried.append({"stash_type": FLOAT, "round_rstd": True})
    for attributes, offset in itertools.product(tried, offsets):
        yield formula.spec(**attributes, **offset)
    for rounded, offset in itertools.product((False, True), offsets):
        half = {"stash_type": own, "round_rstd": rounded, **offset}
        yield formula.spec(**half)
        if scaled and not formula.group_size and formula.last_axis == -1:
            yield formula.spec(**half, association=2)
            if rounded:
                yield formula.spec(**half, association=1)


def _epsilons(formula: Formula) -> Iterator[float]:
    """That of the formula; then machine epsilons, if it is the one of float64, where it was fit."""
    yield formula.epsilon
    if formula.epsilon == _EPSILONS[0]:
        yield from _EPSILONS[1:]


def compare_with_operator(
    formula: Formula,
    spec: NormSpec,
    results: Operands,
    operands: Operands,
    parameters: Parameters,
    stored: torch.dtype | None,
) -> Rounding:
    """The operator ``spec`` against ``results``; the others as for `fit_rounding`."""
    expected = evaluate(formula, spec, operands, parameters)
    dtype = operands[0].dtype
    unit = torch.float32 if spec.stash_type == FLOAT and dtype == torch.float64 else dtype
    different, ulps, elements = 0, 0, 0
    for got, want in zip(results, expected, strict=True):
        elements += got.numel()
        different += int((~_equal_elements(got, want)).sum())
        ulps = max(ulps, ulps_apart(got, want, unit, parameters.get(formula.bias or "")))
    return Rounding(
        dtype=dtype,
        stored=stored,
        spec=spec,
        offset_first=_offset_first(formula, spec),
        elements=elements,
        different=different,
        ulps=ulps,
    )


def _offset_first(formula: Formula, spec: NormSpec) -> bool:
    """Whether the offset is added in the type of the parameter: the operator has none then."""
    return not formula.scale_in_front and spec.scale_offset != formula.scale_offset


def evaluate(
    formula: Formula, spec: NormSpec, operands: Operands, parameters: Parameters
) -> Operands:
    """The operator in place of the module: ``(y,)``, or ``(y, sum)`` where the module returns it.

    ``operands``: ``(x,)``, ``(x, gate)`` or ``(x, residual)``.
    """
    x, *second = operands
    scale = None if formula.scale is None else parameters[formula.scale]
    bias = None if formula.bias is None else parameters[formula.bias]
    if scale is not None and formula.scale_in_front:
        factor = scale + formula.scale_offset if formula.scale_offset else scale
        x, scale = (x * factor).to(x.dtype), None
    elif scale is not None and _offset_first(formula, spec):
        scale = scale + formula.scale_offset
    if formula.kind == "SkipRMSNorm":
        both = call(spec, x, scale, bias, residual=second[0])
        return tuple(both) if formula.returns_sum else (both[0],)
    gate = second[0] if formula.kind == "GatedRMSNorm" else None
    y = call(spec, x, scale, bias, gate=gate)
    return (y,) if isinstance(y, torch.Tensor) else y


def _equal_elements(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    return (got == want) | (got.isnan() & want.isnan())


def ulps_apart(
    got: torch.Tensor, want: torch.Tensor, unit: torch.dtype, bias: torch.Tensor | None = None
) -> int:
    """The largest difference in units in the last place, of the larger of ``want`` and ``bias``.

    Beside a bias, a sum near zero keeps the rounding of its terms. ``unit``: the type whose last
    place counts.
    """
    info = torch.finfo(unit)
    apart = ~_equal_elements(got, want)
    if bool((apart & ~(got.isfinite() & want.isfinite())).any()):
        return _INCOMPARABLE
    wide_got, wide_want = got.double()[apart], want.double()[apart]
    if not wide_got.numel():
        return 0
    size = wide_want.abs().clamp_min(info.tiny)
    if bias is not None:
        size = torch.maximum(size, bias.double().abs().reshape(-1).max())
    _, exponent = torch.frexp(size)
    step = torch.ldexp(torch.full_like(size, info.eps), exponent - 1)
    return min(math.ceil(float(((wide_got - wide_want).abs() / step).max())), _INCOMPARABLE)
