"""Norms as values of the graph: recognition hands them to lowering."""

from __future__ import annotations

import ast
import dataclasses

import onnx_ir as ir

from rmsnorm_export.op.spec import NormSpec, Quantize
from rmsnorm_export.recognize.refusal import Refusal


def module_path(node: ir.Node) -> str | None:
    """The innermost module in a node's ``pkg.torch.onnx.name_scopes``; None where there is none.

    They are the Python literal of a list: the modules from the outermost (``''``) inwards, then the
    traced operation.
    """
    text = node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]")
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        return None
    return next((scope for scope in reversed(scopes[:-1]) if scope), None)


AT_LARGEST = "that takes an infinite root to the largest number"
"""The end of an edge (see ``Match``) that float64 has as well."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """The way in which codes are made of a norm (see ``op.spec.QUANTIZE``).

    Attributes:
        how: element type of the codes, and what has a scale of its own.
        scale: one number, of any float type; None: rows have their own.
        scales: those of the rows; None: one for all.
        least: the scale of a row is at least that in the source.
        twins: the same codes or scales, of nodes that repeat what makes them, and those.
    """

    how: Quantize
    scale: ir.Value | None = None
    scales: ir.Value | None = None
    least: float = 0.0
    twins: tuple[tuple[ir.Value, ir.Value], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """The tables of the rotary embedding behind a norm (see ``op.spec``).

    Attributes:
        cos, sin: as the operator takes them.
        half_table: they have one entry for each pair.
        order: of the axes of x, which are put in this order first; () as they are.
        aliases: other values with the numbers of a table, and that table.
    """

    cos: ir.Value
    sin: ir.Value
    half_table: bool
    order: tuple[int, ...] = ()
    aliases: tuple[tuple[ir.Value, ir.Value], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A value of the graph that is an RMSNorm of another value.

    ``output == operator(x, residual | gate, scale, bias)`` under ``spec``, with every rounding step
    of the source except those listed in ``narrow``.

    Attributes:
        spec: the norm, ``spec.kind`` included, canonical for ``dtype``.
        x: input; its element type is ``dtype`` and so is that of ``output``.
        scale: the stored weight as the operator takes it (``spec.scale_offset`` not yet added),
            any float type, ``n`` elements, leading dimensions of 1 allowed; None: weightless.
        offset_scale: the value in the source that is ``scale`` with the offset added; the same as
            ``scale`` where the offset is 0.
        bias: as ``scale``, added last.
        residual: second operand of the sum (``SkipRMSNorm``).
        gate: (``GatedRMSNorm``) before the activation; the element type of ``x``.
        output: the last value of the chain, or its codes, replaced by the operator's first output.
        sum: (``SkipRMSNorm``) the value of the residual Add, replaced by the second output.
        dtype: ONNX element type T.
        n: elements in a row; None when not static.
        rank: rank of ``x``; None when unknown.
        inner: the match that this one extends (the same norm without the bias, the scale, the gate,
            the residual or the grouping; at last its row of length one), for targets that cannot
            say the whole; None at the core.
        aliases: other values with the elements of ``x`` that the nodes read too: in front of a
            widening cast, or the same Reshape written twice.
        nodes: the nodes between inputs and outputs, in graph order.
        narrow: rounding steps of the source that ``spec`` does not repeat, e.g.
            ``("mean rounded to float16",)``; () when ``spec`` is exact.
        edges: what the source does otherwise than ``spec`` at the ends of the range, where a number
            overflows or is subnormal in one and not in the other, e.g. ``("a scale that is
            multiplied with x first",)``; () when every row is the same.
        opaque_scale: the scale is computed from other values in the graph (not an initializer,
            input or a view of one), so it may depend on anything before it.
        gain: the scale is any factor that leaves the shape of x, in a node behind the norm.
        factor: what the scale is multiplied with first: 1 / sqrt(n) of an L2 norm.
        apart: why the sum that is normalised, or what makes codes of the output or turns it, is no
            part of this match, though it looks like it.
        quantized: the output is codes of the norm, and not the norm.
        rotary: (``RotaryRMSNorm``) the tables.
        native: operator type when the source already is one node, e.g. ``RMSNormalization``.
        beside: why that node can only stay: what it computes beside the norm.
        scope: ``main`` or the function or subgraph that holds the match.
    """

    spec: NormSpec
    x: ir.Value
    output: ir.Value
    dtype: int
    scale: ir.Value | None = None
    offset_scale: ir.Value | None = None
    bias: ir.Value | None = None
    residual: ir.Value | None = None
    gate: ir.Value | None = None
    sum: ir.Value | None = None
    n: int | None = None
    rank: int | None = None
    inner: Match | None = None
    aliases: tuple[ir.Value, ...] = ()
    nodes: tuple[ir.Node, ...] = ()
    narrow: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    opaque_scale: bool = False
    gain: bool = False
    factor: float = 1.0
    apart: tuple[Refusal, ...] = ()
    quantized: Quantized | None = None
    rotary: Rotary | None = None
    native: str = ""
    beside: Refusal | None = None
    scope: str = "main"

    @property
    def code_scale(self) -> ir.Value | None:
        """The one scale of the codes, where they are made with one."""
        return None if self.quantized is None else self.quantized.scale

    @property
    def cos(self) -> ir.Value | None:
        """The table of cosines."""
        return None if self.rotary is None else self.rotary.cos

    @property
    def sin(self) -> ir.Value | None:
        """The table of sines."""
        return None if self.rotary is None else self.rotary.sin

    @property
    def module(self) -> str | None:
        """Path of the PyTorch module that the norm came from, e.g. ``model.layers.0.norm``.

        Known where ``torch.onnx.export(dynamo=True)`` wrote its name scopes on the nodes.
        """
        # The embedding is of the module around that of the norm.
        norm = self if self.rotary is None or self.inner is None else self.inner
        paths = (module_path(node) for node in reversed(norm.nodes))
        return next((path for path in paths if path is not None), None)

    @property
    def spelling(self) -> str:
        """Operator types of the source nodes in order."""
        return " ".join(node.op_type for node in self.nodes)
