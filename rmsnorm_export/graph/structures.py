"""Structures of inputs and outputs in ``export.json``: a closed grammar, written anew."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rmsnorm_export.printable import quoted
from rmsnorm_export.strict import parse_json

_SEQUENCES = {f"builtins.{name}" for name in ("tuple", "list", "set", "frozenset")}
_MAPPINGS = {"builtins.dict", "collections.OrderedDict"}
_CLASS = re.compile(
    r"transformers\.(cache_utils|configuration_utils|modeling_outputs|models\.\w+\.(cache|configuration|modeling)_\w+)"
    r"\.(?P<name>[A-Z]\w*)",
    re.ASCII,
)
"""Classes of caches, configs and outputs, by the modules of transformers that define them."""

_TORCH_WORDS = {
    "device": ("s", re.compile(r"(cpu|meta|(cuda|mps|xpu)(:[0-9]{1,3})?)", re.ASCII)),
    "dtype": ("n", re.compile(r"bool|bfloat16|(float|u?int|complex)[0-9]{1,3}\w{,20}", re.ASCII)),
    "layout": ("n", re.compile("strided")),
}
"""Marks of objects of PyTorch: the key that holds the name, and the names that are let through."""


class ClassNames:
    """The classes that a structure may name: here those that are called as such classes are.

    A folder is written on for other readers, so nothing is imported.
    """

    def is_part(self, path: str) -> bool:
        """Return whether a class is a cache, a layer of one, or a config."""
        return self._has_word(path, "Cache|Layer|Config")

    def is_output(self, path: str) -> bool:
        """Return whether a class is what a model returns."""
        return self._has_word(path, "Output")

    def method(self, path: str, fields: Iterable[str]) -> str:
        """Return one of the fields of an object that is a method of its class; "" for none."""
        del path, fields
        return ""

    @staticmethod
    def _has_word(path: str, words: str) -> bool:
        match = _CLASS.fullmatch(path)
        return match is not None and re.search(words, match["name"]) is not None


def structure_anew(text: str, names: ClassNames | None = None) -> str:
    """Write anew what a manifest says of a graph's inputs or outputs.

    It is a tree whose nodes name Python classes, which transformers and PyTorch import, with
    contents in a text of their own; a reader gets only what was read here.

    Args:
        text: as ``torch.utils._pytree`` writes it.
        names: of the classes that are let through.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: it is no such tree, or names something
            else.
    """
    protocol, tree = parse_json(text)
    if protocol != 1:
        raise ValueError(f"{quoted(str(protocol))} is no protocol of it")
    return json.dumps([protocol, _Reader(names or ClassNames()).node(tree)])


class _Reader:
    """Structures, whose classes are checked by their names."""

    def __init__(self, names: ClassNames) -> None:
        self._names = names

    def node(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Rebuild a node of the tree and those below it."""
        kind, context = node["type"], node["context"]
        children = [self.node(child) for child in node["children_spec"]]
        if kind is None:
            if context is not None or children:
                raise ValueError("a tensor has parts")
        else:
            path = _dotted(kind)
            containers = _SEQUENCES | _MAPPINGS
            self._require(path in containers or self._is_class(path), kind)
            context = parse_json(context)
            self._check_content(context, len(children))
            context = json.dumps(context)
        return {"type": kind, "context": context, "children_spec": children}

    def _is_class(self, path: str) -> bool:
        return self._names.is_part(path) or self._names.is_output(path)

    def _require(self, holds: bool, name: object) -> None:
        if not holds:
            raise ValueError(f"{quoted(str(name))} is no container, cache or output of a model")

    def _check_content(self, value: Any, tensors: int) -> None:
        """Check the content of a node; objects are marked by ``_t`` and name their class ``p``."""
        parts: Iterable[Any] = value if isinstance(value, list) else ()
        if isinstance(value, dict):
            if "fqn" in value or any(key.startswith("__") for key in value):
                raise ValueError("it names an enumeration, or what Python itself uses")
            if "_t" in value:
                self._check_object(value, tensors)
            parts = value.values()
        for part in parts:
            self._check_content(part, tensors)

    def _check_object(self, value: Mapping[str, Any], tensors: int) -> None:
        path = _dotted(value.get("p"))
        match mark := value["_t"]:
            case "tensor" | "sym" if _is_number(value["i"], tensors):
                return
            case "size" if all(map(_is_number, value["v"])):
                return
            case "items" if all(not isinstance(key, list | dict) for key, _ in value["v"]):
                return
            case "device" | "dtype" | "layout":
                key, words = _TORCH_WORDS[mark]
                if not words.fullmatch(value[key]):
                    raise ValueError(f"{quoted(str(value[key]))} is no {mark}")
            case "seq":
                self._require(path in _SEQUENCES, value["p"])
            case "map":
                self._require(path in _MAPPINGS or self._names.is_output(path), value["p"])
            case "type":
                self._require(path in _SEQUENCES or self._names.is_part(path), value["p"])
            case "obj":
                self._require(self._names.is_part(path), value["p"])
                if method := self._names.method(path, value["s"]):
                    raise ValueError(f"{quoted(method)} is no field of {quoted(path)}")
            case _:
                raise ValueError(f"{quoted(str(mark))} marks no part of a cache as it is written")


def _dotted(name: object) -> str:
    return str(name).replace(":", ".")


def _is_number(value: object, below: float = math.inf) -> bool:
    return type(value) is int and 0 <= value < below
