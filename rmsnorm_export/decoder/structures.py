"""Structures of inputs and outputs in ``export.json``: a closed grammar, written anew."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from rmsnorm_export.printable import quoted
from rmsnorm_export.strict import parse_json

_SEQUENCES = {f"builtins.{name}" for name in ("tuple", "list", "set", "frozenset")}
_MAPPINGS = {"builtins.dict", "collections.OrderedDict"}
_PART, _OUTPUT = (
    re.compile(
        r"transformers\.(cache_utils|configuration_utils|modeling_outputs"
        rf"|models\.\w+\.(cache|configuration|modeling)_\w+)\.(?=\w*({words}))[A-Z]\w*",
        re.ASCII,
    )
    for words in ("Cache|Layer|Config", "Output")
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

    def is_part(self, path: str, fields: Iterable[str] = ()) -> bool:
        """Tell a cache, a layer of one, or a config, of which none of the fields is a method."""
        del fields
        return _PART.fullmatch(path) is not None

    def is_output(self, path: str) -> bool:
        """Tell what a model returns."""
        return _OUTPUT.fullmatch(path) is not None


class _Node(msgspec.Struct):
    type: str | None
    context: str | None
    children_spec: list[_Node]


def structure_anew(text: str, names: ClassNames | None = None) -> str:
    """Write anew what a manifest says of a graph's inputs or outputs.

    It is a tree whose nodes name Python classes, which transformers and PyTorch import, with
    contents in a text of their own; a reader gets only what was read here.

    Args:
        text: as ``torch.utils._pytree`` writes it.
        names: of the classes that are let through.

    Raises:
        ValueError: it is no such tree, or names something else.
    """
    try:
        content = msgspec.convert(parse_json(text), tuple[Literal[1], _Node])
        _check_node(content[1], names or ClassNames())
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"an object lacks a part, or has another: {error}") from error
    return json.dumps(msgspec.to_builtins(content))


def _check_node(node: _Node, names: ClassNames) -> None:
    """Check a node of the tree and those below it, and write their contents anew."""
    if node.type is None:
        if node.context is not None or node.children_spec:
            raise ValueError("a tensor has parts")
        return
    path = _dotted(node.type)
    if not (path in _SEQUENCES | _MAPPINGS or names.is_part(path) or names.is_output(path)):
        raise ValueError(f"{quoted(node.type)} is no container, cache or output of a model")
    context = parse_json(node.context or "")
    _check_content(context, len(node.children_spec), names)
    node.context = json.dumps(context)
    for child in node.children_spec:
        _check_node(child, names)


def _check_content(value: Any, tensors: int, names: ClassNames) -> None:
    """Check the content of a node; objects are marked by ``_t`` and name their class ``p``."""
    parts: Iterable[Any] = value if isinstance(value, list) else ()
    if isinstance(value, dict):
        parts = value.values()
        if "fqn" in value or any(key.startswith("__") for key in value):
            raise ValueError("it names an enumeration, or what Python itself uses")
        if "_t" in value and not _is_known(value, tensors, names):
            raise ValueError(f"{quoted(str(value))} is no part of a cache as it is written")
    for part in parts:
        _check_content(part, tensors, names)


def _is_known(value: Mapping[str, Any], tensors: int, names: ClassNames) -> bool:
    path = _dotted(value.get("p"))
    match value["_t"]:
        case "tensor" | "sym":
            return _is_number(value["i"], tensors)
        case "size":
            return all(map(_is_number, value["v"]))
        case "items":
            return all(not isinstance(key, list | dict) for key, _ in value["v"])
        case "device" | "dtype" | "layout" as mark:
            key, words = _TORCH_WORDS[mark]
            return words.fullmatch(value[key]) is not None
        case "seq":
            return path in _SEQUENCES
        case "map":
            return path in _MAPPINGS or names.is_output(path)
        case "type":
            return path in _SEQUENCES or names.is_part(path)
        case "obj":
            return names.is_part(path, value["s"])
    return False


def _dotted(name: object) -> str:
    return str(name).replace(":", ".")


def _is_number(value: object, below: float = math.inf) -> bool:
    return type(value) is int and 0 <= value < below
