"""Class level: every RMSNorm of the installed ``transformers``, and ``torch.nn.RMSNorm``."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings

import numpy as np
import onnx_ir as ir
import torch

from rmsnorm_export.torch.export.export import convert
from tests.tools.corpus import build
from tests.tools.corpus.norm_classes import DTYPES, NormClass
from tests.tools.parity import arrays, declaration, float64, half_proof, limits, onnx_models
from tests.tools.parity.measure import EAGER, OURS, Cell, Limits, drift, measure, overflow
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
    cell = _cell(norm, module, dtype, model)
    # Where the file has more than the norm, or no order of the operator is that of the class, what
    # is compared is not the operator.
    whole = len(model.graph) == 1 and (proof is None or proof.declared != "x * rsqrt")
    return cell if whole else dataclasses.replace(cell, judged=None), proof


def _cell(norm: NormClass, module: torch.nn.Module, dtype: str, model: ir.Model) -> Cell:
    spec = declaration.spec_of(declaration.norm_node(model))
    shape = (_ROWS, *norm.shape[1:])
    inputs = build.example_inputs(shape, len(norm.inputs), dtype=DTYPES[dtype], seed=3)
    given = {str(k): arrays.array(x) for k, x in enumerate(inputs)}
    feeds = half_proof.feeds(model, given)
    with torch.no_grad():
        eager = arrays.array(module(*inputs)).reshape(-1)
    (ours,) = declaration.evaluate_file(model, feeds, half_proof.operator)
    sides = {EAGER: eager, OURS: ours.reshape(-1)}
    files = onnx_models.for_targets(model)
    found, missing = onnx_models.run(files, given)
    sides |= {side: values[0].reshape(-1) for side, values in found.items()}
    right = float64.run(copy.deepcopy(module), inputs).numpy().reshape(-1)
    bias = half_proof.at_node(model, feeds).get("bias")
    magnitude = None
    if bias is not None:
        terms = np.abs(bias.astype(np.float64)).reshape(-1)
        magnitude = np.maximum(np.abs(right), np.tile(terms, right.size // terms.size))
    pairs, errors = measure(sides, right, magnitude)
    n = spec.group_size or math.prod(norm.shape[spec.axis :])
    key = (spec, ELEMENT_TYPES[dtype], n)
    scaled = next(module.parameters(), None) is not None
    options = {"scaled": scaled, "biased": bias is not None, "gate": given.get("1")}
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
        absent=missing,
        judged=judged,
        notes=overflow(sides, right, 1, _ROWS)
        | {"classes": len(norm.members) if norm.primary else 1},
    )
