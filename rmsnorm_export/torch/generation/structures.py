"""What ``export.json`` says of a graph's outputs, written anew from the parts that are let through.

It describes them as a tree whose nodes name Python objects. transformers and PyTorch import what is
named, call it with what stands beside, and read the text a second time, in another way than our
check would. So nothing of the text is handed on: every name is replaced by that of a class that the
model at hand uses, looked up in a list of those, and what is none of the few kinds of content that
caches are written with is refused.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.strict import parse_json
from rmsnorm_export.torch.dtypes import FLOATS
from rmsnorm_export.torch.source.settings import DTYPES

_CONTAINERS = {"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}
_MAPPINGS = {"builtins:dict", "collections:OrderedDict"}
_SEQUENCES = {f"builtins:{name}" for name in ("tuple", "list", "set", "frozenset")}
_DEVICE = re.compile(r"(cpu|meta|(cuda|mps|xpu)(:[0-9]{1,3})?)", re.ASCII)


class _Refused(Exception):  # noqa: N818 (it is told with the place, as an InputError)
    """A structure names or holds what is not let through."""


def checked_metadata(model: Any, name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what transformers' runner needs to call a graph, written anew.

    Args:
        model: of transformers, which the graph was made of.
        name: of the graph, for errors.
        metadata: as parsed from the manifest.

    Raises:
        InputError: it names anything but containers and this model's caches and outputs, or is
            built in another way than transformers builds it.
    """
    try:
        protocol, tree = parse_json(metadata["out_spec"])
        if protocol != 1:
            raise _Refused(f"{short(str(protocol))} is no protocol that is known")
        rebuilt = _Names(model).node(tree)
        leaves = _leaves(rebuilt)
        inputs: dict[str, Any] = {key: {} for key in _plain(metadata.get("kwargs") or {})}
        constants = [list(_constant(pair, leaves)) for pair in metadata.get("out_constants") or ()]
        dtype = metadata["export_dtype"]
        if dtype not in FLOATS:
            raise _Refused(f"{quoted(str(dtype))} is no type of a model's weights")
    except (_Refused, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, _Refused) else f"it is not built like one: {error}"
        raise InputError(
            "The manifest of the export describes outputs that are not rebuilt here.",
            found=f"out_spec of {short(name)}: {reason}",
            fix="export the model again; or compare the components one by one, without --generate",
        ) from error
    return {
        "architecture": type(model).__name__,
        "export_dtype": dtype,
        "kwargs": inputs,
        "out_spec": json.dumps([1, rebuilt]),
        "out_constants": constants,
    }


def _plain(value: Any) -> dict[str, Any]:
    """Return an object whose keys are names, and none of those with a meaning of its own."""
    if not isinstance(value, dict) or any(key == "_t" or key[:2] == "__" for key in value):
        raise _Refused("an object of plain names is none")
    return value


def _is_number(value: Any, below: float = math.inf) -> bool:
    return type(value) is int and 0 <= value < below


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _constant(pair: Any, leaves: int) -> tuple[int, Any]:
    position, value = pair
    if not _is_number(position, leaves) or not _is_scalar(value):
        raise _Refused("an output that is no tensor is none of a number, text or nothing")
    return position, value


def _leaves(node: Mapping[str, Any]) -> int:
    return 1 if node["type"] is None else sum(map(_leaves, node["children_spec"]))


