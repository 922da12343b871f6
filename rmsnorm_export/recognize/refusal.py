"""A norm that is left as it was, and why: the one form in which every stage says so."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from rmsnorm_export.printable import one_line

if TYPE_CHECKING:
    import onnx_ir as ir

FORMERLY = "rmsnorm_export.name"
"""While fused nodes of a file are taken apart: the name of the node that its parts made up."""
ANEW = "rmsnorm_export.anew"
"""Of a norm node meanwhile: what is otherwise than in the node of the file."""

RefusalKind = Literal["norm", "look-alike", "residual", "quantizer", "rotary"]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Refusal:
    """A value that looked like an RMSNorm and was left as it was.

    Attributes:
        node: name of the node at which it stopped being one (op type if it has no name).
        op: operator type of that node.
        reason: a short stable identifier, e.g. ``epsilon-not-constant``.
        message: the reason as a sentence.
        found: what was found there.
        hint: what would have to be different, or what to do.
        scope: ``main`` or the function or subgraph.
        kind: ``norm``: an RMSNorm that was not fused, or one as far as the file tells;
            ``look-alike``: it computes something else; ``residual``: the Add in front of a norm
            that is one node stays a node of its own; ``quantizer``: so does what makes codes of
            its output; ``rotary``: so does the rotary embedding behind it.
    """

    node: str
    op: str
    reason: str
    message: str
    found: str
    hint: str
    scope: str
    kind: RefusalKind = "norm"

    def __repr__(self) -> str:
        return one_line(f"<Refusal {self.node}: {self.reason}, {self.found}>")


LOOK_ALIKES = frozenset((
    "all-axes", "axes-dropped", "clamped", "count-of-the-row", "different-numerator",
    "empty-row", "epsilon-after-inverse", "epsilon-negative", "epsilon-of-the-row",
    "exponent-not-two", "layer-norm",
    "no-normalised-row", "not-the-mean",
    "power-of-mean-square", "second-inverse", "second-root", "subtraction", "two-epsilons",
    "variance",
))  # fmt: skip
"""Reasons that say: this computes something else. Any other reason leaves an RMSNorm unfused."""

_AROUND: tuple[RefusalKind, ...] = ("quantizer", "rotary", "residual")
"""Reasons, with ``-kept`` or without, that leave what is around a norm as it is."""


def kind_of(reason: str) -> RefusalKind:
    """Return what a refusal for this reason is of (``Refusal.kind``)."""
    if reason in LOOK_ALIKES:
        return "look-alike"
    return next((kind for kind in _AROUND if reason in (kind, f"{kind}-kept")), "norm")


def refuse(
    node: ir.Node, reason: str, message: str, found: str, hint: str, scope: str = "main"
) -> Refusal:
    """The refusal of what ``node`` computes."""
    where, kind = source_name(node), kind_of(reason)
    return Refusal(where, node.op_type, reason, message, found, hint, scope, kind)


def source_name(node: ir.Node) -> str:
    """Return the name of the node in the file that a node is, or was taken from."""
    return node.metadata_props.get(FORMERLY) or name_of(node)


def name_of(node: ir.Node) -> str:
    """The node's name, or its output's where it has none."""
    if node.name:
        return node.name
    return next((v.name for v in node.outputs if v.name), node.op_type)
