"""Results for people: text and one page, from the same lines and tables.

A module shows one kind of result, or a few: ``KIND_blocks`` makes its lines and tables, the verdict
first. A page has those of ``-v``, a section for each title.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from rmsnorm_export.records import kind_of

if TYPE_CHECKING:
    from rmsnorm_export.show.text import Block, Line

_HOMES = {
    "benchmark": "Benchmark",
    "deployment": "Deployment Packaged",
    "engine": "EngineRecord EngineResult",
    "folder": "Components GenerationExport",
    "installation": "Built Diagnosis",
    "report": "Report",
    "verification": "Verification",
}
"""Module -> the classes of results that it shows."""

_SHOWN_IN = {name: module for module, names in _HOMES.items() for name in names.split()}


def show_blocks(result: object, *, verbose: int = 0, **options: Any) -> Sequence[Block]:
    """Return a result as lines and tables.

    Args:
        result: of a command, or of its function.
        verbose: below 0 the verdict alone, above 0 with all details.
        options: of the function that makes them, e.g. ``compared`` of a verification.

    Raises:
        TypeError: nothing makes lines of it.
    """
    kind = type(result)
    if kind.__name__ not in _SHOWN_IN:
        raise TypeError(f"{kind.__name__} has no lines to show")
    module = importlib.import_module(f"{__name__}.{_SHOWN_IN[kind.__name__]}")
    make = getattr(module, f"{kind_of(kind)}_blocks")
    blocks: Sequence[Block] = make(result, verbose=verbose, **options)
    return blocks


def _verdicts(result: object) -> list[Line]:
    from rmsnorm_export.show.text import flat

    return flat(show_blocks(result, verbose=-1))


_OF_A_MODEL = ("Report", "Benchmark")
"""Results whose ``source`` is a model."""


def to_html(
    result: object, *, before: Sequence[Block] = (), after: Sequence[Block] = (), **options: Any
) -> str:
    """Return a result with all its details as a page: a file that needs no other and no network.

    Args:
        result: any.
        before: lines above the result, e.g. what failed.
        after: more parts, at the end.
        options: as for ``show_blocks``.
    """
    from rmsnorm_export.show.page import render

    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(result).__name__).capitalize()
    about_model: Any = result
    if type(result).__name__ in _OF_A_MODEL:
        title = f"{PurePath(about_model.source).name}: {title.lower()}"
    if names := options.get("compared"):
        title = f"{' and '.join(PurePath(name).name for name in names)}: {title.lower()}"
    blocks, verdicts = show_blocks(result, verbose=1, **options), _verdicts(result)
    if [*blocks[: len(verdicts)]] == verdicts:  # they head the page
        blocks = blocks[len(verdicts) :]
    return render(title, verdicts or [title], [*before, *blocks, *after])


def to_text(result: object, *, verbose: int = 0, **options: Any) -> str:
    """Return a result as plain text; arguments as for ``show_blocks``."""
    from rmsnorm_export.show.text import render

    return render(show_blocks(result, verbose=verbose, **options))


def headline_of(result: object) -> str:
    """Return the verdict as one line."""
    from rmsnorm_export.show.text import text_of

    return "; ".join(text_of(line).strip() for line in _verdicts(result))


def to_fragment(result: object) -> str:
    """Return a result for a notebook: its text and tables."""
    from rmsnorm_export.show.page import fragment

    return fragment(show_blocks(result))
