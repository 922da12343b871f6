"""What ``export.json`` says of a graph's outputs, written anew from the parts that are let through.

It describes them as a tree whose nodes name Python objects. transformers and PyTorch import what is
named, call it with what stands beside, and read the text a second time, in another way than our
check would. So nothing of the text is handed on: every name is replaced by that of a class that the
model at hand uses, looked up in a list of those, and what is none of the few kinds of content that
caches are written with is refused.
"""

from __future__ import annotations

import json
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
        inputs: dict[str, Any] = {
            key: {} for key in _object(metadata.get("kwargs") or {}) if _is_plain_name(key)
        }
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


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Refused("what should be an object is none")
    return value


def _is_plain_name(name: str) -> bool:
    return name.isidentifier() and not name.startswith("__")


def _is_number(value: Any, below: int | None = None) -> bool:
    return type(value) is int and value >= 0 and (below is None or value < below)


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
        kind, children = _object(node)["type"], [self.node(one) for one in node["children_spec"]]
        if kind is None:
            if children or node["context"] is not None:
                raise _Refused("a tensor has parts")
            return {"type": None, "context": None, "children_spec": []}
        path = str(kind).replace(":", ".")
        context = parse_json(node["context"])
        if kind in _CONTAINERS or path in _dotted(self._outputs):
            kind = path
            self._check_keys(kind, context, len(children))
        elif path in (known := _dotted(self._parts)):
            kind, context = known[path], self._content(context, len(children))
        else:
            raise _Refused(f"{quoted(str(kind))} is no container, cache or output of this model")
        return {"type": kind, "context": json.dumps(context), "children_spec": children}

    def _check_keys(self, kind: str, keys: Any, children: int) -> None:
        if kind in ("builtins.tuple", "builtins.list"):
            if keys is not None:
                raise _Refused("a sequence has keys")
        elif (
            not isinstance(keys, list)
            or len(keys) != children
            or not all(_is_number(key) or isinstance(key, str) for key in keys)
        ):
            raise _Refused(f"the keys of {quoted(kind)} are none, or not as many as its parts")

    def _content(self, value: Any, tensors: int) -> Any:
        """Rebuild what a cache holds; ``_t`` says what is made of an object."""
        if _is_scalar(value):
            return value
        if isinstance(value, list):
            return [self._content(part, tensors) for part in value]
        if "__enum__" in value:
            raise _Refused(f"{quoted(str(value.get('fqn')))} would be imported")
        if "_t" not in value:
            return {key: self._content(part, tensors) for key, part in value.items()}
        make = _MAKERS.get(value["_t"]) if isinstance(value["_t"], str) else None
        if make is None:
            raise _Refused(f"{quoted(str(value['_t']))} is no kind of content that is known")
        return {"_t": value["_t"], **make(self, value, tensors)}

    def _tensor(self, value: Mapping[str, Any], tensors: int) -> dict[str, Any]:
        if not _is_number(value["i"], tensors):
            raise _Refused("a cache has a tensor that is not among its parts")
        return {"i": value["i"]}

    def _size(self, value: Mapping[str, Any], _: int) -> dict[str, Any]:
        if not all(map(_is_number, value["v"])):
            raise _Refused("a size is no number")
        return {"v": list(value["v"])}

    def _device(self, value: Mapping[str, Any], _: int) -> dict[str, Any]:
        return {"s": _one_of(value["s"], "device", bool(_DEVICE.fullmatch(value["s"])))}

    def _dtype(self, value: Mapping[str, Any], _: int) -> dict[str, Any]:
        return {"n": _one_of(value["n"], "type", value["n"] in DTYPES)}

    def _layout(self, value: Mapping[str, Any], _: int) -> dict[str, Any]:
        return {"n": _one_of(value["n"], "layout", value["n"] == "strided")}

    def _items(self, value: Mapping[str, Any], tensors: int) -> dict[str, Any]:
        pairs = [(key, part) for key, part in value["v"]]
        if not all(_is_scalar(key) for key, _ in pairs):
            raise _Refused("a key is no number or text")
        return {"v": [[key, self._content(part, tensors)] for key, part in pairs]}

    def _type(self, value: Mapping[str, Any], _: int) -> dict[str, Any]:
        path = value["p"]
        return {"p": _one_of(path, "cache or container", path in self._parts or path in _SEQUENCES)}

    def _map(self, value: Mapping[str, Any], tensors: int) -> dict[str, Any]:
        path, parts = value["p"], _object(value["v"])
        name = _one_of(path, "cache or container", path in _MAPPINGS or path in self._outputs)
        return {"p": name, "v": {key: self._content(part, tensors) for key, part in parts.items()}}

    def _seq(self, value: Mapping[str, Any], tensors: int) -> dict[str, Any]:
        name = _one_of(value["p"], "cache or container", value["p"] in _SEQUENCES)
        return {"p": name, "v": [self._content(part, tensors) for part in value["v"]]}

    def _obj(self, value: Mapping[str, Any], tensors: int) -> dict[str, Any]:
        name = _one_of(value["p"], "cache or container", value["p"] in self._parts)
        kind, fields = self._parts[name], _object(value["s"])
        for key in fields:
            if not _is_plain_name(key) or callable(getattr(kind, key, None)):
                raise _Refused(f"{quoted(key)} is no field of {kind.__name__}")
        return {"p": name, "s": {key: self._content(part, tensors) for key, part in fields.items()}}


_MAKERS = {
    "tensor": _Names._tensor,
    "sym": _Names._tensor,
    "size": _Names._size,
    "device": _Names._device,
    "dtype": _Names._dtype,
    "layout": _Names._layout,
    "items": _Names._items,
    "type": _Names._type,
    "map": _Names._map,
    "seq": _Names._seq,
    "obj": _Names._obj,
}
"""Mark of a content -> how it is checked and written anew."""


def _one_of(name: Any, noun: str, is_known: bool) -> Any:
    if not is_known:
        raise _Refused(f"{quoted(str(name).replace(':', '.'))} is no {noun} of this model")
    return name


def _dotted(classes: Mapping[str, type]) -> dict[str, str]:
    return {path.replace(":", "."): path for path in classes}


def _classes_of(modules: set[str]) -> Iterator[type]:
    """The classes that these modules of transformers, which are loaded, define or import."""
    for name in sorted(modules):
        if name.startswith("transformers."):
            for value in list(vars(sys.modules[name]).values()):
                if isinstance(value, type) and value.__module__.startswith("transformers."):
                    yield value
