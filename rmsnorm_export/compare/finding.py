"""What the search found, in words: the value, the node, the norm at or before it."""

from __future__ import annotations

from typing import Literal

from rmsnorm_export.compare.bisect import CLOSE, Found, Search, nearest, used
from rmsnorm_export.compare.result import Difference, DifferenceSite
from rmsnorm_export.printable import quoted
from rmsnorm_export.recognize.match import Match


def difference(search: Search, found: Found) -> Difference:
    """The outcome of a search."""
    flow, value = search.flows[-1], found.value
    near = nearest(search, found)
    node = flow.node(value)
    agree = not found.hidden and all(n in found.tested and found.tested[n].passed for n in near)
    site = _site(search, value, near)
    return Difference(
        value=value,
        node="" if node is None else node.name or node.op_type,
        op="" if node is None else node.op_type,
        module=flow.module(value),
        site=site,
        inputs=tuple(near),
        inputs_agree=agree,
        conclusion=_conclusion(search, found, near, site),
        comparison=found.tested[value],
        compared=len(found.tested.keys() - {search.target}),
        shared=len(search.shared - {search.target}),
        output=search.target,
        notes=tuple(dict.fromkeys(_notes(search, found, near))),
    )


def _site(search: Search, value: str, near: list[str]) -> DifferenceSite | None:
    """The norm that computes the value, or is between it and those before; else the last one."""
    for flow in reversed(search.flows):
        match = flow.norm(value)
        if match is not None:
            return _told(search, match, "among" if _others(search, value, near) else "at")
        match = flow.norm_in(flow.nearest(value, near)[1])
        if match is not None:
            return _told(search, match, "among")
    for flow in reversed(search.flows):
        norms = [name for name in flow.ancestors(value) if flow.norm(name) is not None]
        match = flow.norm(max(norms, key=flow.order.__getitem__, default=""))
        if match is not None:
            return _told(search, match, "before")
    return None


def _others(search: Search, value: str, near: list[str]) -> int:
    """Nodes besides the norm that compute a value, in the graph that has more of them."""
    return max(flow.others(value, near) for flow in search.flows)


def _told(search: Search, match: Match, place: Literal["at", "among", "before"]) -> DifferenceSite:
    output = match.output.name or ""
    producer = match.output.producer()
    # A norm that is spelled out knows its module better than one node that it became.
    same = (flow.norm(output) for flow in search.flows)
    spelled = [norm.module for norm in same if norm is not None and not norm.native]
    module = next((module for module in spelled if module), match.module)
    name = producer.name if producer is not None and producer.name else output
    return DifferenceSite(name, match.spec.kind, module, place)


def _conclusion(search: Search, found: Found, near: list[str], site: DifferenceSite | None) -> str:
    if found.hidden:
        return (
            "with values inside marked as outputs the models agree: the runtime fuses less then,"
            " and the place cannot be told"
        )
    others = _others(search, found.value, near)
    more = "" if not others else f" and {others} other node{'s' if others > 1 else ''}"
    said = f"{quoted(found.value)} differs"
    if site is not None and site.place == "at":
        said = f"this site differs: {site.op} {quoted(site.name)}"
    elif site is not None and site.place == "among":
        said += f", which {site.op} {quoted(site.name)}{more} compute"
    elif more:
        said += f", which its node{more} compute"
    if found.beyond:
        share = used(found.tested[found.value])
        said += f" by {share:.0%} of its bound, which it leaves at {quoted(found.beyond)}"
    if not near:
        return f"{said}; no value that both models have lies before it"
    if len(near) == 1:
        return f"{said}; the value that it is computed from agrees ({quoted(near[0])})"
    last = quoted(near[-1])
    return f"{said}; the {len(near)} values that it is computed from agree (the last is {last})"


def _notes(search: Search, found: Found, near: list[str]) -> list[str]:
    notes = []
    for flow in reversed(search.flows):
        notes += flow.not_entered(flow.nearest(found.value, near)[1])
    share = max((used(found.tested[n]) for n in near if n in found.tested), default=0.0)
    if CLOSE < share <= 1 and not found.hidden:
        notes.append(
            f"the values before it take up to {share:.0%} of their bounds: the difference grows"
            " over several nodes"
        )
    if found.odd:
        notes.append(
            f"{len(found.odd)} values of the same name were passed over: their types or shapes"
            " differ, or they cannot be had"
        )
    return notes
