"""Caches of transformers: which of a model's arguments they are, and what each tensor in them is.

Paths are those by which transformers' exporter names the inputs of a graph. What a tensor is
follows from where the cache itself holds it, never from its path.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch

from rmsnorm_export.decoder.encoders import replaced


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
    for cross, cache in caches_of(cache_in(feeds)).items():
        for number, layer in enumerate(cache.layers):
            for kind in ("key", "value"):  # a layer of another kind has none
                if (path := paths.get(id(getattr(layer, f"{kind}s", None)))) is not None:
                    parts[path] = CachePart(number, kind, cross)
    return parts


def caches_of(cache: Any) -> dict[bool, Any]:
    """Map False to a cache; of an encoder-decoder True to that of the encoder's result, too."""
    from transformers.cache_utils import EncoderDecoderCache

    if isinstance(cache, EncoderDecoderCache):
        return {False: cache.self_attention_cache, True: cache.cross_attention_cache}
    return {} if cache is None else {False: cache}


@contextlib.contextmanager
def whole_caches(*, static: bool) -> Iterator[None]:
    """Hold every token in layers with a window, too; the mask keeps to the window.

    transformers' own layers of a fixed size move along the window once it is full: which of the two
    happens is decided in Python, so that a traced step would do for ever what it did once. Those
    that grow drop what is out of the window, so that layers have keys of other lengths.
    """
    from transformers import cache_utils

    growing, fixed = cache_utils.DYNAMIC_LAYER_TYPE_MAPPING, cache_utils.STATIC_LAYER_TYPE_MAPPING
    layers = fixed if static else growing
    whole = {"sliding_attention": "full_attention", "chunked_attention": "full_attention"}
    whole["hybrid_sliding"] = "hybrid"
    before = dict(layers)
    layers.update({name: before[other] for name, other in whole.items() if name in before})
    try:
        yield
    finally:
        layers.update(before)


@contextlib.contextmanager
def own_tokens_alone(model: Any, size: int) -> Iterator[None]:
    """Let a prompt attend to its own tokens, not to all places of the cache that it fills.

    A layer of a fixed size gives all of its places back, and the mask, [batch, heads, tokens,
    places], hides those without a token. transformers leaves them out where there is no mask.
    An encoder-decoder makes its mask itself, of the size that its layers say.

    Args:
        model: that is traced.
        size: of the cache.
    """
    from transformers.cache_utils import StaticLayer

    update, sizes = StaticLayer.update, StaticLayer.get_mask_sizes

    def sized(layer: Any, tokens: int) -> tuple[int, int]:
        return sizes(layer, tokens) if layer.is_initialized else (tokens, 0)

    def updated(layer: Any, keys: Any, values: Any, *args: Any, **how: Any) -> tuple[Any, Any]:
        is_empty = not layer.is_initialized
        places = update(layer, keys, values, *args, **how)
        return (keys, values) if is_empty else places

    def cut(mask: Any) -> Any:
        if isinstance(mask, Mapping):  # of layers of several kinds
            return {kind: cut(one) for kind, one in mask.items()}
        is_of_places = isinstance(mask, torch.Tensor) and mask.dim() == 4
        return mask[..., : mask.shape[-2]] if is_of_places and mask.shape[-1] == size else mask

    def before(_: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {name: cut(v) if name.endswith("mask") else v for name, v in given.items()}

    hook = model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        with (
            replaced(StaticLayer, "update", updated),
            replaced(StaticLayer, "get_mask_sizes", sized),
        ):
            yield
    finally:
        hook.remove()
