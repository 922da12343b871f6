"""Module level: every variant, type, row length and scale of input."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

from rmsnorm_export.compare.pytorch import to_array, to_tensor
from rmsnorm_export.op.dtypes import Array, round_to
from rmsnorm_export.op.spec import HALF_TYPES
from rmsnorm_export.proof.bounds import Bounds
from rmsnorm_export.runtime.metrics import ulp_distance, ulp_unit
from rmsnorm_export.torch import RMSNorm
from tests.tools.parity import arrays, onnx_models
from tests.tools.parity.claims import Cell
from tests.tools.parity.limits import EAGER, OURS, limits_of, no_yardstick
from tests.tools.parity.truth import error_of, formula
from tests.tools.parity.variants import DTYPES, ELEMENT_TYPES, Operands, Variant

_SEED = 20


def make(variant: Variant, n: int, dtype: str) -> RMSNorm:
    """Return our module with random parameters."""
    shape = variant.shape(n)
    options = variant.module_options(n, dtype)
    module = RMSNorm(shape, variant.epsilon, dtype=DTYPES[dtype], **options)
    offset = bool(options.get("scale_offset"))
    with torch.no_grad():
        for seed, (name, parameter) in enumerate(module.named_parameters()):
            around_zero = name == "bias" or offset
            value = arrays.weight(ELEMENT_TYPES[dtype], shape, seed=seed, offset=around_zero)
            parameter.copy_(to_tensor(value))
    return module


def operands(
    variant: Variant, n: int, dtype: str, elements: int
) -> tuple[dict[str, Array], dict[str, int]]:
    """Return inputs by name, all scales one below the other, and the rows of each scale."""
    shape = (-1, *variant.shape(n))
    blocks = arrays.rows(ELEMENT_TYPES[dtype], n, seed=_SEED, elements=elements)
    x = np.concatenate(list(blocks.values()))
    inputs = {"x": x.reshape(shape)}
    if variant.second == "gate":
        values = np.random.default_rng([_SEED, 2, n]).normal(size=x.shape) * 2
        inputs["other"] = values.astype(x.dtype).reshape(shape)
    if variant.second == "residual":
        # Of the same scale, so that the sum is rounded; no second NaN or infinity.
        more = arrays.rows(ELEMENT_TYPES[dtype], n, seed=_SEED + 1, elements=elements)
        more |= {scale: np.zeros_like(more[scale]) for scale in ("zeros", "nan", "inf")}
        inputs["other"] = np.concatenate(list(more.values())).reshape(shape)
    return inputs, {scale: len(block) for scale, block in blocks.items()}


def cells(variant: Variant, n: int, dtype: str, *, elements: int) -> Iterator[Cell]:
    """Yield one cell for each scale of input, of about so many ``elements``."""
    module, element_type = make(variant, n, dtype), ELEMENT_TYPES[dtype]
    inputs, counts = operands(variant, n, dtype, elements)
    tensors = {name: to_tensor(value) for name, value in inputs.items()}
    x, other = tensors["x"], tensors.get("other")
    with torch.no_grad():
        of_eager = Operands(x, module.weight, module.bias, other, variant.shape(n))
        eager = variant.eager(of_eager)
        ours = module(*tensors.values())
    weights = {name: to_array(p) for name, p in module.named_parameters()}
    files = onnx_models.single(module.spec, inputs, weights)
    runtime, absent = onnx_models.run(files, inputs)
    results = {EAGER: arrays.results(eager), OURS: arrays.results(ours), **runtime}
    bias, spec = weights.get("bias"), module.spec
    if spec.stash_type in HALF_TYPES and element_type in HALF_TYPES:  # it holds a rounded epsilon
        epsilon = float(round_to(spec.epsilon, spec.stash_type))
        spec = dataclasses.replace(spec, epsilon=epsilon)
    site = Bounds(spec, element_type, n, variant.weight, variant.bias)
    exact = formula(spec, inputs["x"], weights.get("weight"), bias, inputs.get("other"))
    start = 0
    for scale, count in counts.items():
        rows = slice(start, start + count)
        start += count
        sides = {side: _flat([v[rows] for v in values]) for side, values in results.items()}
        right = _flat([v[rows] for v in exact])
        magnitude = None
        if bias is not None:
            repeated = np.tile(bias.astype(right.dtype).reshape(-1), right.size // bias.size)
            magnitude = np.maximum(np.abs(right), np.abs(repeated))
        errors = {
            side: float(error_of(value, right, magnitude).max(initial=0.0))
            for side, value in sides.items()
        }
        distances = {side: distance(sides[OURS], sides[side], magnitude) for side in runtime}
        judged, drift = None, (0.0, 0.0)
        if not no_yardstick(spec, element_type, scale):
            gate = inputs["other"][rows] if variant.second == "gate" else None
            judged = limits_of(site, files.numerics, errors, gate)
            drift = _drift(sides[EAGER], sides[OURS], right, count * len(exact))
            lost = _overflown(sides[OURS], right, len(exact), count)
            if lost.any():
                rest = {side: value[~lost] for side, value in sides.items()}
                distances = {side: distance(rest[OURS], rest[side]) for side in runtime}
        yield Cell(variant.name, dtype, n, scale, distances, errors, absent, judged, drift)


def _flat(values: list[Array]) -> Array:
    return np.concatenate([value.reshape(-1) for value in values])


def distance(a: Array, b: Array, magnitude: Array | None = None) -> float:
    """Return the largest distance in ulp; infinite where NaN or infinity is on one side only.

    Args:
        a, b: of one type.
        magnitude: numbers whose ulp is the unit, where a sum with a bias may cancel.
    """
    steps = ulp_distance(a, b)
    if magnitude is not None and steps.any():
        with np.errstate(all="ignore"):
            apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
            apart = apart / ulp_unit(a.dtype, magnitude.astype(np.float64))
        steps = np.where(np.isfinite(steps) & (steps != 0), apart, steps)
    return float(steps.max(initial=0.0))


def _overflown(ours: Array, truth: Array, outputs: int, rows: int) -> Array:
    """Elements of rows in which a half type cannot hold an intermediate.

    PyTorch's answer is then infinite (after a sum the whole row is lost), that of ONNX Runtime's
    CPU, which keeps such an intermediate in float32, is not.
    """
    finite = np.isfinite(truth)
    if outputs == 1:  # what no side can hold is no loss
        with np.errstate(over="ignore"):
            finite &= np.isfinite(truth.astype(ours.dtype))
    lost = (~np.isfinite(ours) & finite).reshape(outputs, rows, -1)
    if ours.dtype.itemsize > 2:
        lost[:] = False
    return np.broadcast_to(lost.any(axis=(0, 2))[None, :, None], lost.shape).reshape(-1)


def _drift(eager: Array, ours: Array, truth: Array, rows: int) -> tuple[float, float]:
    """The elements of a row share a root mean square, so rows are what is independent."""
    apart = error_of(ours, truth) - error_of(eager, truth)
    by_row = np.where(np.isfinite(apart), apart, 0.0).reshape(rows, -1).sum(-1)
    return float(by_row.sum()), float(np.square(by_row).sum())
