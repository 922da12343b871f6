"""The norms of a model, and what becomes of each: new nodes, a refusal, or the node that it is."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Literal

import onnx_ir as ir

from rmsnorm_export.audit.audit import audited
from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.functions import inline
from rmsnorm_export.graph.names import Names
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.graph.order import nodes_of
from rmsnorm_export.lower.lower import LowerContext, Lowered
from rmsnorm_export.lower.plain import is_written
from rmsnorm_export.lower.scales import lower_all
from rmsnorm_export.lower.targets import TARGETS, TargetRow
from rmsnorm_export.op.dtypes import round_to
from rmsnorm_export.op.spec import DOMAIN, FLOAT16, HALF_TYPES
from rmsnorm_export.printable import plural
from rmsnorm_export.recognize.consts import depends_on_caller
from rmsnorm_export.recognize.finish import Fold
from rmsnorm_export.recognize.functions import callees_first, is_own
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, name_of, refuse
from rmsnorm_export.recognize.scan import Recognition, could_be_part, recognize
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.rewrite.options import OptimizeOptions

_ALL_FORMS = [operator for row in TARGETS.values() for operator in row.operators]

_MOST_ROUNDS = 4
"""Functions around one another of which each holds a part of one norm."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The norms of one model, and what becomes of each.

    Attributes:
        model: not changed yet, but for the types of operands that the file does not say; a copy
            where functions had to be inlined to see the norms.
        types: element types and shapes of its values.
        names: gives unique names in it.
        sites: norms with their new nodes.
        kept: norms that are in the target's form, and stay in it; some of them are written anew and
            in ``sites`` as well.
        refusals: why other nodes are left alone.
        unfolded: why the residual sums before ``kept``, and the quantizers after them, are no part
            of them; those of ``sites`` are in ``Lowered.unfolded``.
        in_half: the innermost norm of each that the source computes in float16.
    """

    model: ir.Model
    types: Types
    names: Names
    sites: tuple[Lowered, ...]
    kept: tuple[Match, ...]
    refusals: tuple[Refusal, ...]
    unfolded: tuple[Refusal, ...]
    in_half: tuple[Match, ...] = ()

    def still_in_half(self) -> int:
        """Count the norms whose squares are float16 after the rewrite, too."""
        wider = {_parts(s.part)[-1] for s in self.sites if s.numerics in ("upcast", "unclamped")}
        return sum(match not in wider for match in self.in_half)

    def without(self, refused: Mapping[Lowered, Refusal]) -> Plan:
        """Return the plan with these sites refused and their new nodes given up."""
        for site in refused:
            site.discard()
        return dataclasses.replace(
            self,
            sites=tuple(site for site in self.sites if site not in refused),
            refusals=(*self.refusals, *refused.values()),
        )


def plan_rewrite(model: ir.Model, options: OptimizeOptions) -> Plan:
    """Recognise the norms of ``model``, and lower those that are not in the target's form.

    Raises:
        UsageError: no norm has one of the names in ``options.sites``.
    """
    row = TARGETS[options.target or "portable"]
    operators = row.operators if options.target else _ALL_FORMS
    model, recognition = _recognized(model, row, options)
    if options.epsilon is not None:
        recognition = _with_epsilon(recognition, options.epsilon, options.sites)
    names, types = Names(model), recognition.types
    refusals = [*recognition.opaque]
    # Each norm -> itself, or the part of it, that is one node in the target's form already.
    parts = {match: _fused_part(match, operators) for match in recognition.matches}
    allowed = None
    if options.sites and row.form != "one node":  # it has no operators
        named = {
            part: [name_of(part.nodes[-1])]
            for match in parts
            if (part := _fused_part(match, _ALL_FORMS)) is not None
        }
        parts = dict.fromkeys(_named(named, options.sites))
    else:
        found, told = audited(model, recognition)
        parts |= dict.fromkeys(found)
        refusals += told
    if options.sites and row.form == "one node":
        named = {match: _site_names(match) for match in parts}
        allowed = {match.output for match in _named(named, options.sites)}
    pending = _pending(parts, row, keep_all=options.target is None)
    _type_operands(types, pending)
    taken = _names_in_use(model, pending)
    opset, runtime = default_opset(model), options.consumer
    context = LowerContext(options.numerics, names, opset, types, taken, allowed, runtime)
    outcomes = dict(zip(pending, lower_all(pending, row, context), strict=True))
    sites: list[Lowered] = []
    kept: list[Match] = []
    unfolded: list[Refusal] = []
    for match, part in parts.items():
        outcome = outcomes.get(match) or outcomes.get(part or match)
        if row.form != "one node" and isinstance(outcome, Lowered) and is_written(outcome):
            part = outcome.part
        fate = _fate(match, part, outcome, row)
        if isinstance(outcome, Refusal):
            if fate == "refused":
                refusals.append(outcome)
                continue
            outcome = None
        node = outcome.part if outcome is not None and fate != "kept" else part or match
        left = _unfolded(match, node, () if outcome is None else outcome.unfolded, row)
        if fate != "kept" and outcome is not None:
            sites.append(dataclasses.replace(outcome, unfolded=tuple(left)))
        else:
            unfolded += left
            if outcome is not None:
                outcome.discard()
        if fate != "fused":
            kept.append(node)
    ends = tuple(sites), tuple(kept), tuple(refusals), tuple(unfolded)
    in_half = tuple(_parts(m)[-1] for m in parts if m.spec.stash_type == FLOAT16)
    return Plan(model, types, names, *ends, in_half)


def _fate(
    match: Match, part: Match | None, outcome: Lowered | Refusal | None, row: TargetRow
) -> Literal["refused", "fused", "rewritten", "kept"]:
    """Return what becomes of a norm, of which ``part`` is in the target's form already.

    ========= ======================================================================
    refused   it stays as it is: not one node, and the target cannot express it
    fused     one node takes its place, or the place of ``part`` and of more of the norm
    rewritten ``part`` stays one node, and is written anew with all that share its function
    kept      ``part`` stays as it is
    ========= ======================================================================
    """
    if isinstance(outcome, Lowered) and (part is None or _holds_more(outcome, match, part)):
        return "fused"
    if outcome is None or (part is not None and not row.shares_functions):
        return "kept"
    return "rewritten" if isinstance(outcome, Lowered) else "refused"


def _holds_more(lowered: Lowered, match: Match, part: Match) -> bool:
    """Return whether new nodes have more of a norm than ``part``; Casts around both are no more."""
    casts = any(node.op_type == "Cast" for node in lowered.nodes)
    return part in _parts(lowered.part)[1:] and (part.dtype == match.dtype or not casts)


def _recognized(
    model: ir.Model, row: TargetRow, options: OptimizeOptions
) -> tuple[ir.Model, Recognition]:
    """Return the norms of a model, or of a copy without the functions that hold parts of norms.

    Exporters write an ATen operator or a Python function as a function of the model: a square here,
    a mean there, epsilon handed over. They go where that finds more norms; a function that holds a
    whole norm stays.
    """
    one_node = row.form == "one node"  # a part that is written out anyway need not be folded first
    choices: dict[Fold, bool | None] = {
        "residual": options.fold_residual, "gate": True,
        "codes": options.fold_quantize, "rotary": options.fold_rotary,
    }  # fmt: skip
    folds = [fold for fold, is_chosen in choices.items() if is_chosen and one_node]
    recognition = recognize(model, folds)
    if not (one_node and recognition.crossed):
        return model, recognition
    parts = {key for key, f in model.functions.items() if could_be_part(f)}
    inlined, more = model, recognition
    for _ in range(_MOST_ROUNDS):
        parts |= more.crossed
        for key in callees_first(model):
            # An attribute that is handed on has its number further out.
            handed_on = filter(depends_on_caller, model.functions[key].all_nodes())
            if not parts.isdisjoint(node.op_identifier() for node in handed_on):
                parts.add(key)
        try:
            inlined = inline(model.clone(), parts)
        except ValueError:
            break
        more = recognize(inlined, folds)
        if more.crossed <= parts:
            break
    if len(more.matches) > len(recognition.matches):
        return inlined, more
    # Two calls are one function in the file, and names that it does not have are of the second.
    names = set(map(name_of, nodes_of(model)))
    known = {(refusal.node, refusal.reason) for refusal in recognition.told.values()}
    told = {
        candidate: refusal
        for candidate, refusal in more.told.items()
        if refusal.node in names and (refusal.node, refusal.reason) not in known
    }
    return model, dataclasses.replace(recognition, told={**told, **recognition.told})


def _with_epsilon(recognition: Recognition, epsilon: float, patterns: Sequence[str]) -> Recognition:
    """Return a recognition in which half norms without an epsilon have this one.

    Raises:
        UsageError: there are none, or none of these names.
    """

    def restored(match: Match) -> Match:
        spec = dataclasses.replace(match.spec, epsilon=epsilon)
        inner = None if match.inner is None else restored(match.inner)
        narrow = (*match.narrow, "an epsilon of 0")
        return dataclasses.replace(match, spec=spec, inner=inner, narrow=narrow, native="")

    every = {match: _site_names(match) for match in recognition.matches}
    without = {
        match
        for match in (_named(every, patterns) if patterns else every)
        if match.dtype in HALF_TYPES and not round_to(match.spec.epsilon, match.spec.stash_type)
    }
    if not without:
        found = f"{plural(len(every), 'norm')}, {plural(len(patterns), 'name')} given by --site"
        fix = "omit --epsilon, which changes no epsilon that the file has"
        raise UsageError("No half precision norm lacks an epsilon.", found=found, fix=fix)
    matches = (restored(one) if one in without else one for one in recognition.matches)
    return dataclasses.replace(recognition, matches=tuple(matches))


def _parts(match: Match) -> list[Match]:
    """Return the norm and the parts of it that are norms, the largest first."""
    return [match, *([] if match.inner is None else _parts(match.inner))]


def _fused_part(match: Match, operators: Sequence[str]) -> Match | None:
    """Return the norm, or the part of it, that is one of these operators already."""
    return next((part for part in _parts(match) if part.native in operators), None)


def _site_names(match: Match) -> list[str]:
    """Return the names of a norm: of its module, its last node and the new node."""
    names = [name for name in (match.module, name_of(match.nodes[-1])) if name]
    return [*names, *(f"{name}/{match.spec.kind}" for name in names)]


def _named(names: Mapping[Match, Sequence[str]], patterns: Sequence[str]) -> list[Match]:
    """Return the norms of which a name fits a pattern.

    Raises:
        UsageError: a pattern that no name fits.
    """
    every = sorted({name for some in names.values() for name in some if name})
    chosen: set[str] = set()
    for pattern in patterns:
        fitting = fnmatch.filter(every, pattern)
        chosen.update(fitting)
        if pattern != "*" and not fitting:
            found = repr(pattern)
            fix = f"the names are {', '.join(every[:20])}" if every else "omit --site: it has none"
            raise UsageError("No node that is an RMSNorm has this name.", found=found, fix=fix)
    return [match for match, some in names.items() if not chosen.isdisjoint(some)]


def _pending(parts: Mapping[Match, Match | None], row: TargetRow, *, keep_all: bool) -> list[Match]:
    """Return the norms to lower.

    Args:
        parts: each norm -> the part of it that is one node already.
        row: the target.
        keep_all: whatever is one node stays it, also where something could join it.
    """
    kept = {m for m, part in parts.items() if part is m or (part is not None and keep_all)}
    if len(kept) < len(parts) and row.shares_functions:
        return [parts[match] or match if match in kept else match for match in parts]
    return [match for match in parts if match not in kept]


def _unfolded(match: Match, node: Match, more: Sequence[Refusal], row: TargetRow) -> list[Refusal]:
    """Return why neighbours of a norm are no part of its node.

    Args:
        match: the norm with all that could be in its node.
        node: the part of it that is in the node.
        more: reasons of the target.
        row: the target.
    """
    if row.form != "one node":
        return []
    reasons = {refusal.kind: refusal for refusal in (*match.apart, *more)}
    if match.sum is not None and (add := match.sum.producer()) is not None:
        message = "the residual Add is not folded: the norm is one node without it"
        found = f"{match.nodes[-1].op_type} {name_of(match.nodes[-1])!r}"
        hint = "optimize the file for a target whose operator takes it in"
        unfolded = refuse(add, "residual-kept", message, found, hint, match.scope)
        reasons.setdefault("residual", unfolded)
    inside = {"residual": node.residual, "quantizer": node.quantized, "rotary": node.rotary}
    return [refusal for kind, refusal in reasons.items() if inside.get(kind) is None]


def _type_operands(types: Types, matches: Sequence[Match]) -> None:
    """Set the types of operands where they are known, as proofs and runtimes read the values."""
    for match in matches:
        weights = (match.scale, match.offset_scale, match.bias)
        for value in (match.x, *weights, match.gate, match.residual, match.cos, match.sin):
            if value is not None and value.dtype is None:
                dtype = types.dtype(value)
                value.type = None if dtype is None else ir.TensorType(dtype)


def _names_in_use(model: ir.Model, matches: Sequence[Match]) -> set[str]:
    """Return the operator names of this package's domain that nodes or functions keep."""
    functions = model.functions.values()
    names = {one.name for one in functions if one.domain == DOMAIN and not is_own(one)}
    if DOMAIN in model.opset_imports:
        replaced = {match.nodes[-1] for match in matches}
        nodes = nodes_of(model)
        names.update(n.op_type for n in nodes if n.domain == DOMAIN and n not in replaced)
    return names
