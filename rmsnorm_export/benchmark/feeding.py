"""How the prefill and decode of a decoder's folder are fed."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import Any

from rmsnorm_export.graph.bundle import Bundle, is_state, state_name
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.runtime.inputs import declared_tensor, given_inputs
from rmsnorm_export.system.reading import read_json

_FED = frozenset({"input_ids", "position_ids"})
_MASK = re.compile(r"attention_mask(?:\.(?:full|(sliding))_attention)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Feeding:
    """What generating with prefill and decode takes.

    Attributes:
        inputs: of each component.
        start: of the cache, before the first token: shapes, with ``batch``, and types.
        slots: tokens that a cache of fixed size holds; 0: it grows.
        windows: tokens that a layer sees, by its mask; 0: all.
        shortest: tokens that a prompt needs, as a convolution is wide.
    """

    inputs: dict[str, tuple[str, ...]]
    start: dict[str, tuple[list[int | str | None], str]]
    slots: int
    windows: dict[str, int]
    shortest: int


def feeding_of(bundle: Bundle) -> Feeding | None:
    """How a folder's prefill and decode are fed; None where they are others than of text."""
    if bundle.files.keys() != {"prefill", "decode"}:
        return None
    models = {name: load_model(file).model for name, file in bundle.files.items()}
    inputs = {
        name: {one.name: one for one in map(declared_tensor, given_inputs(model))}
        for name, model in models.items()
    }
    if not all("logits" in {value.name for value in one.graph.outputs} for one in models.values()):
        return None
    given = {state_name(str(value.name)) for value in models["prefill"].graph.outputs}
    masks, start, slots, shortest = {}, {}, 0, 0
    for component, declared in inputs.items():
        for name, one in declared.items():
            sizes = one.shape or ()
            if mask := _MASK.fullmatch(name):
                width = sizes[3] if len(sizes) == 4 else None
                if isinstance(width, int):
                    slots = width
                elif len(sizes) != 2:
                    return None
                masks[name] = mask[1]
            elif name in _FED:
                continue
            elif not is_state(name) or state_name(name) not in given:
                return None
            elif component == "prefill":
                if not all(isinstance(size, int) or size == "batch" for size in sizes):
                    return None
                start[name] = (list(sizes), one.dtype)
            elif "conv_states" in name and sizes and isinstance(sizes[-1], int):
                shortest = max(shortest, sizes[-1])
    windows = dict.fromkeys(masks, 0)
    if slots:
        config = _text_config(bundle.folder)
        kinds = set(config.get("layer_types") or ("sliding_attention",))
        if not kinds <= {"sliding_attention", "full_attention"}:
            return None
        for name, sliding in masks.items():
            alone = name == "attention_mask" and kinds == {"sliding_attention"}
            windows[name] = int(config.get("sliding_window") or 0) if sliding or alone else 0
    return Feeding(
        inputs={name: tuple(declared) for name, declared in inputs.items()},
        start=start,
        slots=slots,
        windows=windows,
        shortest=shortest,
    )


def _text_config(folder: Path) -> dict[str, Any]:
    """What the model's config says of its layers; empty where there is none."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        config = read_json(folder / "config.json", infinite=True)
        return dict(config.get("text_config") or config)
    return {}
