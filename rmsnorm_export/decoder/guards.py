"""The prompts for which a traced graph computes what its module does.

PyTorch unrolls a loop over chunks of tokens (Qwen3-Next) as often as it ran in the trace, and keeps
what it assumed of sizes as guards, for which ONNX has no place. That a text is padded to whole
chunks (Mamba-2) is a guard, too, but no limit: a graph that pads by nothing computes the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import torch

from rmsnorm_export.decoder.inputs import TEXT

_MOST = 2**15
"""Tokens up to which guards are asked."""


def lengths_of(program: Any, feeds: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the fewest and the most tokens for which a trace holds; None: any number, or unknown.

    Args:
        program: a ``torch.export.ExportedProgram``.
        feeds: with which it was traced.
    """
    text = {n: feeds[n] for n in (*TEXT, "decoder_input_ids") if torch.is_tensor(feeds.get(n))}
    ids = text.get("input_ids", text.get("decoder_input_ids"))
    if ids is None or ids.dim() < 2 or (traced := ids.shape[1]) == 1:
        return None
    # The others are about the layout of memory, and about sizes that tracing does not tell apart.
    written = (guard for guard in program._guards_code if not re.search("!=|>=", guard))
    guards = [compile(guard, "guard", "eval") for guard in written]

    def is_met(tokens: int) -> bool:
        tensors = {}
        for name, value in text.items():
            # Of several axes of positions the second is the rows, which may be as many; a mask of
            # four axes has the tokens before the places of a cache.
            shape, axis = [*value.shape], -2 if value.dim() == 4 else -1
            shape[axis] = tokens if shape[axis] == traced else shape[axis]
            tensors[name] = torch.empty(shape, device="meta")
        return all(_is_met(guard, tensors) for guard in guards)

    def holds(tokens: int) -> bool:
        """Return whether guards hold, or fail for this number alone, as those of a padding do."""
        return is_met(tokens) or is_met(tokens + (1 if tokens > traced else -1))

    if not holds(traced) or (holds(1) and holds(_MOST)):
        return None
    return _last(holds, traced, 0), _last(holds, traced, _MOST + 1)


def _last(holds: Callable[[int], bool], good: int, bad: int) -> int:
    """Return the last number that holds on the way from one that does to one that does not."""
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _is_met(guard: CodeType, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Return whether a guard holds, or is about something else than the text."""
    try:
        return bool(eval(guard, {"L": tensors}))
    except ZeroDivisionError:  # by a number of chunks
        return False
    except (LookupError, AttributeError, TypeError, NameError):
        return True
