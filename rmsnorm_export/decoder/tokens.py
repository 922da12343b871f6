"""Inputs of a decoder that are those of a text: masks, and positions after a padded beginning."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from rmsnorm_export.decoder.bundle import state_name, states_of
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.proof.comparison import Defined, Prepare, Reference
from rmsnorm_export.runtime.sizes import agree

TOKENS = ("input_ids", "decoder_input_ids", "inputs_embeds")


@dataclasses.dataclass(slots=True, eq=False)
class Held:
    """What graphs gave of a cache, for the graphs after them.

    A trained model makes much of the rounding in a cache of random numbers, which no text leaves:
    a sum in another order changed logits by 6e-4 of the largest there, and by 1e-6 after a text.

    Attributes:
        leaves: by their paths.
        tokens: how many there are of the text.
    """

    leaves: dict[str, Array] = dataclasses.field(default_factory=dict)
    tokens: int | None = None

    def given(self, graph: ir.Graph) -> dict[str, Array]:
        """Return the inputs of a graph that are known, by name."""
        paths, given = states_of(graph), {}
        for value in graph.inputs:
            array = self.leaves.get(state_name(str(value.name))) if value.name in paths else None
            shape = None if array is None else value.shape
            if array is not None and shape is not None and agree([*shape], array.shape):
                given[str(value.name)] = array
        return given

    def keep(self, reference: Reference) -> None:
        """Take what a graph gave for a text, beside which other outputs do no harm.

        Where a graph does not change a cache, as that of an encoder, it may give an empty one.
        """
        outputs = reference.outputs.items()
        self.leaves |= {state_name(name): one for name, one in outputs if one.size}
        for name in TOKENS:
            if name in reference.feeds:
                self.tokens = (self.tokens or 0) + reference.feeds[name].shape[1]


def as_text(graph: ir.Graph, held: Held | None = None) -> Prepare:
    """Return what makes random inputs of a decoder's graph those of a text, see `pad_first_row`.

    What a prompt has at its padding is not compared: nothing sees it, and where nothing is to be
    seen, an attention gives what its Softmax makes of a mask.
    """
    states = states_of(graph)
    ranks = {str(v.name): len(v.shape) for v in graph.outputs if v.shape is not None}

    def prepare(feeds: dict[str, Array]) -> Defined:
        filled = pad_first_row(feeds, states, None if held is None else held.tokens)
        mask, ids = feeds.get("attention_mask"), feeds.get("input_ids")
        if mask is not None and ids is not None and mask.shape == ids.shape and mask.shape[1] > 1:
            tokens = {"logits": 1, **dict.fromkeys(states.values(), 2)}
            return {
                name: (*[slice(None)] * axis, slice(1, None))
                for name, axis in tokens.items()
                if ranks.get(name) == axis + 2
            }
        part = (slice(None), slice(None), slice(filled))
        caches = [out for name, out in states.items() if filled and feeds[name].ndim == 4]
        return dict.fromkeys(caches, part)

    return prepare


def pad_first_row(
    feeds: Mapping[str, Array], states: Collection[str], held: int | None = None
) -> int:
    """Pad the first row on the left, and count positions after it, in place.

    Ones alone would hide that an attention takes one row's positions for all. Masks of a cache of
    fixed size, and its counters, are of one text, too.

    Args:
        feeds: of the graph.
        states: the parts of the cache among them.
        held: how many tokens a cache of fixed size has; None: half of what it can.

    Returns:
        How many slots of such a cache have tokens; 0 without one. What the others hold is never
        seen, and an attention that takes the cache in leaves them undefined.
    """
    mask, positions = feeds.get("attention_mask"), feeds.get("position_ids")
    fixed = [n for n, array in feeds.items() if n.startswith("attention_mask") and array.ndim == 4]
    if fixed:
        rows, _, count, slots = feeds[fixed[0]].shape
        start = (slots - count) // 2 if held is None else held
        start = start if any(feeds[name].ndim == 4 for name in states) else 0
        mask = np.ones((rows, start + count), np.int64)
        for name in states:
            if feeds[name].ndim == 0:  # what each layer counts
                feeds[name][...] = start
    if mask is None or mask.ndim != 2:
        return 0
    mask[0, 0] = 0
    total = mask.shape[1]
    for name in fixed:
        filled = np.pad(mask, ((0, 0), (0, slots - total))).astype(bool)[:, None, None]
        feeds[name][:] = filled & (np.arange(slots) <= np.arange(total - count, total)[:, None])
    if positions is not None and positions.ndim == 2:
        counted = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -positions.shape[1] :]
        if counted.shape == positions.shape:
            positions[:] = counted
    return total if fixed else 0
