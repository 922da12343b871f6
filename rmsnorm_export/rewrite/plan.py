"""What is to be done with one model: its norms found, the new nodes made, nothing applied."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.graph.opset import default_opset, raise_opset
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.lower.lower import LowerContext, Lowered, lower_all, refuse_match
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.recognize.context import OpaqueNode
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, name_of, refuse
from rmsnorm_export.recognize.scan import Recognition, foreign_functions, recognize
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.rewrite.apply import Names, discard
from rmsnorm_export.rewrite.inline import inline_parts
from rmsnorm_export.rewrite.options import OptimizeOptions


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The norms of one model, and what becomes of each.

    Attributes:
        model: not changed yet, but for the types of operands that the file does not say.
        types: element types and shapes of its values.
        names: gives unique names in it.
        sites: norms with the nodes that will take their place.
        kept: norms that are one node in the target's form and stay as they are.
        rewritten: those of ``sites`` whose norm was one node in the target's form.
        opaque: operators of the target in a form that no other target could say: no refusal.
        refusals: what is left alone, and why.
        unfolded: the residual sums in front of ``kept`` and what makes codes behind them, and why
            they are no part of them; those of ``sites`` are there (``Lowered.apart``).
    """

    model: ir.Model
    types: Types
    names: Names
    sites: tuple[Lowered, ...]
    kept: tuple[Match, ...]
    rewritten: tuple[Lowered, ...]
    opaque: tuple[OpaqueNode, ...]
    refusals: tuple[Refusal, ...]
    unfolded: tuple[Refusal, ...]

    def without(self, refused: Mapping[Lowered, Refusal]) -> Plan:
        """The plan with refusals in the place of these sites, whose new nodes are given up."""
        for site in refused:
            discard(site)
        return dataclasses.replace(
            self,
            sites=tuple(site for site in self.sites if site not in refused),
            refusals=(*self.refusals, *refused.values()),
        )


def make_plan(model: ir.Model, options: OptimizeOptions) -> Plan:
    """Find the norms of ``model`` and make the nodes that could take their place."""
    row = TARGETS[options.target or "portable"]
    # Without a target the own form of every one is kept.
    rows = (row,) if options.target else tuple(TARGETS.values())
    operators = [operator for kept in rows for operator in kept.operators]
    # What is written out anyway need not be taken in first.
    one = row.form == "one node"

    def recognized(given: ir.Model) -> Recognition:
        return recognize(
            given,
            fold_residual=one and options.fold_residual,
            fold_gate=one and options.fold_gate,
            fold_quantize=one and options.fold_quantize,
            fold_rotary=one and bool(options.fold_rotary),
        )

    recognition = recognized(model)
    if one:
        model, recognition = inline_parts(model, recognition, recognized)
    opaque = [entry for entry in recognition.opaque if entry[0].op_type in operators]
    refusals = [refusal for node, refusal in recognition.opaque if node.op_type not in operators]
    refusals += recognition.refusals
    parts = {match: _part_in_form(match, operators) for match in recognition.matches}
    if options.sites:
        parts = dict.fromkeys(_chosen_nodes(recognition.matches, options.sites))
        refusals = [refusal for _, refusal in recognition.opaque]
    todo = [match for match, part in parts.items() if part is not match]
    if not options.target:
        todo = [match for match in todo if parts[match] is None]
    if todo and row.shares_functions:
        chosen = frozenset(todo)
        todo = [match if match in chosen else parts[match] or match for match in parts]
    _type_operands(recognition.types, todo)
    names = Names(model)
    outcomes = lower_all(
        todo,
        row.name,
        LowerContext(
            numerics=options.numerics,
            names=names,
            opset=default_opset(model),
            types=recognition.types,
            taken=_names_in_use(model, todo),
        ),
    )
    made = dict(zip(todo, outcomes, strict=True))
    sites: list[Lowered] = []
    rewritten: list[Lowered] = []
    kept: list[Match] = []
    unfolded: list[Refusal] = []
    for match, part in parts.items():
        outcome = made.get(match) or made.get(part or match)
        if isinstance(outcome, Refusal):
            if part is None or row.shares_functions:
                refusals.append(outcome)
                continue
            outcome = None
        grown = outcome is not None and (part is None or _holds(outcome.part, part))
        apart = {r.kind: r for r in (*match.apart, *(outcome.apart if outcome else ()))}
        if outcome is not None and not grown and not row.shares_functions:
            discard(outcome)
            outcome = None
        said = (part or match) if outcome is None else outcome.part
        left = _left_apart(match) if one and said.residual is None else None
        if left is not None:
            apart.setdefault("residual", left)
        if not one or said.residual is not None:
            apart.pop("residual", None)
        if not one or said.quantized is not None:
            apart.pop("quantizer", None)
        if not one or said.rotary is not None:
            apart.pop("rotary", None)
        if outcome is None:
            kept.append(said)
            unfolded += apart.values()
        else:
            outcome = dataclasses.replace(outcome, apart=tuple(apart.values()))
            sites.append(outcome)
            rewritten += [] if grown else [outcome]
    return Plan(
        model=model,
        types=recognition.types,
        names=names,
        sites=tuple(sites),
        kept=tuple(kept),
        rewritten=tuple(rewritten),
        opaque=tuple(opaque),
        refusals=tuple(refusals),
        unfolded=tuple(unfolded),
    )


