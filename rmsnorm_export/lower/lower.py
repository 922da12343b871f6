"""The interface of a target: a match becomes nodes, or a refusal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from rmsnorm_export.op.numerics import NUMERICS_ORDER, Numerics
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, refuse
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.consumers import Consumer

Names = Callable[[str], str]
"""Takes a wish, returns a name that no value and no node of the model has."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LowerContext:
    """The facts of a model that a target needs, besides its norms.

    Attributes:
        numerics: the loosest class allowed.
        names: gives unique names.
        opset: version of the default domain in the model.
        types: element types and shapes.
        taken: operator names in this package's domain that are in use for something else.
        sites: outputs of the norms for which ``numerics`` is allowed, the others may at most be
            ``reordered``; None: for all.
        runtime: that is to run the result; None: any.
        shared: constants that several sites read, by their contents and place.
    """

    numerics: Numerics
    names: Names
    opset: int
    types: Types
    taken: Collection[str] = ()
    sites: Collection[ir.Value] | None = None
    runtime: Consumer | None = None
    shared: dict[Hashable, ir.Value] = dataclasses.field(default_factory=dict)

    def of(self, match: Match) -> LowerContext:
        """Return the same with the class that is allowed for one norm."""
        if self.sites is None or match.output in self.sites or not self.allows("upcast"):
            return self
        return dataclasses.replace(self, numerics="reordered")

    def allows(self, numerics: Numerics) -> bool:
        """Return whether a rewrite of this class is allowed."""
        return NUMERICS_ORDER.index(numerics) <= NUMERICS_ORDER.index(self.numerics)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """New nodes for one match, not yet in any graph.

    Attributes:
        nodes: in topological order; their inputs are values of the graph, of ``initializers`` or of
            earlier nodes here.
        replace: pairs (value of the graph, new value that takes all its uses).
        numerics: class of this rewrite.
        on_cpu: the class that ONNX Runtime's CPU kernels keep, by which proofs run it, where that
            is looser.
        part: the match that the nodes replace: the one asked for, or one inside it.
        initializers: new constants that the nodes need (value with ``const_value`` set).
        functions: model-local functions that the nodes call.
        min_opset: lowest version of the default domain that knows the new nodes; 0: any.
        notes: for the user, about this site.
        unfolded: why the residual Add, or the quantizer of the norm, stays a node of its own.
        alone: makes the nodes of the norm alone, without its quantizer or rotary embedding: for
            proofs.
    """

    nodes: Sequence[ir.Node]
    replace: Sequence[tuple[ir.Value, ir.Value]]
    numerics: Numerics
    part: Match
    initializers: Sequence[ir.Value] = ()
    functions: Sequence[ir.Function] = ()
    min_opset: int = 0
    notes: Sequence[str] = ()
    unfolded: tuple[Refusal, ...] = ()
    alone: Callable[[], Lowered] | None = None
    on_cpu: Numerics | None = None

    def discard(self) -> None:
        """Unhook nodes that were never inserted: they must not count as uses."""
        for node in self.nodes:
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)


def strictest(match: Match) -> tuple[Numerics, str]:
    """Return the class of a node with the rounding steps of ``match`` and no others; and why."""
    what = match.narrow or match.edges
    why = f"the source has {', '.join(what)}; the new node has not"
    if match.narrow:
        return "upcast", why
    why = f"where a number overflows or vanishes on the way the result may differ: {why}"
    return ("reordered", why) if match.edges else ("exact", "")


Lowering: TypeAlias = Callable[[Sequence[Match], LowerContext], "list[Lowered | Refusal]"]
"""The function ``lower`` of a target's module: for every match of a model new nodes, or why not."""


def refuse_match(
    match: Match, reason: str, message: str, found: str, hint: str = "use the portable target"
) -> Refusal:
    """Return the refusal of the whole match, at the node that produces its output."""
    node = match.output.producer() or match.nodes[-1]
    return refuse(node, reason, message, found, hint, match.scope)
