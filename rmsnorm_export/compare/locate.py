"""Where two models begin to differ, whatever runs them, and that in words."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Literal

from rmsnorm_export.compare.backend import Backend
from rmsnorm_export.compare.bisect import CLOSE, Search, share_of_bound
from rmsnorm_export.compare.flow import Flow, shared_values
from rmsnorm_export.compare.outputs import Bounds
from rmsnorm_export.compare.result import Difference, DifferenceSite, OutputComparison
from rmsnorm_export.errors import Error
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import one_line, quoted
from rmsnorm_export.recognize.match import Match

_NOT = "the first difference was not looked for: "


def locate_difference(
    sides: tuple[Backend, Backend],
    feeds: Mapping[str, Array],
    outputs: Sequence[OutputComparison],
    values: tuple[Mapping[str, Array], Mapping[str, Array]],
    bounds: Bounds,
) -> tuple[Difference | None, str]:
    """Where two models begin to differ, or why that was not looked for.

    Args:
        sides: the two models.
        feeds: the inputs.
        outputs: of the comparison, of which one failed at least.
        values: the outputs of both, by name.
        bounds: of the comparison.
    """
    for side in sides:
        if side.closed:
            return None, _NOT + side.closed
    graphs = [None if side.graph is None else Flow(side.graph) for side in sides]
    flows = tuple(flow for flow in graphs if flow is not None)
    if not flows:
        return None, f"{_NOT}neither model is an ONNX graph"
    if len(flows) == 2:
        shared = shared_values(*flows)
    else:
        shared = frozenset(sides[graphs.index(None)].inside(flows[0]))
    failed = [output for output in outputs if not output.passed]
    # The earliest: others may follow from it.
    target = min(failed, key=lambda one: flows[-1].order.get(one.name, -1))
    try:
        with contextlib.ExitStack() as stack:
            first, second = (
                stack.enter_context(side.probing(feeds, flow or flows[0]))
                for side, flow in zip(sides, graphs, strict=True)
            )
            known = [
                None if flow is not None else arrays[target.name]
                for flow, arrays in zip(graphs, values, strict=True)
            ]
            search = Search(
                (first, second), flows, shared, target.name, (known[0], known[1]), bounds
            )
            search.run(target)
            return describe_difference(search), ""
    except Error as error:
        return None, f"{_NOT}{one_line(error.what, 200)} {one_line(error.found, 300)}".strip()


def describe_difference(search: Search) -> Difference:
    """The outcome of a search: the value, the node, the norm at or before it."""
    flow, value = search.flows[-1], search.value
    near = search.nearest(value)
    node = flow.node(value)
    # Of the nodes besides the norm that compute the value, in the graph that has more of them.
    others = max(flow.others(value, near) for flow in search.flows)
    site = _nearest_site(search.flows, value, near, alone=not others)
    return Difference(
        value=value,
        node="" if node is None else node.name or node.op_type,
        op="" if node is None else node.op_type,
        module=flow.module(value),
        site=site,
        inputs=tuple(near),
        inputs_agree=not search.hidden and all(map(search.agrees, near)),
        conclusion=_conclusion(search, near, site, others),
        comparison=search.tested[value],
        compared=len(search.tested.keys() - {search.target}),
        shared=len(search.shared - {search.target}),
        output=search.target,
        notes=tuple(dict.fromkeys(_notes_on_search(search, near))),
    )


def _nearest_site(
    flows: Sequence[Flow], value: str, near: Sequence[str], *, alone: bool
) -> DifferenceSite | None:
    """The norm that computes the value, or is between it and those before; else the last one."""
    for flow in reversed(flows):
        match = flow.norm(value)
        if match is not None:
            return _difference_site(flows, match, "at" if alone else "among")
        match = flow.norm_in(flow.nearest(value, near)[1])
        if match is not None:
            return _difference_site(flows, match, "among")
    for flow in reversed(flows):
        norms = [name for name in flow.ancestors(value) if flow.norm(name) is not None]
        match = flow.norm(max(norms, key=flow.order.__getitem__, default=""))
        if match is not None:
            return _difference_site(flows, match, "before")
    return None


def _difference_site(
    flows: Sequence[Flow], match: Match, place: Literal["at", "among", "before"]
) -> DifferenceSite:
    output = match.output.name or ""
    producer = match.output.producer()
    # A norm that is spelled out knows its module better than one node that it became.
    same = (flow.norm(output) for flow in flows)
    spelled = (norm.module for norm in same if norm is not None and not norm.native)
    module = next(filter(None, spelled), match.module)
    name = producer.name if producer is not None and producer.name else output
    return DifferenceSite(name, match.spec.kind, module, place)


def _conclusion(
    search: Search, near: Sequence[str], site: DifferenceSite | None, others: int
) -> str:
    if search.hidden:
        return (
            "with values inside marked as outputs the models agree: the runtime fuses less then,"
            " and the place cannot be told"
        )
    more = "" if not others else f" and {others} other node{'s' if others > 1 else ''}"
    text = f"{quoted(search.value)} differs"
    if site is not None and site.place == "at":
        text = f"this site differs: {site.op} {quoted(site.name)}"
    elif site is not None and site.place == "among":
        text += f", which {site.op} {quoted(site.name)}{more} compute"
    elif more:
        text += f", which its node{more} compute"
    if search.beyond:
        share = share_of_bound(search.tested[search.value])
        text += f" by {share:.0%} of its bound, which it leaves at {quoted(search.beyond)}"
    if not near:
        return f"{text}; no value that both models have lies before it"
    if len(near) == 1:
        return f"{text}; the value that it is computed from agrees ({quoted(near[0])})"
    last = quoted(near[-1])
    return f"{text}; the {len(near)} values that it is computed from agree (the last is {last})"


def _notes_on_search(search: Search, near: Sequence[str]) -> list[str]:
    notes = []
    for flow in reversed(search.flows):
        notes += flow.not_entered(flow.nearest(search.value, near)[1])
    tested = [search.tested[name] for name in near if name in search.tested]
    share = max(map(share_of_bound, tested), default=0.0)
    if CLOSE < share <= 1 and not search.hidden:
        notes.append(
            f"the values before it take up to {share:.0%} of their bounds: the difference grows"
            " over several nodes"
        )
    if search.odd:
        notes.append(
            f"{len(search.odd)} values of the same name were passed over: their types or shapes"
            " differ, or they cannot be had"
        )
    return notes
