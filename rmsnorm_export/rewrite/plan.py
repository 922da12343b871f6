"""The fate of each norm of one model: new nodes, a refusal, or the node that it is already."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.graph.opset import default_opset, raise_opset
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.lower.lower import LowerContext, Lowered, lower_all, refuse_match
from rmsnorm_export.lower.targets import TARGETS, TargetRow
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.recognize.context import OpaqueNode
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, name_of, refuse
from rmsnorm_export.recognize.scan import foreign_functions
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.rewrite.names import Names
from rmsnorm_export.rewrite.norms import Norms, find_norms
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
        """Return the plan with these sites refused and their new nodes given up."""
        for site in refused:
            _discard(site)
        return dataclasses.replace(
            self,
            sites=tuple(site for site in self.sites if site not in refused),
            refusals=(*self.refusals, *refused.values()),
        )


def _discard(lowered: Lowered) -> None:
    """Unhook nodes that were never inserted: they must not count as uses."""
    for node in lowered.nodes:
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)


def plan_at_opset(loaded: LoadedModel, options: OptimizeOptions) -> tuple[LoadedModel, Plan]:
    """Raise a model to ``options.opset``, or as far as the target needs, and plan its rewrite.

    It is not raised for the target where no norm would be written; where it cannot be, every site
    is refused.

    Raises:
        UsageError: the model has a later opset than the one asked for.
        InputError: the model cannot be raised to it.
    """
    present = default_opset(loaded.model)
    asked = present if options.opset is None else options.opset
    if asked < present:
        raise UsageError(
            "The opset can be raised, not lowered.",
            found=f"the model has opset {present}, {asked} was asked for",
            fix="omit --opset, or export again with a lower opset",
        )
    needed, unraised = TARGETS[options.target or "portable"].min_opset, None
    if needed > asked:
        try:
            raised = _raised(loaded, needed)
        except InputError as error:
            if options.opset is not None:
                raise
            unraised = error
        else:
            plan = plan_rewrite(find_norms(raised.model, options), options)
            if plan.sites:
                return raised, plan
    loaded = _raised(loaded, asked) if asked > present else loaded
    plan = plan_rewrite(find_norms(loaded.model, options), options)
    if unraised is None:
        return loaded, plan
    refused = {
        site: refuse_match(
            site.part,
            "opset",
            f"the target needs opset {needed}",
            found=unraised.found,
            hint=unraised.fix,
        )
        for site in plan.sites
    }
    return loaded, plan.without(refused)


def _raised(loaded: LoadedModel, opset: int) -> LoadedModel:
    """Return the model at ``opset``, with a note.

    Raises:
        InputError: it cannot be raised to it.
    """
    model = raise_opset(loaded.model, opset)
    inlined = ", functions inlined" if loaded.model.functions else ""
    present = default_opset(loaded.model)
    note = f"raised from opset {present} to {opset} by onnx.version_converter{inlined}"
    if any(node.device_configurations for node in loaded.model.graph.all_nodes()):
        note += "; how its nodes are spread over devices is not carried over"
    return dataclasses.replace(loaded, model=model, notes=(*loaded.notes, note))


def plan_rewrite(norms: Norms, options: OptimizeOptions) -> Plan:
    """Lower the norms that the target can say otherwise than the model does."""
    row, names = TARGETS[options.target or "portable"], Names(norms.model)
    # Without a target the own form of every one is kept.
    pending = norms.pending(row, keep_all_forms=options.target is None)
    outcomes = _lowered(pending, row, norms, names, options)
    sites: list[Lowered] = []
    rewritten: list[Lowered] = []
    kept: list[Match] = []
    refusals = list(norms.refusals)
    unfolded: list[Refusal] = []
    for match, part in norms.native_parts.items():
        outcome = outcomes.get(match) or outcomes.get(part or match)
        fate = _fate(outcome, part, row)
        if isinstance(fate, Refusal):
            refusals.append(fate)
            continue
        node = (part or match) if fate is None else fate.part
        targets_reasons = outcome.apart if isinstance(outcome, Lowered) else ()
        apart = _apart(match, node, targets_reasons, row)
        if fate is None:
            kept.append(node)
            unfolded += apart
        else:
            fate = dataclasses.replace(fate, apart=apart)
            sites.append(fate)
            if part is not None and not _holds(fate.part, part):
                rewritten.append(fate)
    return Plan(
        model=norms.model,
        types=norms.types,
        names=names,
        sites=tuple(sites),
        kept=tuple(kept),
        rewritten=tuple(rewritten),
        opaque=norms.opaque,
        refusals=tuple(refusals),
        unfolded=tuple(unfolded),
    )


def _lowered(
    matches: Sequence[Match],
    row: TargetRow,
    norms: Norms,
    names: Names,
    options: OptimizeOptions,
) -> dict[Match, Lowered | Refusal]:
    _type_operands(norms.types, matches)
    context = LowerContext(
        numerics=options.numerics,
        names=names,
        opset=default_opset(norms.model),
        types=norms.types,
        taken=_names_in_use(norms.model, matches),
    )
    return dict(zip(matches, lower_all(matches, row.name, context), strict=True))


def _fate(
    outcome: Lowered | Refusal | None, part: Match | None, row: TargetRow
) -> Lowered | Refusal | None:
    """Return what becomes of a norm; None: ``part``, one node already, stays as it is."""
    if part is None or row.shares_functions:
        return outcome
    if isinstance(outcome, Lowered):
        if _holds(outcome.part, part):
            return outcome
        _discard(outcome)
    return None


def _holds(match: Match, part: Match) -> bool:
    """Return whether ``match`` is larger than ``part``."""
    inner = match.inner
    while inner is not None and inner is not part:
        inner = inner.inner
    return inner is part


def _apart(
    match: Match, node: Match, more: Sequence[Refusal], row: TargetRow
) -> tuple[Refusal, ...]:
    """Return why neighbours of a norm are no part of its node.

    Args:
        match: the norm with all that could be in its node.
        node: what is in it.
        more: reasons of the target.
        row: the target.
    """
    if row.form != "one node":
        return ()
    reasons = {refusal.kind: refusal for refusal in (*match.apart, *more)}
    if (unfolded := _unfolded_sum(match)) is not None:
        reasons.setdefault("residual", unfolded)
    inside = {"residual": node.residual, "quantizer": node.quantized, "rotary": node.rotary}
    return tuple(refusal for kind, refusal in reasons.items() if inside.get(kind) is None)


def _unfolded_sum(match: Match) -> Refusal | None:
    """Return why the residual of a norm that is one node already, and stays it, is apart."""
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
    """Return the operator names of this package's domain that nodes or functions keep."""
    names = {name for _, name, _ in foreign_functions(model)}
    if DOMAIN in model.opset_imports:
        replaced = {match.nodes[-1] for match in matches}
        for graph in all_graphs(model):
            names.update(n.op_type for n in graph if n.domain == DOMAIN and n not in replaced)
    return names