class _Names:
    """The classes that a model's outputs can be of, and structures rebuilt of these."""

    def __init__(self, model: Any) -> None:
        from transformers import PretrainedConfig, cache_utils, modeling_outputs
        from transformers.utils.generic import ModelOutput

        self._parts: dict[str, type] = {}
        self._outputs: dict[str, type] = {}
        modules = {cache_utils.__name__, modeling_outputs.__name__, type(model.config).__module__}
        modules |= {kind.__module__ for part in model.modules() for kind in type(part).__mro__}
        for kind in _classes_of(modules):
            path = f"{kind.__module__}:{kind.__qualname__}"
            if issubclass(kind, ModelOutput):
                self._outputs[path] = kind
            elif (
                issubclass(kind, (cache_utils.Cache, cache_utils.CacheLayerMixin, PretrainedConfig))
                or kind.__module__ == cache_utils.__name__
                or kind.__name__.endswith("Cache")
            ):
                self._parts[path] = kind

    def node(self, node: Any) -> dict[str, Any]:
        """Rebuild a node of the tree and those below it."""
        kind, children = node["type"], [self.node(one) for one in node["children_spec"]]
        if kind is None:
            if children or node["context"] is not None:
                raise _Refused("a tensor has parts")
            return {"type": None, "context": None, "children_spec": []}
        path = str(kind).replace(":", ".")
        content, caches = parse_json(node["context"]), _dotted(self._parts)
        if kind in _CONTAINERS or path in _dotted(self._outputs):
            kind = path
            sequence = kind in ("builtins.tuple", "builtins.list")
            if content is not None if sequence else not _are_keys(content, len(children)):
                raise _Refused(f"{quoted(kind)} has other keys than parts")
        elif path in caches:
            kind, content = caches[path], self._content(content, len(children))
        else:
            raise _Refused(f"{quoted(str(kind))} is no container, cache or output of this model")
        return {"type": kind, "context": json.dumps(content), "children_spec": children}

    def _content(self, value: Any, tensors: int) -> Any:
        """Rebuild what a cache holds; ``_t`` says what is made of an object."""

        def inner(part: Any) -> Any:
            return self._content(part, tensors)

        if _is_scalar(value):
            return value
        if isinstance(value, list):
            return list(map(inner, value))
        if "_t" not in value and "__enum__" not in value:
            return {key: inner(part) for key, part in value.items()}
        mark, path = value.get("_t"), value.get("p")
        match mark:
            case "tensor" | "sym" if _is_number(value["i"], tensors):
                return {"_t": mark, "i": value["i"]}
            case "size" if all(map(_is_number, value["v"])):
                return {"_t": mark, "v": list(value["v"])}
            case "device" if _DEVICE.fullmatch(value["s"]):
                return {"_t": mark, "s": value["s"]}
            case "dtype" if value["n"] in DTYPES:
                return {"_t": mark, "n": value["n"]}
            case "layout" if value["n"] == "strided":
                return {"_t": mark, "n": value["n"]}
            case "items" if all(_is_scalar(key) for key, _ in value["v"]):
                return {"_t": mark, "v": [[key, inner(part)] for key, part in value["v"]]}
            case "type" if path in self._parts or path in _SEQUENCES:
                return {"_t": mark, "p": path}
            case "seq" if path in _SEQUENCES:
                return {"_t": mark, "p": path, "v": list(map(inner, value["v"]))}
            case "map" if path in _MAPPINGS or path in self._outputs:
                return {"_t": mark, "p": path, "v": inner(_plain(value["v"]))}
            case "obj" if path in self._parts:
                methods = (
                    key for key in value["s"] if callable(getattr(self._parts[path], key, 0))
                )
                if (method := next(methods, None)) is not None:
                    raise _Refused(f"{quoted(method)} is no field of {quoted(path)}")
                return {"_t": mark, "p": path, "s": inner(_plain(value["s"]))}
        name = str(path or value.get("fqn")).replace(":", ".")
        raise _Refused(f"{quoted(str(mark))} of {quoted(name)} is no part of this model's caches")


def _are_keys(keys: Any, parts: int) -> bool:
    names = keys if isinstance(keys, list) and len(keys) == parts else [None]
    return all(_is_number(key) or isinstance(key, str) for key in names)


def _dotted(classes: Mapping[str, type]) -> dict[str, str]:
    return {path.replace(":", "."): path for path in classes}


def _classes_of(modules: set[str]) -> Iterator[type]:
    """The classes that these modules of transformers, which are loaded, define or import."""
    for name in sorted(modules):
        if name.startswith("transformers."):
            for value in list(vars(sys.modules[name]).values()):
                if isinstance(value, type) and value.__module__.startswith("transformers."):
                    yield value
