"""The structures of an export's inputs and outputs, checked before transformers rebuilds them.

``export.json`` describes them as trees (``in_spec`` and ``out_spec``) whose nodes name Python
objects. The reader of ``transformers.exporters`` imports what is named, and calls it with what
stands beside: a folder from elsewhere could run anything. So a name is looked up by transformers
only where it is known to be a container, a cache or a model's output.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import quoted

_CONTAINERS = {"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}
_COLLECTIONS = {"builtins.set", "builtins.frozenset"} | _CONTAINERS
_CLASS = re.compile(r"transformers(\.\w+)*[.:]\w+", re.ASCII)
_TENSOR_FACTS = {"tensor", "sym", "size", "device", "dtype", "layout"}


def check_structures(manifest: Path) -> None:
    """Refuse an export whose structures name anything but containers, caches and outputs.

    Args:
        manifest: path of ``export.json``.

    Raises:
        InputError: it names something else, is not built like one, or cannot be read.
    """
    try:
        components = json.loads(manifest.read_text(encoding="utf-8"))["components"]
        for name, component in components.items():
            for key in ("in_spec", "out_spec"):
                if component["metadata"].get(key) is not None:
                    _, tree = json.loads(component["metadata"][key])
                    for problem in _problems(tree):
                        raise _refused(f"{manifest}, {key} of {name}: {problem}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _refused(f"{manifest}: its in_spec or out_spec is not built like one") from error


def _refused(found: str) -> InputError:
    return InputError(
        "The manifest of the export describes inputs or outputs that are not rebuilt here.",
        found=found,
        fix="export the model again; or compare the components one by one, without --generate",
    )


def _problems(node: Mapping[str, Any]) -> Iterator[str]:
    """What a node of ``torch.utils._pytree`` and those below it name that is not let through."""
    name, context = node["type"], node["context"]
    if name is not None:
        if name not in _CONTAINERS and not _is_known(name):
            yield f"{quoted(str(name))} is no container, cache or output of a model"
        else:
            yield from _named_in(json.loads(context))
    for child in node["children_spec"]:
        yield from _problems(child)


def _named_in(content: Any) -> Iterator[str]:
    """The same for what a node carries: keys, or the fields of a cache (``_t`` is what to make)."""
    if isinstance(content, list):
        for part in content:
            yield from _named_in(part)
    elif isinstance(content, dict):
        kind = content.get("_t")
        if "__enum__" in content:
            yield f"{quoted(str(content.get('fqn')))} would be imported"
        elif kind in _TENSOR_FACTS:
            return
        elif kind in ("type", "map", "seq", "obj"):
            name = str(content["p"]).replace(":", ".")
            if not (name in _COLLECTIONS and kind != "obj") and not _is_known(name):
                yield f"{quoted(name)} is no container or cache"
        elif kind not in (None, "items"):
            yield f"{quoted(str(kind))} is no kind of content that is known"
        for part in content.values():
            yield from _named_in(part)


def _is_known(name: str) -> bool:
    """Whether a name is that of a cache, one of its layers, a config or an output."""
    from transformers import PretrainedConfig, cache_utils
    from transformers.utils.generic import ModelOutput

    if not _CLASS.fullmatch(name):
        return False
    module, _, own = name.replace(":", ".").rpartition(".")
    try:
        found = getattr(importlib.import_module(module), own)
    except (ImportError, AttributeError):
        return False
    if not isinstance(found, type):
        return False
    if issubclass(found, (cache_utils.Cache, PretrainedConfig, ModelOutput)):
        return True
    # Layers share no base class, and some models have a cache that is none of transformers' own.
    return found.__module__ == cache_utils.__name__ or found.__name__.endswith("Cache")
