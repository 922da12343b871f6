"""Half precision, bit for bit: the exported node's declared order of rounding is the module's.

For a class of ``transformers`` and a half type, on the rows of ``exact_rows``:

1. the class in PyTorch gives, in every element, the bits of the exported file evaluated with each
   declared rounding step, with one of the two quotients (the same in every element);
2. our operator in PyTorch, in the place of the node, gives the bits of the file where it divides.

That the rows can tell, so that 1 is no accident, files with another declaration show.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

import rmsnorm_export.torch as rt
from rmsnorm_export.compare.pytorch import to_array, to_tensor
from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.op.spec import BFLOAT16, DOMAIN, FLOAT16, HALF_TYPES, NormSpec
from rmsnorm_export.proof.operators import kernel_of, run_reference
from rmsnorm_export.torch.export.convert import convert
from rmsnorm_export.torch_options import ExportOptions
from tests.tools.norms import make
from tests.tools.parity import exact_rows
from tests.tools.parity.exact_rows import QUOTIENTS, Quotient
from toolbox.corpus.norm_classes import NormClass

ELEMENT_TYPES = {"float16": FLOAT16, "bfloat16": BFLOAT16}
_COUNT = 160
"""A multiple of 32: PyTorch rounds the rsqrt of what is left over of its vectors twice."""


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """One class in one half type.

    Attributes:
        declared: quotient with which the exported file gives the module's bits; "" for none.
        ours: whether our operator in PyTorch gives the bits of the node.
    """

    declared: str
    ours: bool

    @property
    def holds(self) -> bool:
        return self.declared in QUOTIENTS and self.ours


class Subject:
    """A class in a half type, its parameters random, and the portable file of it, batch dynamic.

    A gain in front of the norm is of powers of two: it multiplies exactly, so that the rows stay
    those of ``exact_rows``.
    """

    def __init__(self, norm: NormClass, dtype: str) -> None:
        self.norm, self.dtype = norm, dtype
        self.in_front = norm.scaled_before
        self.module, inputs = make(norm, dtype)
        if self.in_front:
            choice = torch.tensor([0.0, 1.0, -0.5, -2.0, -3.0])  # 1 + w: 1, 2, 1/2, -1, -2
            with torch.no_grad():
                for parameter in self.module.parameters():
                    index = torch.arange(parameter.numel()) % len(choice)
                    parameter.copy_(choice[index].reshape(parameter.shape))
        options = ExportOptions(opset=23, dynamic_shapes=({0: "batch"},) * len(inputs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = convert(self.module, inputs, options)[0].model

    @property
    def node(self) -> ir.Node:
        """Return the one norm of the file."""
        (node,) = (node for node in self.model.graph if node.domain == DOMAIN)
        return node

    def evaluated(self, rows: dict[str, Array], norm: Norm) -> tuple[Array, ...]:
        """Return the outputs of the file, with this for its norm."""
        names = [value.name or "" for value in self.model.graph.inputs]
        return evaluate_file(self.model, dict(zip(names, rows.values(), strict=True)), norm)

    def declared(self, rows: dict[str, Array], quotient: Quotient = "x / rms") -> tuple[Array, ...]:
        """Return the outputs with every rounding that the file declares."""
        return self.evaluated(
            rows, lambda spec, operands: exact_rows.evaluate(spec, operands, quotient)
        )


def prove(subject: Subject) -> Proof:
    """Return the proof for one class."""
    spec = spec_of(subject.node)
    rows = _rows(subject, spec)
    with torch.no_grad():
        results = _arrays(subject.module(*map(to_tensor, rows.values())))
    return Proof(
        declared=exact_rows.explanation(spec, lambda q: subject.declared(rows, q), results),
        ours=exact_rows.all_equal(subject.evaluated(rows, operator), subject.declared(rows)),
    )


def operator(spec: NormSpec, operands: dict[str, Array]) -> tuple[Array, ...]:
    """Our operator in PyTorch."""
    named = {"scale" if k == "weight" else k: to_tensor(v) for k, v in operands.items()}
    return _arrays(rt.call(spec, **named))


def _arrays(result: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[Array, ...]:
    return tuple(map(to_array, result if isinstance(result, tuple) else (result,)))


def _rows(subject: Subject, spec: NormSpec) -> dict[str, Array]:
    """Operands in the order of ``forward``."""
    norm, element_type = subject.norm, ELEMENT_TYPES[subject.dtype]
    row = norm.shape[spec.axis :]
    gated = len(norm.inputs) > 1
    ones = np.ones((1, *norm.shape[1:]), numpy_dtype(element_type))
    there: dict[str, Array] = {}  # the operands that the node gets

    def norm_of_ones(spec: NormSpec, operands: dict[str, Array]) -> tuple[Array, ...]:
        there.update(operands)
        return exact_rows.evaluate(spec, operands, "x / rms")

    subject.evaluated(dict.fromkeys(norm.inputs, ones), norm_of_ones)
    # A gain in front of the norm is what the node gets for rows of ones.
    front = there["x"][(0,) * (there["x"].ndim - len(row))] if subject.in_front else None
    wanted = exact_rows.Rows(spec, element_type, row, gated, front)
    rows = wanted.operands(_COUNT, seed=9)
    normalised = rows["x"] if front is None else rows["x"] * front
    if spec.gate_first and gated:
        normalised = normalised.astype(np.float64) * rows["gate"].astype(np.float64)
    if not exact_rows.sums_are_exact(normalised):
        raise AssertionError("a sum of squares is not exact")
    if spec.stash_type not in HALF_TYPES:
        weights = {name: there[name] for name in ("weight", "bias") if name in there}
        rows = wanted.with_witnesses(rows, weights)
    middle = norm.shape[1 : len(norm.shape) - len(row)]
    each = math.prod(middle)
    whole = np.resize(np.arange(len(rows["x"])), -(-len(rows["x"]) // each) * each)
    return {name: v[whole].reshape(-1, *middle, *row) for name, v in rows.items()}


# What an exported file declares: its nodes evaluated with every rounding step in its place.

Norm = Callable[[NormSpec, dict[str, Array]], tuple[Array, ...]]
"""Computes a node, from the spec that it declares and its operands by name."""


def spec_of(node: ir.Node) -> NormSpec:
    """Return the attributes of a node of this package's domain."""
    kind: Any = node.op_type
    return NormSpec.from_attributes(kind, {n: a.value for n, a in node.attributes.items()})