def needed_opset(plan: Plan) -> int:
    """Lowest version of the default domain that knows all new nodes; 0: any."""
    return max((site.min_opset for site in plan.sites), default=0)


def plan_at_opset(loaded: LoadedModel, options: OptimizeOptions) -> tuple[LoadedModel, Plan]:
    """The plan of a model, raised to ``options.opset``, or as far as the target needs.

    Where the target needs a version to which the model cannot be raised every site is refused.

    Raises:
        UsageError: the model has a later version than that.
        InputError: the model cannot be raised to it.
    """
    plan, opset = make_plan(loaded.model, options), options.opset
    version = default_opset(loaded.model)
    needed = max(needed_opset(plan), opset or 0)
    if needed <= version:
        if opset is not None and opset < version:
            raise UsageError(
                "The opset can be raised, not lowered.",
                found=f"the model has opset {version}, {opset} was asked for",
                fix="leave --opset out, or export again with a lower opset",
            )
        return loaded, plan
    try:
        model = raise_opset(loaded.model, needed)
    except InputError as error:
        if opset is not None:
            raise
        message = f"the target needs opset {needed}"
        refused = {
            site: refuse_match(site.part, "opset", message, found=error.found, hint=error.fix)
            for site in plan.sites
        }
        return loaded, plan.without(refused)
    inlined = ", functions inlined" if loaded.model.functions else ""
    note = f"raised from opset {version} to {needed} by onnx.version_converter{inlined}"
    if any(node.device_configurations for node in loaded.model.graph.all_nodes()):
        note += "; how its nodes are spread over devices is not carried over"
    raised = dataclasses.replace(loaded, model=model, notes=(*loaded.notes, note))
    return raised, make_plan(model, options)


def _part_in_form(match: Match, operators: Sequence[str]) -> Match | None:
    """The norm, or the part of it, that is one of these operators already."""
    part: Match | None = match
    while part is not None and part.native not in operators:
        part = part.inner
    return part


def _chosen_nodes(matches: Sequence[Match], names: Sequence[str]) -> list[Match]:
    """The norms, or the parts of them, that are one node of any target, by these names.

    Raises:
        UsageError: a name that no such node has.
    """
    operators = [operator for row in TARGETS.values() for operator in row.operators]
    parts = [_part_in_form(match, operators) for match in matches]
    found = {part: name_of(part.nodes[-1]) for part in parts if part is not None}
    for name in names:
        if name != "*" and not fnmatch.filter(found.values(), name):
            raise UsageError(
                "No node that is an RMSNorm has this name.",
                found=repr(name),
                fix=f"the names are {', '.join(sorted(found.values())[:20]) or 'none'}",
            )
    return [
        part for part, own in found.items() if any(fnmatch.fnmatchcase(own, name) for name in names)
    ]


def _holds(match: Match, part: Match) -> bool:
    """Whether ``match`` is larger than ``part``."""
    inner = match.inner
    while inner is not None and inner is not part:
        inner = inner.inner
    return inner is part


def _left_apart(match: Match) -> Refusal | None:
    """The residual of a norm that is one node already, and stays the node that it is."""
    add = None if match.sum is None else match.sum.producer()
    if add is None:
        return None
    return refuse(
        add,
        "residual-kept",
        "the residual Add is not folded: the norm is one node without it",
        f"{match.nodes[-1].op_type} {name_of(match.nodes[-1])!r}",
        "optimize the file for a target whose operator takes it in",
        match.scope,
    )


def _type_operands(types: Types, matches: Sequence[Match]) -> None:
    """Write down what is known of the operands: proofs and runtimes ask the values themselves."""
    for match in matches:
        weights = (match.scale, match.offset_scale, match.bias)
        for value in (match.x, *weights, match.gate, match.residual, match.cos, match.sin):
            if value is not None and value.dtype is None:
                dtype = types.dtype(value)
                value.type = None if dtype is None else ir.TensorType(dtype)


def _names_in_use(model: ir.Model, matches: Sequence[Match]) -> set[str]:
    """Operator names of this package's domain that nodes or functions keep."""
    names = {name for _, name, _ in foreign_functions(model)}
    if DOMAIN in model.opset_imports:
        gone = {match.nodes[-1] for match in matches}
        for graph in all_graphs(model):
            names.update(n.op_type for n in graph if n.domain == DOMAIN and n not in gone)
    return names
