"""Norms of the model and layers of the engine: which kernels compute which norm.

The backends name, for every kernel, the ONNX nodes that it computes, so a norm is looked up by the
names of its nodes. What a name cannot tell (a norm inside a function or a loop body, two nodes of
one name) is unknown, and stays so.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Literal

import onnx_ir as ir

from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.tensorrt.engine.result import EngineLayer, EngineNorm, How

HOST_TYPES = frozenset({"shape_call", "signal", "wait", "assert", "constant", "noop", "nop"})
"""Layers that start no kernel."""

_CALL = re.compile(r" \([^()]*\)$")
_SUM = f"{DOMAIN}.SkipRMSNorm.sum"
"""Node of the function body of SkipRMSNorm that computes the residual sum."""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineSite:
    """A norm of the model, by names.

    Attributes:
        norm: as long as no layer is known; with the reason why none can be looked up, if there is
            one.
        nodes: names, as the parser gives them, of the nodes that compute the norm.
    """

    norm: EngineNorm
    nodes: frozenset[str]


def parser_name(node: ir.Node) -> str:
    """Return the name that TensorRT's parser has for a node; it invents one for none."""
    if node.name:
        return node.name
    output = next((value.name for value in node.outputs if value.name), "")
    return f"node_of_{output}"


def engine_sites(model: ir.Model, matches: Iterable[Match]) -> tuple[EngineSite, ...]:
    """Return the norms to look for in an engine of ``model``."""
    names = collections.Counter(parser_name(node) for node in model.graph)
    sites = []
    for match in matches:
        nodes = match.nodes or tuple(filter(None, [match.output.producer()]))
        own = len(nodes) == 1 and nodes[0].domain == DOMAIN
        total = match.sum.producer() if match.sum is not None and not own else None
        proper = {parser_name(node) for node in nodes if node is not total}
        reason = ""
        if match.scope != "main":
            reason = f"it is inside {match.scope}"
        elif any(names[name] > 1 for name in proper):
            reason = "several nodes have the name of one of its nodes"
        # A norm by itself, e.g. between two casts, is one node, too.
        one_node = match.native or any(re.search("(RMS|Layer)Norm", n.op_type) for n in nodes)
        form: Literal["node", "chain"] = "node" if one_node else "chain"
        name, op = parser_name(nodes[-1]), match.spec.kind
        norm = EngineNorm(name, op, form, "unknown", None, reason=reason)
        sites.append(EngineSite(norm, frozenset(proper)))
    return tuple(sites)


def find_norms(
    sites: Sequence[EngineSite], layers: Sequence[EngineLayer]
) -> tuple[EngineNorm, ...]:
    """Return what became of every norm, as far as layers tell, in the profile of most kernels."""
    profiles = sorted({layer.profile for layer in layers if layer.profile is not None})
    reason = "" if layers else "the engine's layers are not known"
    if any(layer.profile is None for layer in layers if layer.nodes):
        reason = "the layers do not tell the profiles apart"
    by_profile = [
        _find_norms(sites, [one for one in layers if one.profile in (profile, None)], reason)
        for profile in profiles or [0]
    ]
    return tuple(
        max(norms, key=lambda norm: norm.kernels or 0) for norms in zip(*by_profile, strict=True)
    )


def _find_norms(
    sites: Iterable[EngineSite], layers: Sequence[EngineLayer], reason: str
) -> list[EngineNorm]:
    by_node: dict[str, list[int]] = {}
    for number, layer in enumerate(layers):
        for path in layer.nodes if layer.type.lower() not in HOST_TYPES else ():
            # Inside a function of this package the inner node's name tells the residual sum apart.
            if _inner(path) != _SUM:
                by_node.setdefault(_outer(path), []).append(number)
    norms = []
    for site in sites:
        numbers = {number for name in site.nodes for number in by_node.get(name, ())}
        kernels = [layers[number] for number in sorted(numbers)]
        norms.append(_with_kernels(site.norm, kernels, site.norm.reason or reason))
    return norms


def _with_kernels(norm: EngineNorm, kernels: Sequence[EngineLayer], reason: str) -> EngineNorm:
    if reason or not kernels:
        reason = reason or "no layer of the engine names its nodes"
        return dataclasses.replace(norm, reason=reason)
    how: How = "fused" if len(kernels) == 1 else "unfused"
    if any("plugin" in layer.type.lower() for layer in kernels):
        how = "plugin"
    names = tuple(layer.name for layer in kernels)
    return dataclasses.replace(norm, how=how, kernels=len(kernels), names=names)


def _outer(path: str) -> str:
    """Return the node of the model in ``inner | outer (Op)``."""
    inner, _, outer = path.rpartition(" | ")
    return _CALL.sub("", outer) if inner else outer


def _inner(path: str) -> str:
    """Return the innermost node of ``inner | outer (Op)``, no invented prefix."""
    return path.partition(" | ")[0].removeprefix("node_of_") if " | " in path else ""
