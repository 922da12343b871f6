"""Norms of the model and layers of the engine: which kernels compute which norm.

The layers come from the inspector's JSON or from the builder's log: at profiling verbosity DETAILED
it lists every layer of the finished engine, in the words of the inspector's one-line format (seen
on TensorRT-RTX 1.7.1). Without a GPU an engine cannot be loaded, and the log is all there is.

The backends name, for every kernel, the ONNX nodes that it computes, so a norm is looked up by the
names of its nodes. What a name cannot tell (a norm inside a function or a loop body, two nodes of
one name) is unknown, and stays so.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.tensorrt.engine.result import EngineLayer, EngineNorm, How, LayersFrom

if TYPE_CHECKING:
    import onnx_ir as ir

    from rmsnorm_export.recognize.match import Match

_NODE = "[ONNX Layer: "
_LAYER = re.compile(r"^Name: (?P<name>.*?), LayerType: (?P<type>[^,]*),.*$", re.DOTALL)
_METADATA = ", Metadata: "
_BEGIN = re.compile(r"^(Engine Layer Information:|Layers:)$", re.MULTILINE)
_REGION = re.compile(r"_myl(\d+)_\d+$")
_PROFILE = re.compile(r"\[profile (\d+)\]$")
_END = re.compile(r"^(I/O Tensors:|Bindings:|Engine Metadata:)", re.MULTILINE)


HOST_TYPES = frozenset({"shape_call", "signal", "wait", "assert", "constant", "noop", "nop"})
"""Layers that start no kernel."""

_CALL = re.compile(r" \([^()]*\)$")

_SUM = f"{DOMAIN}.SkipRMSNorm.sum"
"""Node of the function body of SkipRMSNorm that computes the residual sum."""


def is_layer_log(message: str) -> bool:
    """Return whether a message of the builder lists the layers of the engine."""
    return _BEGIN.search(message[:64]) is not None and "LayerType: " in message


def layers_from_log(message: str) -> tuple[EngineLayer, ...]:
    """Return the layers that the builder listed; () when nothing in it can be read."""
    begin = _BEGIN.search(message)
    text = message[begin.end() :] if begin else message
    end = _END.search(text)
    layers = []
    # A name may hold a line break: a layer begins where a line does with "Name: ".
    for entry in re.split(r"^(?=Name: )", text[: end.start()] if end else text, flags=re.MULTILINE):
        match = _LAYER.match(entry)
        if match:
            _, _, metadata = entry.rpartition(_METADATA)
            layers.append(EngineLayer(match["name"], match["type"].strip(), nodes_of(metadata)))
    return tuple(layers)


class _Listed(msgspec.Struct):
    name: str = msgspec.field(name="Name")
    type: str = msgspec.field(name="LayerType", default="")
    metadata: str = msgspec.field(name="Metadata", default="")


class _Inspected(msgspec.Struct):
    layers: list[_Listed | str] = msgspec.field(name="Layers")


def layers_from_inspector(text: str) -> tuple[EngineLayer, ...]:
    """Return the layers in the engine inspector's JSON; () when they are names only, or none."""
    try:
        listed = msgspec.json.decode(text, type=_Inspected).layers
    except msgspec.DecodeError:
        return ()
    return tuple(
        EngineLayer(one.name, one.type, nodes_of(one.metadata))
        for one in listed
        if isinstance(one, _Listed)
    )


def layers_of(inspected: str, log: str) -> tuple[tuple[EngineLayer, ...], LayersFrom]:
    """Return the layers: the inspector's where it has more than names."""
    layers = layers_from_inspector(inspected)
    if any(layer.nodes for layer in layers):
        return layers, "inspector"
    layers = layers_from_log(log)
    return layers, "builder log" if layers else "none"


def by_profile(layers: Sequence[EngineLayer], profiles: int) -> tuple[EngineLayer, ...]:
    """Return the layers with the profile that each is for.

    With several profiles the engine has its layers once for each. TensorRT says so at the end of a
    name; TensorRT-RTX numbers the compiled regions through (``_myl3_7``: region 3), in the order of
    the profiles, as many for each.
    """
    if profiles < 2:
        return tuple(layers)
    regions = sorted({int(found[1]) for layer in layers if (found := _REGION.search(layer.name))})
    each = len(regions) // profiles if len(regions) % profiles == 0 else 0

    def profile(layer: EngineLayer) -> int | None:
        if found := _PROFILE.search(layer.name):
            return int(found[1])
        if each and (found := _REGION.search(layer.name)):
            return regions.index(int(found[1])) // each
        return None

    return tuple(dataclasses.replace(layer, profile=profile(layer)) for layer in layers)


def nodes_of(metadata: str) -> tuple[str, ...]:
    """Return the ONNX nodes in a layer's metadata: ``[ONNX Layer: a]`` between control characters.

    A name may hold brackets: an entry ends with a bracket at the end or in front of a separator.
    """
    entries = re.split(r"[\x1c-\x1f]", metadata.strip("\n"))
    nodes = []
    for entry in entries:
        # Without separators, entries follow each other directly.
        for part in re.split(r"(?<=\])(?=\[ONNX Layer: )", entry.strip()):
            if part.startswith(_NODE) and part.endswith("]"):
                nodes.append(part[len(_NODE) : -1])
    return tuple(dict.fromkeys(nodes))


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
