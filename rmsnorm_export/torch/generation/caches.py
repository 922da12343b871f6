"""Caches of transformers: which of a model's arguments they are, and what each tensor in them is.

Paths are those by which transformers' exporter names the inputs of a graph. What a tensor is
follows from where the cache itself holds it, never from its path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, slots=True)
class CachePart:
    """The keys or the values of one layer of attention.

    Attributes:
        layer: its number.
        kind: keys or values.
        cross: they are of an encoder's result, and do not grow.
    """

    layer: int
    kind: Literal["key", "value"]
    cross: bool


def cache_in(values: Mapping[str, Any]) -> Any:
    """Return the cache among the arguments, or the results, of a model; None without one."""
    from transformers.cache_utils import Cache

    return next((value for value in values.values() if isinstance(value, Cache)), None)


def cache_parts(feeds: Mapping[str, Any]) -> dict[str, CachePart]:
    """Map the path of each key and value tensor in ``feeds`` to what it is."""
    from transformers.exporters.utils import get_leaf_tensors

    paths = {id(tensor): path for path, tensor in get_leaf_tensors(dict(feeds)).items()}
    parts: dict[str, CachePart] = {}
    for cache, cross in _caches(cache_in(feeds)):
        for number, layer in enumerate(cache.layers):
            for kind in ("key", "value"):  # a layer of another kind has none
                if (path := paths.get(id(getattr(layer, f"{kind}s", None)))) is not None:
                    parts[path] = CachePart(number, kind, cross)
    return parts


def _caches(cache: Any) -> Iterator[tuple[Any, bool]]:
    """Yield a cache; of an encoder-decoder its two, and whether each is of the encoder."""
    from transformers.cache_utils import EncoderDecoderCache

    if isinstance(cache, EncoderDecoderCache):
        yield from ((cache.self_attention_cache, False), (cache.cross_attention_cache, True))
    elif cache is not None:
        yield cache, False
