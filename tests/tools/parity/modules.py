"""Module level: every variant, type, row length and scale of input."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

from rmsnorm_export.op.dtypes import Array, round_to
from rmsnorm_export.op.spec import HALF_TYPES, NormSpec
from rmsnorm_export.torch import RMSNorm
from tests.tools.parity import arrays, limits, onnx_models
from tests.tools.parity.measure import (
    EAGER,
    OURS,
    RUNTIMES,
    Cell,
    Limits,
    distance,
    drift,
    error,
    overflow,
)
from tests.tools.parity.truth import formula
from tests.tools.parity.variants import DTYPES, ELEMENT_TYPES, Operands, Variant

_SEED = 20


def make(variant: Variant, n: int, dtype: str) -> RMSNorm:
    """Our module with random parameters."""
    shape = variant.shape(n)
    options = variant.module_options(n, dtype)
    module = RMSNorm(shape, variant.epsilon, dtype=DTYPES[dtype], **options)
    element_type = ELEMENT_TYPES[dtype]
    offset = bool(options.get("scale_offset"))
    with torch.no_grad():
        for seed, (name, parameter) in enumerate(module.named_parameters()):
            around_zero = name == "bias" or offset
            value = arrays.weight(element_type, shape, seed=seed, offset=around_zero)
            parameter.copy_(arrays.tensor(value))
    return module


def operands(
    variant: Variant, n: int, dtype: str, elements: int
) -> tuple[dict[str, Array], dict[str, int]]:
    """Inputs by name, all scales one below the other, and the rows that each scale has."""
    shape = variant.shape(n)
    element_type = ELEMENT_TYPES[dtype]
    blocks = arrays.rows(element_type, n, seed=_SEED, elements=elements)
    counts = {scale: len(block) for scale, block in blocks.items()}
    x = np.concatenate(list(blocks.values()))
    found = {"x": x.reshape(-1, *shape)}
    if variant.second == "gate":
        values = np.random.default_rng([_SEED, 2, n]).normal(size=x.shape) * 2
        found["other"] = values.astype(x.dtype).reshape(-1, *shape)
    if variant.second == "residual":
        # Of the same scale, so that the sum is rounded; no second NaN or infinity.
        blocks = arrays.rows(element_type, n, seed=_SEED + 1, elements=elements)
        blocks |= {scale: np.zeros_like(blocks[scale]) for scale in ("zeros", "nan", "inf")}
        found["other"] = np.concatenate(list(blocks.values())).reshape(-1, *shape)
    return found, counts


def stated(spec: NormSpec, dtype: str) -> NormSpec:
    """``spec`` with the epsilon that the operator really has: rounded to a half stash type."""
    if spec.stash_type not in HALF_TYPES or ELEMENT_TYPES[dtype] not in HALF_TYPES:
        return spec
    return dataclasses.replace(spec, epsilon=float(round_to(spec.epsilon, spec.stash_type)))


def cells(variant: Variant, n: int, dtype: str, *, elements: int) -> Iterator[Cell]:
    """One cell per scale of input.

    Args:
        elements: of each scale, about.
    """
    module = make(variant, n, dtype)
    given, counts = operands(variant, n, dtype, elements)
    tensors = {name: arrays.tensor(value) for name, value in given.items()}
    other = tensors.get("other")
    with torch.no_grad():
        eager = variant.eager(
            Operands(tensors["x"], module.weight, module.bias, other, variant.shape(n))
        )
        ours = module(tensors["x"], *(() if other is None else (other,)))
    results = {EAGER: _arrays(eager), OURS: _arrays(ours)}
    weights = {name: arrays.array(p) for name, p in module.named_parameters()}
    files = onnx_models.single(module.spec, given, weights)
    found, absent = onnx_models.run(files, given)
    results |= found
    bias = weights.get("bias")
    spec = stated(module.spec, dtype)
    exact = formula(spec, given["x"], weights.get("weight"), bias, given.get("other"))
    start = 0
    for scale, count in counts.items():
        rows = slice(start, start + count)
        start += count
        sides = {side: _flat([v[rows] for v in values]) for side, values in results.items()}
        right = _flat([v[rows] for v in exact])
        magnitude = None
        if bias is not None:
            magnitude = np.maximum(np.abs(right), np.abs(_repeat(bias, right)))
        distances = {
            side: distance(sides[OURS], value, magnitude)
            for side, value in sides.items()
            if side in RUNTIMES
        }
        errors = {side: error(value, right, magnitude) for side, value in sides.items()}
        gate = given["other"][rows] if variant.second == "gate" else None
        options = {"scaled": variant.weight, "biased": variant.bias, "gate": gate}
        judged: Limits | None = None
        beside: dict[str, float] = {}
        if not limits.no_yardstick(spec, ELEMENT_TYPES[dtype], scale):
            key = (spec, ELEMENT_TYPES[dtype], n)
            before = errors[OURS].max
            beside = overflow(sides, right, len(exact), count)
            judged = Limits(
                limits.distances(*key, files.numerics, before=before, **options),
                limits.errors(*key, errors, **options),
                drift(sides[EAGER], sides[OURS], right, count * len(exact)),
            )
        yield Cell(
            subject=variant.name,
            dtype=dtype,
            n=n,
            scale=scale,
            distances=distances,
            errors=errors,
            numerics=files.numerics,
            absent=absent,
            judged=judged,
            beside=beside,
        )


def _arrays(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[Array]:
    tensors = result if isinstance(result, tuple) else (result,)
    return [arrays.array(tensor) for tensor in tensors]


def _flat(values: list[Array]) -> Array:
    return np.concatenate([value.reshape(-1) for value in values])


def _repeat(bias: Array, right: Array) -> Array:
    return np.tile(bias.astype(right.dtype).reshape(-1), right.size // bias.size)
