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
        limit: integers in random inputs must be smaller.
    """

    module: torch.nn.Module | torch.export.ExportedProgram
    name: str
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] | None = None
    shapes: str = ""
    limit: int = 2


def integer_limit(module: object) -> int:
    """Length of the shortest embedding table: every index below it is valid."""
    if not isinstance(module, torch.nn.Module):
        return 2
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, torch.nn.Embedding)]
    return min(tables, default=2)
