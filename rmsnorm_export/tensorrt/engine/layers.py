"""The layers of an engine, from the inspector's JSON or from the builder's log.

At profiling verbosity DETAILED the builder logs every layer of the finished engine, in the words of
the inspector's one-line format (seen on TensorRT-RTX 1.7.1); without a GPU an engine cannot be
loaded, and this log is all there is.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import msgspec

from rmsnorm_export.tensorrt.engine.result import EngineLayer, LayersFrom

_NODE = "[ONNX Layer: "
_LAYER = re.compile(r"^Name: (?P<name>.*?), LayerType: (?P<type>[^,]*),.*$", re.DOTALL)
_METADATA = ", Metadata: "
_BEGIN = re.compile(r"^(Engine Layer Information:|Layers:)$", re.MULTILINE)
_REGION = re.compile(r"_myl(\d+)_\d+$")
_PROFILE = re.compile(r"\[profile (\d+)\]$")
_END = re.compile(r"^(I/O Tensors:|Bindings:|Engine Metadata:)", re.MULTILINE)


def is_layer_log(message: str) -> bool:
    """Tell whether a message of the builder lists the layers of the engine."""
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
