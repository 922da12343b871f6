"""Half precision, bit for bit: the exported node's declared order of rounding is the module's.

For a class of ``transformers`` and a half type, on the rows of ``exact_rows``:

1. the class in PyTorch gives, in every element, the bits of the exported file evaluated with each
   declared rounding step, with one of the two quotients (the same in every element);
2. our operator in PyTorch, in the place of the node, gives the bits of the file where it divides;
3. every other order that the node could declare gives other bits, with either quotient: the rows
   can tell, so 1 was no accident.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

import rmsnorm_export.torch as rt
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import HALF_TYPES, NormSpec
from rmsnorm_export.torch.export.export import convert
from rmsnorm_export.torch_options import ExportOptions
from tests.tools.corpus import build
from tests.tools.corpus.norm_classes import DTYPES, EPSILON, NormClass
from tests.tools.parity import arrays, declaration, exact_rows, orders
from tests.tools.parity.onnx_models import OPSET
from tests.tools.parity.orders import QUOTIENTS, Quotient
from tests.tools.parity.variants import ELEMENT_TYPES

_COUNT = 160
"""A multiple of 32: PyTorch rounds the rsqrt of what is left over of its vectors twice."""
_ORDINARY = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """One class in one half type.

    Attributes:
        declared: quotient with which the exported file gives the module's bits; "" for none.
        ours: whether our operator in PyTorch gives the bits of the node.
        orders: other orders that could have been declared.
        confused: those of them which give the same bits: the rows cannot tell.
        members: classes with this very body whose own bits were compared as well.
        failed: those of them which have other bits.
        ordinary: share of equal elements on ordinary random rows, sums in any order.
    """

    declared: str
    ours: bool
    orders: int
    confused: tuple[str, ...]
    members: int
    failed: tuple[str, ...]
    ordinary: float

    @property
    def holds(self) -> bool:
        right = self.declared in QUOTIENTS and self.ours
        return bool(right and not self.confused and not self.failed)


def subject(norm: NormClass, dtype: str) -> torch.nn.Module:
    """The class with random parameters; a gain in front of the norm is of powers of two.

    Such a gain multiplies exactly, so that the rows stay those of ``exact_rows``.
    """
    module, _ = norm.make(dtype)
    if _in_front(norm):
        choice = torch.tensor([0.0, 1.0, -0.5, -2.0, -3.0])  # 1 + w: 1, 2, 1/2, -1, -2
        with torch.no_grad():
            for parameter in module.parameters():
                index = torch.arange(parameter.numel()) % len(choice)
                parameter.copy_(choice[index].reshape(parameter.shape))
    return module


def _in_front(norm: NormClass) -> bool:
    return norm.variant is not None and norm.variant.gain.startswith("pre")


def exported(norm: NormClass, module: torch.nn.Module, dtype: str) -> ir.Model:
    """The portable file that ``rx.export`` makes of the class, batch dynamic."""
    inputs = build.example_inputs(norm.shape, len(norm.inputs), dtype=DTYPES[dtype])
    dynamic = ({0: "batch"},) * len(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result, _ = convert(module, inputs, ExportOptions(opset=OPSET, dynamic_shapes=dynamic))
    return result.model


def prove(
    norm: NormClass,
    module: torch.nn.Module,
    dtype: str,
    model: ir.Model,
    *,
    members: bool = True,
) -> Proof:
    """The proof for one class.

    Args:
        norm: the class.
        module: from ``subject``.
        dtype: ``float16`` or ``bfloat16``.
        model: the file that ``rx.export`` makes of it for the target ``portable``.
        members: also run the other classes with this body.
    """
    spec = declaration.spec_of(declaration.norm_node(model))
    rows = _rows(norm, dtype, model, spec)
    results = _call(module, rows)
    given = feeds(model, rows)

    def of_file(quotient: Quotient, other: NormSpec = spec) -> tuple[Array, ...]:
        return declaration.evaluate_file(
            model, given, lambda _, operands: orders.evaluate(other, operands, quotient)
        )

    confused, count = _confused(model, of_file, spec, dtype)
    ours = declaration.evaluate_file(model, given, operator)
    failed = []
    others = norm.members if members and not norm.label and not _in_front(norm) else ()
    for member in others:
        path, _, name = member.rpartition(".")
        other = build.build(
            path, name, dtype=DTYPES[dtype], eps=EPSILON, overrides=dict(norm.arguments)
        )
        if not orders.all_equal(_call(other, rows), results):
            failed.append(member)
    return Proof(
        declared=orders.explanation(spec, of_file, results),
        ours=orders.all_equal(ours, of_file("x / rms")),
        orders=count,
        confused=tuple(confused),
        members=max(1, len(others)),
        failed=tuple(failed),
        ordinary=_ordinary(norm, module, dtype, model),
    )


def operator(spec: NormSpec, operands: dict[str, Array]) -> tuple[Array, ...]:
    """Our operator in PyTorch."""
    named = {"scale" if k == "weight" else k: arrays.tensor(v) for k, v in operands.items()}
    return arrays.results(rt.call(spec, **named))


def _ordinary(norm: NormClass, module: torch.nn.Module, dtype: str, model: ir.Model) -> float:
    """Share of equal elements on random rows."""
    shape = (_ORDINARY, *norm.shape[1:])
    inputs = build.example_inputs(shape, len(norm.inputs), dtype=DTYPES[dtype], seed=5)
    random = dict(enumerate(map(arrays.array, inputs)))
    expected = declaration.evaluate_file(
        model,
        feeds(model, random),
        lambda spec, operands: orders.evaluate(spec, operands, "x / rms"),
    )
    pairs = zip(expected, _call(module, random), strict=True)
    return float(np.mean([(a.astype(np.float64) == b.astype(np.float64)).mean() for a, b in pairs]))


def feeds(model: ir.Model, rows: dict[Any, Array]) -> dict[str, Array]:
    """The arrays by the names of the graph's inputs."""
    names = [value.name or "" for value in model.graph.inputs]
    return dict(zip(names, rows.values(), strict=True))


