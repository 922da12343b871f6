"""The norms of one model: which of them are to be rewritten, and which stay the node they are."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rmsnorm_export.errors import UsageError
from rmsnorm_export.lower.targets import TARGETS, TargetRow
from rmsnorm_export.recognize.context import OpaqueNode
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, name_of
from rmsnorm_export.recognize.scan import Recognition, recognize
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.rewrite.inline import inline_parts
from rmsnorm_export.rewrite.options import OptimizeOptions


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Norms:
    """The norms of one model, seen from a target.

    Attributes:
        model: whose norms these are; a copy where functions had to be inlined to see them.
        types: element types and shapes of its values.
        native_parts: each norm -> itself, or the part of it, that is one node in the target's form
            already; None where none is.
        opaque: operators of the target in a form that no other target could say: no refusal.
        refusals: what looks like a norm and is none, and why.
    """

    model: ir.Model
    types: Types
    native_parts: Mapping[Match, Match | None]
    opaque: tuple[OpaqueNode, ...]
    refusals: tuple[Refusal, ...]

    def pending(self, row: TargetRow, *, keep_all_forms: bool) -> list[Match]:
        """Return the norms to lower.

        Args:
            row: the target.
            keep_all_forms: whatever is one node stays it, also where something could join it.
        """
        pending = [match for match, part in self.native_parts.items() if part is not match]
        if keep_all_forms:
            pending = [match for match in pending if self.native_parts[match] is None]
        if pending and row.shares_functions:
            chosen = frozenset(pending)
            return [m if m in chosen else part or m for m, part in self.native_parts.items()]
        return pending


def find_norms(model: ir.Model, options: OptimizeOptions) -> Norms:
    """Recognise the norms of ``model`` for the target of ``options``.

    Raises:
        UsageError: no norm has one of the names in ``options.sites``.
    """
    row = TARGETS[options.target or "portable"]
    operators = row.operators if options.target else _all_operators()
    model, recognition = _recognized(model, row, options)
    if options.sites:
        parts = dict.fromkeys(_named_nodes(recognition.matches, options.sites))
        look_alikes: tuple[Refusal, ...] = ()
    else:
        parts = {match: _native_part(match, operators) for match in recognition.matches}
        look_alikes = recognition.refusals
    opaque = [entry for entry in recognition.opaque if entry[0].op_type in operators]
    foreign = [refusal for node, refusal in recognition.opaque if node.op_type not in operators]
    if options.sites:
        foreign = [refusal for _, refusal in recognition.opaque]
    return Norms(model, recognition.types, parts, tuple(opaque), (*foreign, *look_alikes))


def _recognized(
    model: ir.Model, row: TargetRow, options: OptimizeOptions
) -> tuple[ir.Model, Recognition]:
    # What is written out anyway need not be taken in first.
    one_node = row.form == "one node"

    def recognized(candidate: ir.Model) -> Recognition:
        return recognize(
            candidate,
            fold_residual=one_node and options.fold_residual,
            fold_gate=one_node and options.fold_gate,
            fold_quantize=one_node and options.fold_quantize,
            fold_rotary=one_node and bool(options.fold_rotary),
        )

    recognition = recognized(model)
    return inline_parts(model, recognition, recognized) if one_node else (model, recognition)


def _all_operators() -> list[str]:
    return [operator for row in TARGETS.values() for operator in row.operators]


def _native_part(match: Match, operators: Sequence[str]) -> Match | None:
    """Return the norm, or the part of it, that is one of these operators already."""
    part: Match | None = match
    while part is not None and part.native not in operators:
        part = part.inner
    return part


def _named_nodes(matches: Sequence[Match], patterns: Sequence[str]) -> list[Match]:
    """Return the norms, or parts of them, that are one node of any target and have such a name.

    Raises:
        UsageError: a pattern that no such node's name fits.
    """
    operators = _all_operators()
    parts = [_native_part(match, operators) for match in matches]
    names = {part: name_of(part.nodes[-1]) for part in parts if part is not None}
    for pattern in patterns:
        if pattern != "*" and not fnmatch.filter(names.values(), pattern):
            raise UsageError(
                "No node that is an RMSNorm has this name.",
                found=repr(pattern),
                fix=f"the names are {', '.join(sorted(names.values())[:20]) or 'none'}",
            )
    return [
        part
        for part, name in names.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
