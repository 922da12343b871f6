"""What lowering hands to rewriting."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.recognize.match import Match


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """New nodes for one match, not yet in any graph.

    Attributes:
        nodes: in topological order; their inputs are values of the graph, of ``initializers`` or of
            earlier nodes here.
        replace: pairs (value of the graph, new value that takes all its uses).
        initializers: new constants that the nodes need (value with ``const_value`` set).
        numerics: class of this rewrite.
        functions: model-local functions that the nodes call.
        min_opset: lowest version of the default domain that knows the new nodes; 0: any.
        notes: what the user may want to know about this site.
        part: the match that the nodes replace: the one asked for, or one inside it.
    """

    nodes: Sequence[ir.Node]
    replace: Sequence[tuple[ir.Value, ir.Value]]
    numerics: Numerics
    initializers: Sequence[ir.Value] = ()
    functions: Sequence[ir.Function] = ()
    min_opset: int = 0
    notes: Sequence[str] = ()
    part: Match | None = None
