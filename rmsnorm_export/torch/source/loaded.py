"""A module to export, as its source gave it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A module and, where its source gives them, example inputs.

    Attributes:
        module: a module, or an exported program.
        name: of the source, for messages.
        args, kwargs: example inputs; None when the source gives none.
        shapes: what ``--shapes`` would be by default, or "".
    """

    module: torch.nn.Module | torch.export.ExportedProgram
    name: str
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] | None = None
    shapes: str = ""

    @property
    def limit(self) -> int:
        """Integers in inputs are smaller: the length of the shortest embedding table, else 2."""
        if not isinstance(self.module, torch.nn.Module):
            return 2
        modules = self.module.modules()
        tables = (m.num_embeddings for m in modules if isinstance(m, torch.nn.Embedding))
        return min(tables, default=2)
