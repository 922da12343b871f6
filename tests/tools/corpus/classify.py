"""Decide from numbers what a norm module computes.

The values come from running the module; nothing is read from its source. Every RMSNorm that
can be composed from the parts below is evaluated in float64 and compared; a module that none of
them explains is none.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import torch

from tests.tools.corpus.build import GROUP

RELATIVE = 2e-5
"""Bound for float32 against float64: 48 terms of 1.2e-7 each, with room for rsqrt and the gate."""

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """What an RMSNorm does beyond ``x / sqrt(mean(x^2) + eps) * w``.

    Attributes:
        gain: ``none``, ``w``, ``1+w``, ``w+b`` (a bias follows) or ``pre 1+w`` (the row is scaled
            by 1 + w before it is normalised, and has no gain after).
        gate: ``none``, or ``<activation> after`` / ``<activation> before`` the normalisation.
        group_size: elements that share one root mean square; 0 means the whole row.
        axes: trailing axes that are normalised together.
        epsilon: ``inside`` the root, ``outside`` of it, or ``none``.
    """

    gain: str = "w"
    gate: str = "none"
    group_size: int = 0
    axes: int = 1
    epsilon: str = "inside"


def fit(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], eps: float) -> list[Variant]:
    """Every variant that reproduces ``module(*inputs)`` in float32 within ``RELATIVE``.

    Use an ``eps`` near the mean squares, so that its place shows. One variant is the answer, none
    means that the module is no RMSNorm, several that the inputs were too poor to tell.
    """
    with torch.no_grad():
        got = module(*inputs)
    if not isinstance(got, torch.Tensor):
        return []
    named = {name: value.detach().double() for name, value in module.named_parameters()}
    weight, bias = named.get("weight"), named.get("bias")
    wide = [t.double() for t in inputs]

    def explains(variant: Variant) -> bool:
        row = inputs[0].shape[-variant.axes :].numel()
        sizes = {row if parameter is None else parameter.numel() for parameter in (weight, bias)}
        if sizes != {row} or (variant.group_size and row % variant.group_size):
            return False
        want = evaluate(variant, wide, weight, bias, eps)
        if want.shape != got.shape:
            return False
        scale = want.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30)
        return bool(((got.double() - want).abs() / scale).max() < RELATIVE)

    return [v for v in _variants(weight, bias, gated=len(inputs) > 1) if explains(v)]


def evaluate(
    variant: Variant,
    inputs: list[torch.Tensor],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Return the formula of ``variant`` in the type of ``inputs``, without any rounding step."""
    x = inputs[0]
    place, _, when = variant.gate.partition(" ")
    act = _ACTIVATIONS[place](inputs[1]) if when else None
    gain = 1 + weight if "1+w" in variant.gain else weight
    if when == "before":
        x = x * act
    if variant.gain == "pre 1+w":
        x = x * gain
    y = x / root_mean_square(x, variant, eps)
    if variant.gain in ("w", "w+b", "1+w"):
        y = y * gain
    if variant.gain == "w+b":
        y = y + bias
    return y * act if when == "after" else y


def root_mean_square(x: torch.Tensor, variant: Variant, eps: float) -> torch.Tensor:
    """Return the divisor, broadcastable to ``x``."""
    if variant.group_size:
        mean = x.unflatten(-1, (-1, variant.group_size)).square().mean(-1, keepdim=True)
        mean = mean.expand(*mean.shape[:-1], variant.group_size).flatten(-2)
    else:
        mean = x.square().mean(tuple(range(-variant.axes, 0)), keepdim=True)
    if variant.epsilon == "outside":
        return mean.sqrt() + eps
    return (mean + (eps if variant.epsilon == "inside" else 0.0)).sqrt()


def _variants(
    weight: torch.Tensor | None, bias: torch.Tensor | None, *, gated: bool
) -> Iterator[Variant]:
    gains = ["none"] if weight is None else ["none", "w", "1+w", "pre 1+w"]
    gains += [] if weight is None or bias is None else ["w+b"]
    gates = ["none"]
    if gated:
        gates += [f"{a} {w}" for a in _ACTIVATIONS for w in ("after", "before")]
    axes = (1, 2) if weight is None or weight.ndim > 1 else (1,)
    groups, places = (0, GROUP), ("inside", "outside", "none")
    for parts in itertools.product(gains, gates, groups, axes, places):
        variant = Variant(*parts)
        if not (variant.group_size and variant.axes > 1):
            yield variant
