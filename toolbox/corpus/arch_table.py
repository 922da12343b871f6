"""Whole architectures as tiny configurations: those of ``architectures.toml``, and any other."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Literal

from toolbox.corpus.tables import tables

_TABLES = tables(Path(__file__).with_name("architectures.toml"))
_ANY = _TABLES.pop("any")
COMMON: dict[str, Any] = _ANY.pop("common")
_LARGEST = 2e7
"""Parameters of a model that is made on demand."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One architecture.

    Attributes:
        model_type: as ``transformers`` calls it.
        why: what its norms show that others do not.
        settings: over ``COMMON``.
        model: class name in ``transformers``; "" for the causal language model of ``model_type``.
        kind: ``tokens`` (int64 [batch, sequence]) or ``pixels`` (float [batch, 3, 16, 16]).
    """

    model_type: str
    why: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: str = ""
    kind: Literal["tokens", "pixels"] = "tokens"

    @property
    def input(self) -> str:
        """Return the name of the input."""
        return "pixel_values" if self.kind == "pixels" else "input_ids"

    def config(self) -> Any:
        """Return the configuration."""
        import transformers

        return transformers.AutoConfig.for_model(self.model_type, **{**COMMON, **self.settings})


def _size(entry: Entry) -> float:
    """Return the number of parameters; without end where the model is not made."""
    import torch
    import transformers

    try:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(entry.config())
    except Exception:  # each model refuses settings in its own way
        return math.inf
    return sum(parameter.numel() for parameter in model.parameters())


def _runs(entry: Entry) -> bool:
    """Return whether a model runs; some take settings that their code does nothing with."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(entry.config())
    try:
        with torch.no_grad():
            model.eval()(torch.ones((2, 7)).long())
    except Exception:  # each model fails in its own way
        return False
    return True


class _Entries(dict[str, Entry]):
    """The entries of the file, and on demand one for any other causal language model."""

    def __missing__(self, model_type: str) -> Entry:
        """Return the smallest model of a type that runs, by the settings of ``any``.

        Raises:
            KeyError: it is no such type, or has its sizes elsewhere and is large.
        """
        sized = [(_size(one), one) for one in (Entry(model_type, "", own) for own in _ANY.values())]
        small = [one for size, one in sorted(sized, key=lambda own: own[0]) if size <= _LARGEST]
        if not small:
            raise KeyError(model_type)
        return next(filter(_runs, small), small[0])


ENTRIES = _Entries({name: Entry(**{"model_type": name, **of}) for name, of in _TABLES.items()})