def _rows(norm: NormClass, dtype: str, model: ir.Model, spec: NormSpec) -> dict[str, Array]:
    """Operands in the order of ``forward``."""
    element_type = ELEMENT_TYPES[dtype]
    row = norm.shape[spec.axis :]
    gated = len(norm.inputs) > 1
    ones = arrays.array(torch.ones(1, *norm.shape[1:], dtype=DTYPES[dtype]))
    there: dict[str, Array] = {}  # the operands that the node gets

    def norm_of_ones(spec: NormSpec, operands: dict[str, Array]) -> tuple[Array, ...]:
        there.update(operands)
        return orders.evaluate(spec, operands, "x / rms")

    declaration.evaluate_file(model, feeds(model, dict.fromkeys(norm.inputs, ones)), norm_of_ones)
    # A gain in front of the norm is what the node gets for rows of ones.
    front = there["x"][(0,) * (there["x"].ndim - len(row))] if _in_front(norm) else None
    rows = exact_rows.operands(spec, element_type, row, _COUNT, seed=9, gated=gated, front=front)
    normalised = rows["x"] if front is None else rows["x"] * front
    if spec.gate_first and gated:
        normalised = normalised.astype(np.float64) * rows["gate"].astype(np.float64)
    if not exact_rows.sums_are_exact(normalised):
        raise AssertionError("a sum of squares is not exact")
    if spec.stash_type not in HALF_TYPES:
        weights = {name: there[name] for name in ("weight", "bias") if name in there}
        rows = exact_rows.with_witnesses(spec, rows, weights, element_type, row, gated, front)
    middle = norm.shape[1 : len(norm.shape) - len(row)]
    each = math.prod(middle)
    whole = np.resize(np.arange(len(rows["x"])), -(-len(rows["x"]) // each) * each)
    return {name: v[whole].reshape(-1, *middle, *row) for name, v in rows.items()}


def _call(module: torch.nn.Module, rows: dict[str, Array]) -> tuple[Array, ...]:
    with torch.no_grad():
        return arrays.results(module(*map(arrays.tensor, rows.values())))


def _confused(
    model: ir.Model,
    run: Callable[[Quotient, NormSpec], tuple[Array, ...]],
    spec: NormSpec,
    dtype: str,
) -> tuple[list[str], int]:
    """Other orders that the node could declare with the same bits; and how many others there are.

    Where casts around a float32 node declare the order, the node has no other.
    """
    node = declaration.norm_node(model)
    x, names = node.inputs[0], declaration.operands_of(node, list(node.inputs))
    half = ELEMENT_TYPES[dtype]
    if x is not None and int(x.dtype or half) != half:
        return [], 0
    weighted, biased = "weight" in names, "bias" in names
    affine = weighted or biased or spec.kind == "GatedRMSNorm"
    own = [run(quotient, spec) for quotient in orders.quotients_of(spec)]
    confused, count = [], 0
    for other in orders.orders(spec, half, weighted=weighted, biased=biased):
        if orders.same_order(other, spec, half, affine=affine):
            continue
        count += 1
        for quotient in orders.quotients_of(other):
            results = run(quotient, other)
            if any(orders.all_equal(results, mine) for mine in own):
                confused.append(str(other.non_default()))
                break
    return confused, count
