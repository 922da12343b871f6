"""Class level: every RMSNorm of the installed ``transformers``, and ``torch.nn.RMSNorm``."""

from __future__ import annotations

import dataclasses
import math
import warnings

import numpy as np
import onnx_ir as ir
import torch
from rmsnorm_export.torch.probe.fit import Form, Rounding

from rmsnorm_export.op.dtypes import Array, round_to
from rmsnorm_export.op.spec import HALF_TYPES
from rmsnorm_export.torch import replace_norms
from rmsnorm_export.torch.export.export import convert
from tests.tools.corpus import build
from tests.tools.corpus.norm_classes import DTYPES, NormClass
from tests.tools.parity import arrays, half_proof, limits, onnx_models
from tests.tools.parity.measure import EAGER, OURS, Cell, Limits, drift, measure, overflow
from tests.tools.parity.truth import formula
from tests.tools.parity.variants import ELEMENT_TYPES, HALF

_ROWS = 64
SCALE = "0.02 to 20"
"""Of the rows, from first to last."""


def exported(norm: NormClass, module: torch.nn.Module, dtype: str) -> ir.Model:
    """The portable file that ``rx.export`` makes of the class, batch dynamic."""
    inputs = build.example_inputs(norm.shape, len(norm.inputs), dtype=DTYPES[dtype])
    dynamic = ({0: "batch"},) * len(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = convert(module, inputs, opset=onnx_models.OPSET, dynamic_shapes=dynamic)
    return converted.result.model


def examine(
    norm: NormClass, dtype: str, *, members: bool = True
) -> tuple[Cell, half_proof.Proof | None]:
    """One class in one type: the cell, and in half types the proof of its rounding order."""
    module = half_proof.subject(norm, dtype)
    model = exported(norm, module, dtype)
    proof = None
    if dtype in HALF:
        proof = half_proof.prove(norm, module, dtype, model, members=members)
    return _cell(norm, module, dtype, model), proof


def _cell(norm: NormClass, module: torch.nn.Module, dtype: str, model: ir.Model) -> Cell:
    form, rounding, reason = half_proof.fitted(module, dtype, len(norm.inputs))
    shape = (_ROWS, *norm.shape[1:])
    inputs = build.example_inputs(shape, len(norm.inputs), dtype=DTYPES[dtype], seed=3)
    given = {str(k): arrays.array(x) for k, x in enumerate(inputs)}
    sides, absent = {}, {}
    holder = torch.nn.Sequential(module)
    with torch.no_grad():
        sides[EAGER] = arrays.array(module(*inputs)).reshape(-1)
        with replace_norms(holder) as replacement:
            if replacement.replaced:
                sides[OURS] = arrays.array(module(*inputs)).reshape(-1)
            else:
                absent[OURS] = reason or replacement.skipped[0].reason
    files = onnx_models.for_targets(model)
    found, missing = onnx_models.run(files, given)
    sides |= {side: values[0].reshape(-1) for side, values in found.items()}
    right, bias = _truth(form, rounding, module, list(given.values()))
    magnitude = None
    if bias is not None:
        magnitude = np.maximum(np.abs(right), np.tile(np.abs(bias), right.size // bias.size))
    pairs, errors = measure(sides, right, magnitude)
    n = form.formula.group_size or math.prod(norm.shape[form.formula.axis :])
    judged, notes = None, {}
    if OURS in sides and rounding is not None:
        gate = given.get("1")
        key = (rounding.spec, ELEMENT_TYPES[dtype], n)
        scaled = form.formula.scale is not None
        options = {"scaled": scaled, "biased": bias is not None, "gate": gate}
        notes = overflow(sides, right, 1, _ROWS)
        judged = Limits(
            limits.distances(*key, files.numerics, before=errors[OURS].max, **options),
            *limits.errors(*key, errors, **options),
            drift(sides[EAGER], sides[OURS], right, _ROWS),
        )
    return Cell(
        level="class",
        subject=norm.key,
        dtype=dtype,
        n=n,
        scale=SCALE,
        elements=right.size,
        pairs=pairs,
        errors=errors,
        numerics=files.numerics,
        absent=absent | missing,
        judged=judged,
        notes=notes | {"classes": len(norm.members) if norm.primary else 1},
    )


def _truth(
    form: Form,
    rounding: Rounding | None,
    module: torch.nn.Module,
    operands: list[Array],
) -> tuple[Array, Array | None]:
    """The formula in float64, and the bias."""
    known = form.formula
    spec = known.spec()
    if rounding is not None:
        epsilon = rounding.spec.epsilon
        if rounding.spec.stash_type in HALF_TYPES:
            epsilon = float(round_to(epsilon, rounding.spec.stash_type))
        spec = dataclasses.replace(spec, epsilon=epsilon)
    weight = None if known.scale is None else _parameter(module, known.scale)
    bias = None if known.bias is None else _parameter(module, known.bias)
    x, other = operands[0], operands[1] if len(operands) > 1 else None
    if weight is not None and known.scale_in_front:
        x, weight = x.astype(np.float64) * (weight.astype(np.float64) + known.scale_offset), None
    right = formula(spec, x, weight, bias, other)[0].astype(np.float64)
    return right.reshape(-1), None if bias is None else bias.astype(np.float64).reshape(-1)


def _parameter(module: torch.nn.Module, name: str) -> Array:
    return arrays.array(getattr(module, name).detach())
