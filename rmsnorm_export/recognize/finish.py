"""From the last complete value of each chain to matches: residual, input gate, source nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Literal

import onnx_ir as ir

from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.recognize.between import nodes_between
from rmsnorm_export.recognize.complete import gated_input
from rmsnorm_export.recognize.consts import producer_of
from rmsnorm_export.recognize.context import Context
from rmsnorm_export.recognize.facts import Candidate
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.quantizer import quantizer
from rmsnorm_export.recognize.refusal import FORMERLY, Refusal, name_of, refuse
from rmsnorm_export.recognize.rotary import rotary
from rmsnorm_export.recognize.shape_rules import Dims
from rmsnorm_export.recognize.shape_values import bounded

Fold = Literal["residual", "gate", "codes", "rotary"]
"""The Add in front of a norm (``SkipRMSNorm``), its SiLU or sigmoid gate (``GatedRMSNorm``), what
makes codes of its output, and the rotary embedding behind it (``RotaryRMSNorm``)."""


def finish(ctx: Context, folds: Collection[Fold]) -> tuple[Match, ...]:
    """The matches of the whole model, in graph order; each Add is folded once."""
    folded: set[ir.Node] = set()
    units: set[ir.Value] = set()
    # The output of one match is no part of another, or both would replace the same nodes.
    outputs = set(ctx.matches)
    matches: list[Match] = []
    gated = "gate" in folds
    for match in ctx.matches.values():
        taken: Match | None = match
        while taken and taken.spec.kind == "GatedRMSNorm" and not (gated or taken.native):
            taken = taken.inner
        if taken is None:
            continue
        taken = _with_nodes(taken, units)
        behind = taken.gain or taken.factor != 1.0  # nodes of their own
        if gated and not behind and taken.x not in outputs:
            taken = _input_gate(ctx, taken)
        if taken.x not in outputs:
            taken = _residual(ctx, taken, folded, "residual" in folds)
        if "codes" in folds and not behind:
            taken = _with_behind(taken, quantizer(ctx, taken))
        if "rotary" in folds and not behind:
            taken = _with_behind(taken, rotary(ctx, taken))
        matches.append(taken)
    return tuple(matches)


def _with_nodes(match: Match, units: set[ir.Value]) -> Match:
    """Return the match with its nodes; of those with one unit row the first has it."""
    if match.nodes:
        return match
    if match.spec.unit_length:
        units.add(match.output)
    inner = match.inner
    if inner is not None:
        inner = None if inner.output in units else _with_nodes(inner, units)
    return dataclasses.replace(match, nodes=_between(match), inner=inner)


def _grown(match: Match, whole: Match) -> Match:
    """Return ``whole``, which is ``match`` with a part in front of or behind it, with its nodes."""
    return dataclasses.replace(whole, inner=match, native="", nodes=_between(whole))


def _kept_apart(match: Match, refusal: Refusal) -> Match:
    return dataclasses.replace(match, apart=(*match.apart, refusal))


def _with_behind(match: Match, outcome: Match | Refusal | None) -> Match:
    """Return the norm with what makes codes of its output, or the rotary embedding behind it."""
    if isinstance(outcome, Refusal):
        return _kept_apart(match, outcome)
    return match if outcome is None else _grown(match, outcome)


def _between(match: Match) -> tuple[ir.Node, ...]:
    """The nodes that compute ``match.output`` from its inputs, constants omitted."""
    stop = {match.x, *match.aliases, match.scale, match.bias, match.residual, match.gate, None}
    if match.rotary is not None:
        stop |= {match.cos, match.sin, *(value for value, _ in match.rotary.aliases)}
    if match.quantized is not None:
        stop.add(match.quantized.scale)
    # Constants that are computed (Sqrt of n, Cast of epsilon) are no part of the chain, the
    # weights' own casts and offset are.
    reaching = stop - {None}
    chain = []
    for node in nodes_between([match.output], stop - {match.output}):
        if not reaching.isdisjoint(node.inputs):
            reaching.update(node.outputs)
            chain.append(node)
    return tuple(chain)


def _input_gate(ctx: Context, match: Match) -> Match:
    """``RMSNorm(a * act(z))`` where nobody else sees the product."""
    dtype = ir.DataType(match.dtype)
    if match.spec.kind != "RMSNorm" or match.native or match.spec.stash_type != match.dtype:
        return match
    pair = gated_input(ctx, match.x, dtype)
    seen_by_others = match.x.is_graph_output() or not {*ctx.read_by(match.x)} <= {*match.nodes}
    if pair is None or seen_by_others:
        return match
    gate = pair[1].z.first.get(dtype)
    spec = dataclasses.replace(
        match.spec, kind="GatedRMSNorm", gate_first=True, activation=pair[1].activation
    )
    producer = match.x.producer()
    if producer is None or gate is None or producer.graph is not _graph_of(match):
        return match
    whole = dataclasses.replace(match, spec=spec, x=pair[0], gate=gate, aliases=())
    return _grown(match, whole)


def _graph_of(match: Match) -> object:
    node = match.output.producer()
    return None if node is None else node.graph


def _residual(ctx: Context, match: Match, folded: set[ir.Node], fold: bool) -> Match:
    """``RMSNorm(a + b)``; the sum stays available as the second output.

    What keeps the sum as it is may stand between. A sum with a weight or a vector is no residual.
    """
    total = ctx.view(match.x).root
    node = producer_of(total, "Add")
    if node is None or node in folded:
        return match
    a, b = node.inputs[0], node.inputs[1]
    if a is None or b is None or a.is_initializer() or b.is_initializer():
        return match
    shapes = ctx.types.shape(a), ctx.types.shape(b)
    vector = any(dims is not None and len(dims) < 2 for dims in shapes)
    if match.spec.kind == "SkipRMSNorm" or (vector and _repeats(*shapes)):
        return match
    why = _stays_apart(ctx, match, total, node, shapes) if fold else _SWITCHED_OFF
    if why is not None:
        message = f"the residual Add is not folded: {why[0]}"
        return _kept_apart(
            match, refuse(node, "residual-kept", message, why[1], why[2], match.scope)
        )
    spec: NormSpec = dataclasses.replace(match.spec, kind="SkipRMSNorm")
    folded.add(node)
    whole = dataclasses.replace(match, spec=spec, x=a, residual=b, sum=total, aliases=())
    return _grown(match, whole)


_SWITCHED_OFF = ("folding is switched off", "fold_residual is False", "omit that option")


def same_where_added(left: Dims, right: Dims) -> bool:
    """Return whether two shapes are certainly the same, or have no sum.

    PyTorch writes Min(64, n) where a table has 64 rows; for n above 64 that and n have no sum.
    """
    if left is None or right is None or len(left) != len(right):
        return False
    for pair in zip(left, right, strict=True):
        bounds = [(bounded(a), b) for a, b in (pair, pair[::-1])]
        summed = any(bound and bound[1] == b and bound[0] > 1 for bound, b in bounds)
        if pair[0] != pair[1] and not summed:
            return False
    return None not in left


def _repeats(left: Dims, right: Dims) -> bool:
    """Return whether one operand of a sum is repeated over the other, as a bias or a table is."""
    if left is None or right is None:
        return False
    pairs = list(zip(left, right, strict=False))
    return len(left) != len(right) or any((a == 1) != (b == 1) for a, b in pairs)


def _stays_apart(
    ctx: Context, match: Match, total: ir.Value, node: ir.Node, shapes: tuple[Dims, Dims]
) -> tuple[str, str, str] | None:
    """Return why no operator takes the sum that ``node`` adds, what was found and what to do."""
    if match.spec.kind != "RMSNorm":
        return ("a node takes a gate or a sum, not both", f"the gate {match.gate}",
                "omit the gate from the node if the sum matters more")  # fmt: skip
    if match.gain or match.factor != 1.0:
        scale = match.scale or match.factor
        return ("the scale is a node of its own behind the norm", f"the scale {scale}",
                "multiply with the scale last")  # fmt: skip
    if ctx.types.dtype(total) != match.dtype:
        return ("the sum is of another type than the norm", ctx.describe(total),
                "add in the type in which the norm is computed")  # fmt: skip
    if match.spec.axis != -1:
        return ("the norm is over several axes", f"axis {match.spec.axis}",
                "flatten the normalised axes into one")  # fmt: skip
    if node.graph is not _graph_of(match):
        return ("the sum and the norm are in different graphs", name_of(node),
                "keep both inside or outside the branch")  # fmt: skip
    if match.opaque_scale:
        return ("the scale may depend on the sum", "a scale that is computed in the graph",
                "store the scale as a weight")  # fmt: skip
    operands = " + ".join(ctx.describe(v) for v in node.inputs)
    if _repeats(*shapes):
        return ("one operand is repeated over the other", operands,
                "expand it in front of the sum, if that costs less than the sum")  # fmt: skip
    if not same_where_added(*shapes):
        return ("its operands are not known to be of one shape", operands,
                "store shapes in the model (value_info)")  # fmt: skip
    return None


def unmatched(ctx: Context) -> dict[Candidate, Refusal]:
    """Return a reason for every rooted mean square that no match was made of.

    What a fused node of the file computes beside its norm looks like one in the graph alone.
    """
    rooted = (c for c in ctx.candidates if c.rooted and not c.taken)
    reasons = {candidate: _why_not(ctx, candidate) for candidate in rooted}
    return {
        c: r for c, r in reasons.items()
        if r.kind == "norm" or FORMERLY not in c.node.metadata_props
    }  # fmt: skip


def _why_not(ctx: Context, candidate: Candidate) -> Refusal:
    flaw, centred = candidate.flaw, candidate.centred
    if centred is not None and (flaw is None or flaw.reason != "layer-norm"):
        return refuse(
            candidate.node, "variance",
            "the squares are those of a centred row: their mean is a variance",
            f"{name_of(centred)!r} subtracts the mean",
            "an RMSNorm divides by the root of the mean square of the row as it is",
            candidate.scope,
        )  # fmt: skip
    if flaw is not None and (candidate.divides or flaw.reason != "row-length-unknown"):
        return flaw
    last = ctx.last.get(candidate)
    consumers = [] if last is None else [node for node, _ in last.uses()]
    names = ", ".join(f"{n.op_type} {name_of(n)!r}" for n in consumers[:3]) or "nothing"
    return refuse(
        consumers[0] if consumers else candidate.node, "no-normalised-row",
        "the root is not used to divide the row it came from", f"the root is consumed by {names}",
        "an RMSNorm divides x by the root of the mean of its own squares", candidate.scope,
    )  # fmt: skip
