"""Find out what a module computes by running it: is it an RMSNorm, and exactly which.

Nothing is read from names or sources. The formula is fitted in exact arithmetic (see
``fit_formula``) and confirmed against the float64 reference on other rows, ranks and parameters;
then the rounding is fitted type by type against the module itself (see ``fit_rounding``).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.operands import row_shape, without_leading_ones
from rmsnorm_export.op.reference import reference_float64
from rmsnorm_export.torch.dtypes import HALF_DTYPES
from rmsnorm_export.torch.probe import fit_formula, fit_rounding
from rmsnorm_export.torch.probe.copies import ModuleCopies, not_a_candidate, undisturbed
from rmsnorm_export.torch.probe.fit import Fit, Form, Formula, NotANorm, RefusedError

_CONFIRMED = 1e-10  # relative to the largest element of a row
_WIDTHS = (48, 64, 96, 128, 30)
_PROBED_TYPES = (torch.float64, torch.float32, *HALF_DTYPES)

# What the second input of a call may do.
_TWO_INPUTS = (
    Formula(kind="GatedRMSNorm", activation="silu"),
    Formula(kind="GatedRMSNorm", activation="sigmoid"),
    Formula(kind="GatedRMSNorm", activation="silu", gate_first=True),
    Formula(kind="GatedRMSNorm", activation="sigmoid", gate_first=True),
    Formula(kind="SkipRMSNorm"),
)


def probe_module(
    module: torch.nn.Module, *, example: tuple[torch.Tensor, ...] | None = None
) -> Fit | NotANorm:
    """What ``module`` computes, if that is an RMSNorm.

    The module is not called and not changed; copies of it are, with random parameters of their own.

    Args:
        module: any module; one that has children with parameters is no norm itself.
        example: inputs that it takes, where its parameters and attributes do not tell their shape;
            only the shape is used.

    Returns:
        the ways to call it that are an RMSNorm, each with its formula and with the operator for
        every combination of types in which one gives the module's numbers; or why it is none.

    Raises:
        UsageError: ``module`` is no module, or ``example`` holds something that is no tensor.
    """
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            "Only a torch.nn.Module can be probed.",
            found=type(module).__name__,
            fix="pass a module of the model",
        )
    if example is not None and not (
        isinstance(example, tuple) and example and all(map(torch.is_tensor, example))
    ):
        raise UsageError(
            "The argument example must be a tuple of tensors.",
            found=type(example).__name__,
            fix="pass the inputs of one call, as in (x,)",
        )
    return probe_on(module, device_of(module), example)


def probe_on(
    module: torch.nn.Module,
    device: torch.device,
    example: tuple[torch.Tensor, ...] | None = None,
) -> Fit | NotANorm:
    """``probe_module`` on a device of choice, arguments unchecked."""
    reason = not_a_candidate(module)
    if reason:
        return NotANorm(reason)
    try:
        with undisturbed(device), torch.device(device):
            return _fit_module(ModuleCopies(module, device), example)
    except RefusedError as refused:
        return NotANorm(str(refused))


def device_of(module: torch.nn.Module) -> torch.device:
    """Of the first tensor that has data; else the processor."""
    for tensor in [*module.parameters(), *module.buffers()]:
        if not tensor.is_meta:
            return tensor.device
    return torch.device("cpu")


def _fit_module(copies: ModuleCopies, example: tuple[torch.Tensor, ...] | None) -> Fit | NotANorm:
    names, required = _input_names(copies.module)
    forms, reasons = [], []
    for count in (1, 2):
        if not required <= count <= max(len(names), 1):
            continue
        try:
            forms.append(_fit_form(copies, count, example))
        except RefusedError as refused:
            reasons.append(str(refused))
    if not forms:
        return NotANorm(reasons[0] if reasons else f"its forward needs {required} inputs")
    return Fit(forms=tuple(forms), names=names)


def _input_names(module: torch.nn.Module) -> tuple[tuple[str, ...], int]:
    """The first two inputs of ``forward`` by name, and how many have no default."""
    try:
        parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    except (TypeError, ValueError) as error:
        raise RefusedError("its forward has no signature") from error
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return tuple(p.name for p in positional[:2]), max(len(required), 1)


def _parameter_shape(copies: ModuleCopies) -> tuple[int, ...]:
    """The shape of the largest parameter without leading ones."""
    shapes = sorted(copies.shapes.values(), key=math.prod)
    return without_leading_ones(shapes[-1]) if shapes else ()


def _candidate_shapes(
    copies: ModuleCopies, example: tuple[torch.Tensor, ...] | None
) -> Iterator[tuple[int, ...]]:
    """Shapes of input to try: three dimensions first, then more, then channels first."""
    if example is not None:
        yield tuple(example[0].shape)
    row = _parameter_shape(copies)
    if len(row) in (3, 4) and math.prod(row) == row[0]:  # a scale of channels, [C, 1, 1]
        yield (2, row[0], *(2, 3, 4)[4 - len(row) :])
    trailing = [row]
    if not row:
        trailing = [*_sizes_among_attributes(copies.module), *((width,) for width in _WIDTHS)]
    for last in dict.fromkeys(trailing):
        yield from ((3, 4, *last), (6, *last), (2, 3, 2, *last))
    for last in dict.fromkeys(trailing):
        if len(last) == 1:
            yield from ((2, *last, 3, 3), (2, *last, 5), (2, *last, 2, 3, 3))


def _sizes_among_attributes(module: torch.nn.Module) -> Iterator[tuple[int, ...]]:
    """Sizes among the plain attributes of a module, under whatever name."""
    for value in vars(module).values():
        if type(value) is int and 2 <= value <= 2**14:
            yield (value,)
        elif (
            isinstance(value, tuple)
            and 1 <= len(value) <= 3
            and all(type(size) is int and size > 0 for size in value)
            and 2 <= math.prod(value) <= 2**20
        ):
            yield tuple(value)


def _fit_form(copies: ModuleCopies, count: int, example: tuple[torch.Tensor, ...] | None) -> Form:
    """Fit calls with ``count`` inputs."""
    _refuse_matrix(copies, count)
    shape = _accepted_shape(copies, count, example)
    inputs = _random_inputs(shape, count, copies.device)
    copies.check_pure(inputs)
    reasons = []
    for start in _TWO_INPUTS if count == 2 else (Formula(),):
        try:
            formula = _fit_call(copies, start, inputs[0])
            any_width = _confirmed_any_width(copies, formula, shape)
            return _fit_roundings(copies, formula, shape, any_width)
        except RefusedError as refused:
            reasons.append(str(refused))
    if count == 1:
        raise RefusedError(reasons[0])
    raise RefusedError(
        "neither a gate (silu or sigmoid, before or after) nor a residual explains it"
    )


def _refuse_matrix(copies: ModuleCopies, count: int) -> None:
    """A matrix that multiplies rows would make the other probes slow."""
    row = _parameter_shape(copies)
    if len(row) != 2 or count != 1:
        return
    x = fit_formula.rows((1, row[1]), copies.device)
    try:
        y = copies.run((x,))
    except RefusedError:
        return
    if isinstance(y, torch.Tensor) and y.shape == (1, row[0]):
        raise RefusedError(f"a matrix of {row[0]} x {row[1]} multiplies the rows")


def _random_inputs(
    shape: tuple[int, ...], count: int, device: torch.device
) -> tuple[torch.Tensor, ...]:
    return tuple(fit_formula.rows(shape, device, seed) for seed in (7, 8)[:count])


def _accepted_shape(
    copies: ModuleCopies, count: int, example: tuple[torch.Tensor, ...] | None
) -> tuple[int, ...]:
    """The first shape for which the module returns a tensor of the same shape."""
    reason = ""
    for shape in _candidate_shapes(copies, example):
        operands = _random_inputs(shape, count, copies.device)
        try:
            y = copies.run(operands, exact=True)
        except RefusedError as refused:
            reason = reason or str(refused)
            continue
        first = y[0] if isinstance(y, tuple) and len(y) == 2 and count == 2 else y
        if not isinstance(first, torch.Tensor):
            raise RefusedError(f"returns a {type(y).__name__}")
        if first.shape == shape and first.dtype == torch.float64:
            return shape
        reason = reason or f"returns {tuple(first.shape)} for an input of {shape}"
    raise RefusedError(reason)


def _fit_call(copies: ModuleCopies, start: Formula, x: torch.Tensor) -> Formula:
    """Take the second input out as ``start`` says, and fit what is left."""
    values = copies.values(torch.float64)
    returns_sum = False

    def f(x: torch.Tensor, zero: frozenset[str], doubled: str = "") -> torch.Tensor:
        nonlocal returns_sum
        run = functools.partial(copies.run, exact=True, zero=zero, doubled=doubled)
        if start.kind == "RMSNorm":
            return _result_like(run((x,)), x)
        other = fit_formula.rows(tuple(x.shape), copies.device, seed=8)
        if start.kind == "SkipRMSNorm":
            # A part of the sum, so that no digit of it is lost at any scale.
            part = x * other.abs() / 4
            y = run((x - part, part))
            returns_sum = isinstance(y, tuple)
            if isinstance(y, tuple) and not _close(y[1], x):
                raise RefusedError("its second result is not the sum of its inputs")
            return _result_like(y[0] if isinstance(y, tuple) else y, x)
        act = other.sigmoid() if start.activation == "sigmoid" else other * other.sigmoid()
        if start.gate_first:
            return _result_like(run((x / act, other)), x)
        return _result_like(run((x, other)), x) / act

    for name in copies.settings:
        plain = f(x, frozenset())
        if not torch.equal(plain, f(x, frozenset(), name)):
            raise RefusedError(f"uses {name!r}, a tensor of one element, which no operand can be")
    formula = fit_formula.fit_formula(f, x, values, start)
    return dataclasses.replace(formula, returns_sum=returns_sum)


def _result_like(value: Any, like: torch.Tensor) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.shape != like.shape:
        raise RefusedError("does not return one tensor of the shape of its input")
    return value


def _close(got: Any, want: torch.Tensor) -> bool:
    if not isinstance(got, torch.Tensor) or got.shape != want.shape:
        return False
    return bool(((got - want).abs() <= 1e-12 * want.abs()).all())


def _confirmed_any_width(copies: ModuleCopies, formula: Formula, shape: tuple[int, ...]) -> bool:
    """Confirm the formula by the float64 reference on other rows, ranks, widths and parameters.

    Returns:
        whether rows of other widths are taken.
    """
    last = shape[formula.axis :]
    shapes = [shape, (5, *last), (2, 3, *last), (2, 3, 2, *last)]
    wider: list[tuple[int, ...]] = []
    if formula.last_axis != -1:
        # One rank, any sizes behind the row.
        shapes = [shape, (5, *last), (2, last[0], *(size + 1 for size in last[1:]))]
    if not formula.parameters:
        # Without a parameter nothing ties the width.
        lead = shape[: formula.axis]
        step = formula.group_size or 1
        wider = [(*lead, *last[:-1], last[-1] + step), (*lead, 2 * last[0], *last[1:])]
        if formula.last_axis != -1:
            wider = wider[1:]
    taken = []
    for seed, each in enumerate(dict.fromkeys(shapes + wider)):
        operands = fit_rounding.probe_inputs(
            formula, each, torch.float64, copies.device, seed=seed, elements=2**11, finite=True
        )
        try:
            y = copies.run(operands, exact=True, seed=seed)
        except RefusedError:
            if each == shape:
                raise
            continue
        got = y[0] if isinstance(y, tuple) else y
        if isinstance(got, torch.Tensor) and got.ndim > len(each):
            continue  # a scale of higher rank; such a call is left to the module itself
        want = _expected_result(formula, operands, copies.values(torch.float64, seed))
        size = want.abs().amax(-1, keepdim=True)
        if each in wider and formula.epsilon_clamp:
            continue  # eps / sqrt(n) is that of this width
        if got.shape != want.shape or not bool(((got - want).abs() <= _CONFIRMED * size).all()):
            raise RefusedError(f"an RMSNorm for inputs of {shape}, but not for {each}")
        taken.append(each)
    return bool(wider) and set(wider) <= set(taken)


def _expected_result(
    formula: Formula, operands: tuple[torch.Tensor, ...], values: dict[str, torch.Tensor]
) -> torch.Tensor:
    x, *second = (value.cpu() for value in operands)
    scale = None if formula.scale is None else values[formula.scale].cpu()
    bias = None if formula.bias is None else values[formula.bias].cpu().numpy()
    if scale is not None and formula.scale_in_front:
        x, scale = x * (scale + formula.scale_offset), None
    result = reference_float64(
        formula.spec(),
        x.numpy(),
        None if scale is None else scale.numpy(),
        bias,
        residual=second[0].numpy() if formula.kind == "SkipRMSNorm" else None,
        gate=second[0].numpy() if formula.kind == "GatedRMSNorm" else None,
    )
    y = result[0] if isinstance(result, tuple) else result
    return torch.from_numpy(y).to(operands[0].device)


def _fit_roundings(
    copies: ModuleCopies, formula: Formula, shape: tuple[int, ...], any_width: bool
) -> Form:
    """The operator for every combination of types."""
    pairs: list[tuple[torch.dtype, torch.dtype | None]] = [(t, None) for t in _PROBED_TYPES]
    if formula.parameters:
        pairs = [*((t, t) for t in _PROBED_TYPES), *((t, torch.float32) for t in HALF_DTYPES)]
    roundings, refused = [], []
    for seed, (dtype, stored) in enumerate(pairs):
        kept = stored or dtype
        operands = fit_rounding.probe_inputs(formula, shape, dtype, copies.device, seed=seed)
        try:
            y = copies.run(operands, stored=kept, seed=seed)
            results = y if isinstance(y, tuple) else (y,)
            parameters = copies.values(kept, seed)
            roundings.append(
                fit_rounding.fit_rounding(formula, results, operands, parameters, stored)
            )
        except RefusedError as reason:
            refused.append((dtype, stored, str(reason)))
    if not roundings:
        plain = next(why for dtype, _, why in refused if dtype == torch.float32)
        raise RefusedError(f"an RMSNorm in exact arithmetic, but in float32: {plain}")
    return Form(
        formula=formula,
        shape=row_shape(formula, shape),
        any_width=any_width,
        roundings=tuple(roundings),
        refused=tuple(refused),
    )
