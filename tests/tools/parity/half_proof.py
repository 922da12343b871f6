"""Half precision, bit for bit: the exported node's declared order of rounding is the module's.

For a class of ``transformers`` and a half type, on the rows of ``exact_rows``:

1. the class in PyTorch gives, in every element, the bits of the exported file evaluated with each
   declared rounding step, with one of the two quotients (the same in every element);
2. so does the spec that ``replace_norms`` chooses for it, and the operator that it puts in place
   gives the bits of that spec (it divides: ``x / rms``);
3. every other order that the operator could declare gives other bits, with either quotient: the
   rows can tell, so 1 was no accident.
"""

from __future__ import annotations

import dataclasses
import math
import warnings

import numpy as np
import onnx_ir as ir
import torch
from rmsnorm_export.torch.probe.fit import Form, Rounding

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import HALF_TYPES, NormSpec
from rmsnorm_export.torch import Fit, probe_module, replace_norms
from tests.tools.corpus import build
from tests.tools.corpus.norm_classes import DTYPES, EPSILON, NormClass
from tests.tools.parity import arrays, declaration, exact_rows, orders
from tests.tools.parity.orders import QUOTIENTS, Quotient
from tests.tools.parity.variants import ELEMENT_TYPES

_COUNT = 60
_ORDINARY = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """One class in one half type.

    Attributes:
        key: of the class, as the corpus names it.
        dtype: of rows, parameters and result.
        declared: quotient with which the exported file gives the module's bits; "" for none.
        operator: the same for the operator that ``replace_norms`` would use; "" for none.
        ours: whether our operator in PyTorch gives the bits of the spec of ``replace_norms``.
        orders: other orders that could have been declared.
        confused: those of them which give the same bits: the rows cannot tell.
        members: classes with this very body whose own bits were compared as well.
        failed: those of them which have other bits.
        elements: that were compared, for each class.
        ordinary: share of equal elements on ordinary random rows, sums in any order.
        reason: why there is no operator, if so.
    """

    key: str
    dtype: str
    declared: str
    operator: str
    ours: bool
    orders: int
    confused: tuple[str, ...]
    members: int
    failed: tuple[str, ...]
    elements: int
    ordinary: float
    reason: str = ""

    @property
    def holds(self) -> bool:
        right = self.declared in QUOTIENTS and self.operator in QUOTIENTS and self.ours
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
    form, rounding, reason = fitted(module, dtype, len(norm.inputs))
    rows = _rows(norm, module, dtype, form, rounding)
    results = _call(module, rows)
    feeds = dict(zip([v.name or "" for v in model.graph.inputs], rows.values(), strict=True))
    spec = declaration.spec_of(declaration.norm_node(model))
    declared = orders.explanation(
        spec, lambda q: declaration.evaluate_file(model, feeds, q), results
    )
    given = _operator_operands(form, rounding, rows, module)
    confused, count = _confused(model, feeds, spec, rounding, given, dtype)
    operator, ours = "", True
    if rounding is not None:
        chosen = rounding.spec
        operator = orders.explanation(chosen, lambda q: orders.evaluate(chosen, given, q), results)
        with replace_norms(torch.nn.Sequential(module)):
            found = _call(module, rows)
        ours = orders.all_equal(found, orders.evaluate(chosen, given, "x / rms"))
    failed = []
    others = norm.members if members and norm.primary and not _in_front(norm) else ()
    for member in others:
        path, _, name = member.rpartition(".")
        other = build.build(
            path, name, dtype=DTYPES[dtype], eps=EPSILON, overrides=dict(norm.arguments)
        )
        if not orders.all_equal(_call(other, rows), results):
            failed.append(member)
    ordinary = build.example_inputs(
        (_ORDINARY, *norm.shape[1:]), len(norm.inputs), dtype=DTYPES[dtype], seed=5
    )
    random = dict(zip(feeds, map(arrays.array, ordinary), strict=True))
    wanted = declaration.evaluate_file(model, random, "x / rms")
    got = _call(module, random)
    equal = [
        (a.astype(np.float64) == b.astype(np.float64)).mean()
        for a, b in zip(wanted, got, strict=True)
    ]
    return Proof(
        key=norm.key,
        dtype=dtype,
        declared=declared,
        operator=operator,
        ours=ours,
        orders=count,
        confused=tuple(confused),
        members=max(1, len(others)),
        failed=tuple(failed),
        elements=sum(result.size for result in results),
        ordinary=float(np.mean(equal)),
        reason=reason,
    )


