"""The part of ``export.json`` on how a graph is called, written anew for the model.

transformers imports the classes that it names, and makes objects of them. So each is looked up in a
list of those that the model's own modules and transformers' caches define.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rmsnorm_export.decoder.structures import ClassNames, structure_anew
from rmsnorm_export.system.files import MALFORMED, refusals_as
from rmsnorm_export.torch.dtypes import FLOATS


def checked_metadata(model: Any, name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what transformers' runner needs to call a graph.

    Args:
        model: of transformers, which the graph was made of.
        name: of the graph, for errors.
        metadata: of the graph, in the manifest.

    Raises:
        InputError: it names anything but containers and this model's caches and outputs, or is not
            built as transformers builds it.
    """
    what = "The manifest of the export does not say how its graphs are called."
    fix = "export the model again; or compare the components one by one, without --generate"
    with refusals_as(what, name, fix=fix, also=MALFORMED):
        dtype = metadata["export_dtype"]
        outputs = structure_anew(metadata["out_spec"], _ModelNames(model))
        constants = [[place, value] for place, value in metadata.get("out_constants") or ()]
        if dtype not in FLOATS:
            raise ValueError("it lacks the type of its weights")
        for place, value in constants:
            is_place = type(place) is int and place >= 0
            if not is_place or not isinstance(value, bool | int | float | str | None):
                raise ValueError("an output that is no tensor is none of a number, text or nothing")
        inputs: dict[str, Any] = {str(key): {} for key in metadata.get("kwargs") or ()}
    return {
        "export_dtype": dtype,
        "kwargs": inputs,
        "out_spec": outputs,
        "out_constants": constants,
    }


class _ModelNames(ClassNames):
    """The classes that the modules of a model, and those of caches and outputs, hold."""

    def __init__(self, model: Any) -> None:
        from transformers import PretrainedConfig, cache_utils, modeling_outputs
        from transformers.utils.generic import ModelOutput

        modules = {cache_utils.__name__, modeling_outputs.__name__, type(model.config).__module__}
        modules |= {kind.__module__ for part in model.modules() for kind in type(part).__mro__}
        self._classes = {
            f"{one.__module__}.{one.__qualname__}": one for one in _classes_of(modules)
        }
        self._of_parts = cache_utils.Cache, cache_utils.CacheLayerMixin, PretrainedConfig
        self._of_outputs = ModelOutput

    def is_part(self, path: str, fields: Iterable[str] = ()) -> bool:
        kind = self._classes.get(path)
        if kind is None or self.is_output(path):
            return False
        of_caches = path.endswith("Cache") or path.startswith("transformers.cache_utils.")
        replaces_method = any(callable(getattr(kind, field, None)) for field in fields)
        return (of_caches or issubclass(kind, self._of_parts)) and not replaces_method

    def is_output(self, path: str) -> bool:
        return issubclass(self._classes.get(path, object), self._of_outputs)


def _classes_of(modules: Iterable[str]) -> Iterator[type]:
    """Yield the classes of transformers that modules of it, which are loaded, define or import."""
    for name in sorted(modules):
        if name.startswith("transformers."):
            for value in list(vars(sys.modules[name]).values()):
                if isinstance(value, type) and value.__module__.startswith("transformers."):
                    yield value
