"""The parts of a page: what later reports (benchmarks, pipeline steps) add theirs as."""

from __future__ import annotations

import dataclasses

from rmsnorm_export.show.page.markup import Markup


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with a heading and an entry in the navigation.

    Attributes:
        id: of the element; letters and hyphens, unique on the page.
        title: the heading.
        body: made with ``markup.tag``, which escapes what comes from a model.
        count: a number behind the title in the navigation; None: none.
    """

    id: str
    title: str
    body: Markup
    count: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """What a page says of its making, next to the result itself.

    Attributes:
        date: when the result was made, e.g. ``2026-01-31 12:00 UTC``.
        versions: name and version of what made it.
        facts: more lines for the summary: name and text, e.g. ``("output", "fused.onnx, 3 MiB")``.
        problem: what / found / fix of the error that the run ended with.
    """

    date: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    problem: tuple[str, str, str] | None = None
