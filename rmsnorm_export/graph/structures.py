"""Structures of inputs and outputs in ``export.json``: a closed grammar, written anew."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rmsnorm_export.printable import quoted
from rmsnorm_export.strict import parse_json

_SEQUENCES = {f"builtins.{name}" for name in ("tuple", "list", "dict", "set", "frozenset")}
_STRUCTURES = re.compile(
    r"transformers\.(cache_utils|configuration_utils|modeling_outputs|models\.\w+\.(cache|configuration|modeling)_\w+)"
    r"\.[A-Z]\w*",
    re.ASCII,
)
"""Names of the classes that caches and outputs of a model are of, by their modules."""


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


def _check_class(name: object) -> None:
    path = str(name).replace(":", ".")
    if path not in _SEQUENCES | {"collections.OrderedDict"} and not _STRUCTURES.fullmatch(path):
        raise ValueError(f"{quoted(str(name))} is no container, cache or output of a model")


def _check_content(value: Any) -> None:
    """Check the classes that the content of a node names: ``p`` of an object marked by ``_t``."""
    if isinstance(value, list):
        for part in value:
            _check_content(part)
    elif isinstance(value, dict):
        if "__enum__" in value or "fqn" in value:
            raise ValueError("it names an enumeration")
        if "_t" in value and "p" in value:
            _check_class(value["p"])
        for part in value.values():
            _check_content(part)
