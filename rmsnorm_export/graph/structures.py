"""Structures of inputs and outputs in ``export.json``: a closed grammar, written anew."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rmsnorm_export.printable import quoted
from rmsnorm_export.strict import parse_json

_SEQUENCES = {f"builtins.{name}" for name in ("tuple", "list", "set", "frozenset")}
_MAPPINGS = {"builtins.dict", "collections.OrderedDict"}
_STRUCTURES = re.compile(
    r"transformers\.(cache_utils|configuration_utils|modeling_outputs|models\.\w+\.(cache|configuration|modeling)_\w+)"
    r"\.(?=\w*(Cache|Layer|Config|Output))[A-Z]\w*",
    re.ASCII,
)
"""Names of the classes that caches, their configs and outputs of a model are of, by module."""

_TORCH_WORDS = {
    "device": ("s", re.compile(r"(cpu|meta|(cuda|mps|xpu)(:[0-9]{1,3})?)", re.ASCII)),
    "dtype": ("n", re.compile(r"bool|bfloat16|(float|u?int|complex)[0-9]{1,3}\w{,20}", re.ASCII)),
    "layout": ("n", re.compile("strided")),
}
"""Marks of objects of PyTorch: the key that holds the name, and the names that are let through."""

_OTHERS = {None, "tensor", "sym", "size", "items", "type", "seq", "map", "obj"}


def structure_anew(text: str) -> str:
    """Write anew what a manifest says of a graph's inputs or outputs.

    It is a tree whose nodes name Python classes, which transformers and PyTorch import, with
    contents in a text of their own; a reader of the written folder gets only what was read here.

    Raises:
        ValueError, LookupError, TypeError: it is no such tree, or names something else.
    """
    protocol, tree = parse_json(text)
    return json.dumps([protocol, _node_anew(tree)])


def _node_anew(node: Mapping[str, Any]) -> dict[str, Any]:
    kind, context = node["type"], node["context"]
    if kind is not None:
        _check_class(kind)
        context = parse_json(context)
        _check_content(context)
        context = json.dumps(context)
    elif context is not None:
        raise ValueError("a tensor has parts")
    return {
        "type": kind,
        "context": context,
        "children_spec": [_node_anew(child) for child in node["children_spec"]],
    }


def _check_class(name: object, mark: object = None) -> None:
    path = str(name).replace(":", ".")
    is_other = path in _MAPPINGS or _STRUCTURES.fullmatch(path) is not None
    if path not in _SEQUENCES and (mark == "seq" or not is_other):
        raise ValueError(f"{quoted(str(name))} is no container, cache or output of a model")


def _check_content(value: Any) -> None:
    """Check the content of a node; objects are marked by ``_t`` and name their class ``p``."""
    if isinstance(value, list):
        for part in value:
            _check_content(part)
    elif isinstance(value, dict):
        if "fqn" in value or any(key.startswith("__") for key in value):
            raise ValueError("it names an enumeration, or what Python itself uses")
        mark = value.get("_t")
        if mark in _TORCH_WORDS:
            key, words = _TORCH_WORDS[mark]
            if not words.fullmatch(value[key]):
                raise ValueError(f"{quoted(str(value[key]))} is no {mark}")
        elif mark not in _OTHERS:
            raise ValueError(f"{quoted(str(mark))} marks no part of a cache")
        if mark is not None and "p" in value:
            _check_class(value["p"], mark)
        for part in value.values():
            _check_content(part)
