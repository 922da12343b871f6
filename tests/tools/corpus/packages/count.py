"""How many norms a PyTorch model runs, decided by what its modules compute, not by their names.

A module is an RMSNorm when ``(y - bias) * rms(x) / x`` is the same number for every row: random
rows go through every module that was called, alone, and the quotient is looked at.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Literal

import torch

Kind = Literal["rms", "l2", "channel", "channel-l2"]
"""``rms`` and ``l2`` normalise the last axis, ``channel...`` axis 1; an ``l2`` divides by a clamped
length (``F.normalize``) where an ``rms`` adds an epsilon to the mean square."""

_TOLERANCE = 1e-3  # float32, and epsilons up to 1e-5 beside mean squares of about 1
_SMALL = 1e-5  # rows that an epsilon changes, and that no clamp at 1e-12 reaches


@dataclasses.dataclass(frozen=True, slots=True)
class Counted:
    """The norms of one forward pass.

    Attributes:
        calls: by kind, then by class: a module that is called twice counts twice.
        named: classes called like a root mean square norm that were called and are none.
    """

    calls: dict[str, dict[str, int]]
    named: tuple[str, ...]


def count(model: torch.nn.Module, args: tuple[Any, ...]) -> Counted:
    """Every norm that one call of ``model`` runs; only the innermost of nested ones counts."""
    calls: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    none: set[str] = set()
    verdicts: dict[tuple[torch.nn.Module, torch.Size], Kind | None] = {}
    open_calls: list[bool] = []  # whether a norm was counted inside of each
    judging = False

    def enter(_module: torch.nn.Module, _args: Any, _kwargs: Any) -> None:
        if not judging:
            open_calls.append(False)

    def leave(module: torch.nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        nonlocal judging
        if judging:
            return
        holds = open_calls.pop()
        values = [*args, *kwargs.values()]
        x = values[0] if values else None
        if not holds and _comparable(x, out):
            key = (module, x.shape)
            if key not in verdicts:
                judging = True
                verdicts[key] = _kind(module, args, kwargs)
                judging = False
            kind, name = verdicts[key], type(module).__name__
            holds = kind is not None
            if kind is not None:
                calls[kind][name] += 1
            elif "rms" in name.lower():
                none.add(name)
        if open_calls and holds:
            open_calls[-1] = True

    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
    try:
        with torch.no_grad():
            model(*args)
    finally:
        for handle in handles:
            handle.remove()
    return Counted({kind: dict(found) for kind, found in calls.items()}, tuple(sorted(none)))


def _comparable(x: Any, out: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and isinstance(out, torch.Tensor)
        and x.is_floating_point()
        and x.ndim >= 2
        and x.shape == out.shape
    )


def _kind(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> Kind | None:
    generator = torch.Generator().manual_seed(0)
    first = next(iter(kwargs)) if not args else None
    x = torch.randn(args[0].shape if args else kwargs[first].shape, generator=generator)
    rest = tuple(_ones(v) for v in args[1:])
    named = {name: _ones(v) for name, v in kwargs.items()}

    def run(value: torch.Tensor) -> torch.Tensor | None:
        try:
            with torch.no_grad():
                if first is None:
                    return module.forward(value, *rest, **named)
                return module.forward(**{**named, first: value})
        except Exception:  # takes no such numbers: it is no norm
            return None

    y = run(x)
    if y is None or not isinstance(y, torch.Tensor) or not y.isfinite().all():
        return None
    bias = run(torch.zeros_like(x))
    if bias is not None and bias.isfinite().all():
        y = y - bias
    sizes = {p.numel() for p in module.parameters()}
    for axis in dict.fromkeys((x.ndim - 1, 1)):
        if _normalises(x, y, axis, sizes):
            small = run(x * _SMALL)
            clamped = small is not None and torch.allclose(small, y, rtol=_TOLERANCE, atol=1e-4)
            if axis == x.ndim - 1:
                return "l2" if clamped else "rms"
            return "channel-l2" if clamped else "channel"
    return None


def _normalises(x: torch.Tensor, y: torch.Tensor, axis: int, sizes: set[int]) -> bool:
    """Rows along ``axis`` are divided by their root mean square, whole or in groups."""
    n = x.shape[axis]
    for groups in (g for g in range(1, max(n // 4, 1) + 1) if n % g == 0):
        cut = x.unflatten(axis, (groups, n // groups))
        rms = cut.square().mean(axis + 1, keepdim=True).sqrt().expand_as(cut)
        rms = rms.flatten(axis, axis + 1)
        if _per_feature(x, y * rms / x, axis, sizes):
            return True
    return False


def _ones(value: Any) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return torch.ones_like(value) if floating else value


def _per_feature(x: torch.Tensor, quotient: torch.Tensor, axis: int, sizes: set[int]) -> bool:
    """``quotient`` is one number per feature, or per feature and head."""
    spread = quotient.abs().median() * _TOLERANCE
    quotient = torch.where(x.abs() < 1e-2, torch.nan, quotient)  # too small to divide by

    def varies(at: int) -> bool:
        high = quotient.nan_to_num(nan=-torch.inf).amax(at)
        low = quotient.nan_to_num(nan=torch.inf).amin(at)
        return bool(((high - low) > spread).any())

    others = [at for at in range(x.ndim) if at != axis and x.shape[at] > 1 and varies(at)]
    rows = x.numel() // x.shape[axis]
    for at in others:
        rows //= x.shape[at]
    per_head = len(others) == 1 and x.shape[axis] * x.shape[others[0]] in sizes
    return rows > 1 and bool(spread > 0) and (not others or per_head)
