"""Decide from numbers what a norm module computes.

The values come from running the module; nothing is read from its source. Every RMSNorm that can be
composed from the parts below is evaluated in float64 and compared; a module that none of them
explains is none.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.reference import reference_float64
from rmsnorm_export.op.spec import NormSpec
from toolbox.corpus.build import GROUP

RELATIVE = 2e-5
"""Bound for float32 against float64: 48 terms of 1.2e-7 each, with room for rsqrt and the gate."""


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

    def evaluate(self, inputs: list[Array], parameters: dict[str, Array], eps: float) -> Array:
        """Return the formula in float64, without any rounding step.

        Raises:
            UsageError: the operands do not fit.
        """
        activation, _, when = self.gate.partition(" ")
        gated = {"kind": "GatedRMSNorm", "activation": activation, "gate_first": when == "before"}
        spec = NormSpec(
            epsilon=eps if self.epsilon != "none" else 0.0,
            epsilon_outside=self.epsilon == "outside",
            axis=-self.axes,
            group_size=self.group_size,
            scale_offset=float(self.gain == "1+w"),
            **(gated if when else {}),
        )
        x = inputs[0] * (1 + parameters["weight"]) if self.gain == "pre 1+w" else inputs[0]
        operands = {
            "scale": parameters["weight"] if self.gain in ("w", "w+b", "1+w") else None,
            "bias": parameters["bias"] if self.gain == "w+b" else None,
            "gate": inputs[1] if when else None,
        }
        return np.asarray(reference_float64(spec, x, **operands))


def fit(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], eps: float) -> list[Variant]:
    """Return every variant that reproduces ``module(*inputs)`` in float32 within ``RELATIVE``.

    Use an ``eps`` near the mean squares, so that its place shows. One variant is the answer, none
    means that the module is no RMSNorm, several that the inputs were too poor to tell.
    """
    with torch.no_grad():
        output = module(*inputs)
    if not isinstance(output, torch.Tensor):
        return []
    parameters = {name: p.detach().double().numpy() for name, p in module.named_parameters()}
    wide = [tensor.double().numpy() for tensor in inputs]

    def explains(variant: Variant) -> bool:
        try:
            want = variant.evaluate(wide, parameters, eps)
        except (UsageError, ValueError):  # shapes that do not fit
            return False
        if want.shape != output.shape:
            return False
        scale = np.maximum(np.abs(want).max(-1, keepdims=True), 1e-30)
        return bool((np.abs(output.numpy() - want) / scale).max() < RELATIVE)

    return [v for v in _variants(parameters, gated=len(inputs) > 1) if explains(v)]


def _variants(parameters: dict[str, Array], *, gated: bool) -> Iterator[Variant]:
    gains = ["none", *(("w", "1+w", "pre 1+w") if "weight" in parameters else ())]
    gains += ["w+b"] if {"weight", "bias"} <= parameters.keys() else []
    gates = ["none"]
    if gated:
        gates += [f"{a} {w}" for a in ("silu", "sigmoid") for w in ("after", "before")]
    for parts in itertools.product(gains, gates, (0, GROUP), (1, 2), ("inside", "outside", "none")):
        variant = Variant(*parts)
        if not (variant.group_size and variant.axes > 1):
            yield variant