def operands_of(node: ir.Node, inputs: list[Any]) -> dict[str, Any]:
    """Return the operands of a norm that there are, by name."""
    second = {"SkipRMSNorm": ["residual"], "GatedRMSNorm": ["gate"]}.get(node.op_type, [])
    pairs = zip(["x", *second, "weight", "bias"], inputs, strict=False)
    return {name: value for name, value in pairs if value is not None}


def evaluate_file(model: ir.Model, feeds: Mapping[str, Array], norm: Norm) -> tuple[Array, ...]:
    """Return the outputs of a portable model: one norm, and elementwise operators around it."""
    values: dict[ir.Value | None, Array | None] = {None: None}
    values |= {value: feeds[value.name or ""] for value in model.graph.inputs}
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        values[value] = value.const_value.numpy()
    for node in model.graph:
        inputs = [values[value] for value in node.inputs]
        if node.domain == DOMAIN:
            results = norm(spec_of(node), operands_of(node, inputs))
        else:
            results = _plain(node, inputs)
        values |= dict(zip(node.outputs, results, strict=False))
    return tuple(np.asarray(values[value]) for value in model.graph.outputs)


def _plain(node: ir.Node, inputs: list[Any]) -> tuple[Array, ...]:
    if node.op_type == "Cast":
        return (inputs[0].astype(ir.DataType(node.attributes["to"].as_int()).numpy()),)
    if (kernel := kernel_of(node.domain, node.op_type)) is not None:
        results = kernel(inputs, {name: a.value for name, a in node.attributes.items()})
        return tuple(np.asarray(value) for value in results)
    named = {v.name or "": array for v, array in zip(node.inputs, inputs, strict=True) if v}
    assert node.graph is not None
    opset = node.graph.opset_imports[""]
    return tuple(run_reference(ir.serde.serialize_node(node), opset, named))