def fitted(module: torch.nn.Module, dtype: str, inputs: int) -> tuple[Form, Rounding | None, str]:
    """How the operator computes the module, with rows and parameters of ``dtype``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = probe_module(module)
    if not isinstance(fit, Fit):
        raise ValueError(f"{type(module).__name__}: {fit.reason}")
    form = next(f for f in fit.forms if f.formula.inputs == inputs)
    half = DTYPES[dtype]
    stored = half if next(module.parameters(), None) is not None else None
    reasons = [why for x, w, why in form.refused if x == half and w in (stored, None)]
    return form, form.rounding(half, stored), "; ".join(reasons)


def _weights(form: Form, module: torch.nn.Module, *, offset_first: bool) -> dict[str, Array]:
    """Gain and bias as the operator gets them."""
    formula = form.formula
    found = {}
    if formula.scale is not None and not formula.scale_in_front:
        gain = getattr(module, formula.scale).detach()
        found["weight"] = arrays.array(gain + formula.scale_offset if offset_first else gain)
    if formula.bias is not None:
        found["bias"] = arrays.array(getattr(module, formula.bias).detach())
    return found


def _rows(
    norm: NormClass, module: torch.nn.Module, dtype: str, form: Form, rounding: Rounding | None
) -> dict[str, Array]:
    """Operands in the order of ``forward``."""
    formula = form.formula
    element_type = ELEMENT_TYPES[dtype]
    row = norm.shape[formula.axis :]
    spec = rounding.spec if rounding is not None else formula.spec()
    second = "gate" if len(norm.inputs) > 1 else ""
    front = _front(form, module)
    rows = exact_rows.operands(spec, element_type, row, _COUNT, seed=9, second=second, front=front)
    normalised = rows["x"] if front is None else rows["x"] * front
    if spec.gate_first and second:
        normalised = normalised.astype(np.float64) * rows["gate"].astype(np.float64)
    if not exact_rows.sums_are_exact(normalised):
        raise AssertionError("a sum of squares is not exact")
    if spec.stash_type not in HALF_TYPES:
        weights = _weights(form, module, offset_first=bool(rounding and rounding.offset_first))
        rows = exact_rows.with_witnesses(spec, rows, weights, element_type, row, second, front)
    middle = norm.shape[1 : len(norm.shape) - len(row)]
    each = math.prod(middle)
    whole = np.resize(np.arange(len(rows["x"])), -(-len(rows["x"]) // each) * each)
    return {name: v[whole].reshape(-1, *middle, *row) for name, v in rows.items()}


def _call(module: torch.nn.Module, rows: dict[str, Array]) -> tuple[Array, ...]:
    with torch.no_grad():
        result = module(*map(arrays.tensor, rows.values()))
    results = result if isinstance(result, tuple) else (result,)
    return tuple(map(arrays.array, results))


def _confused(
    model: ir.Model,
    feeds: dict[str, Array],
    spec: NormSpec,
    rounding: Rounding | None,
    given: dict[str, Array],
    dtype: str,
) -> tuple[list[str], int]:
    """Other orders that could be declared with the same bits; and how many others there are.

    Those of the node in the file. Where casts around a float32 node declare the order, the node has
    no other: then those of the operator that ``replace_norms`` chooses.
    """
    node = declaration.norm_node(model)
    names = _operand_names(node)
    half = ELEMENT_TYPES[dtype]

    def of_file(other: NormSpec, quotient: Quotient) -> tuple[Array, ...]:
        return declaration.evaluate_file(model, feeds, quotient, other)

    def of_operator(other: NormSpec, quotient: Quotient) -> tuple[Array, ...]:
        return orders.evaluate(other, given, quotient)

    run = of_file
    operand = node.inputs[0]
    if rounding is not None and operand is not None and int(operand.dtype or half) != half:
        run, spec, names = of_operator, rounding.spec, list(given)
    weighted, biased = "weight" in names, "bias" in names
    affine = weighted or biased or spec.kind == "GatedRMSNorm"
    own = [run(spec, quotient) for quotient in orders.quotients_of(spec)]
    confused, count = [], 0
    for other in orders.orders(spec, half, weighted=weighted, biased=biased):
        if orders.same_order(other, spec, half, affine=affine):
            continue
        count += 1
        for quotient in orders.quotients_of(other):
            found = run(other, quotient)
            if any(orders.all_equal(found, mine) for mine in own):
                confused.append(str(other.non_default()))
                break
    return confused, count


def _operand_names(node: ir.Node) -> list[str]:
    names = {"RMSNorm": ("x", "weight", "bias")}.get(node.op_type, ("x", "other", "weight", "bias"))
    return [name for name, value in zip(names, node.inputs, strict=False) if value is not None]


def _front(form: Form, module: torch.nn.Module) -> Array | None:
    """The gain in front of the norm."""
    formula = form.formula
    if formula.scale is None or not formula.scale_in_front:
        return None
    return arrays.array(getattr(module, formula.scale).detach() + formula.scale_offset)


def _operator_operands(
    form: Form, rounding: Rounding | None, rows: dict[str, Array], module: torch.nn.Module
) -> dict[str, Array]:
    """What ``replace_norms`` hands to the operator."""
    given = dict(rows)
    front = _front(form, module)
    if front is not None:
        given["x"] = (given["x"] * front).astype(given["x"].dtype)
    return given | _weights(form, module, offset_first=bool(rounding and rounding.offset_first))
