"""Results for people: the lines and the page of each, from the same rows.

A module shows one kind of result: ``X_lines`` makes its text, ``X_tables`` its tables where it has
some, and ``X_page`` its page where that is more than both. It is imported when it is needed.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

    from rmsnorm_export.show.page import About, Page, Section, Table
    from rmsnorm_export.show.text import Line

_HOMES = {
    "Benchmark": ("benchmark", "benchmark"),
    "Built": ("plugin", "built"),
    "CheckResult": ("plugin", "plugin_check"),
    "CommandLines": ("plugin", "loader"),
    "Components": ("components", "components"),
    "Deployment": ("deployment", "deployment"),
    "Diagnosis": ("doctor", "diagnosis"),
    "EngineRecord": ("engine", "record"),
    "EngineResult": ("engine", "engine"),
    "GenerationExport": ("generation", "generation"),
    "Packaged": ("package", "package"),
    "Report": ("report", "report"),
    "Verification": ("verification", "verification"),
}
"""Class of a result -> the module that shows it, and what the names of its functions begin with."""


def _function(result: object, form: str) -> Callable[..., Any] | None:
    """Return what makes the lines, the tables or the page of a result; None where nothing does."""
    module, prefix = _HOMES.get(type(result).__name__, ("", ""))
    if not module:
        return None
    home = importlib.import_module(f"{__name__}.{module}")
    function: Callable[..., Any] | None = getattr(home, f"{prefix}_{form}", None)
    return function


def show_lines(result: object, *, verbose: int = 0, **options: Any) -> Sequence[Line]:
    """Return a result as lines with styles.

    Args:
        result: of a command, or of the function behind it.
        verbose: below 0 the verdict alone, above 0 with all details.
        options: of the function that makes the lines, e.g. ``compared`` of a verification.

    Raises:
        TypeError: nothing makes lines of it.
    """
    function = _function(result, "lines")
    if function is None:
        raise TypeError(f"{type(result).__name__} has no lines to show")
    lines: Sequence[Line] = function(result, verbose=verbose, **options)
    return lines


def _tables(result: object) -> Sequence[Table]:
    function = _function(result, "tables")
    return () if function is None else function(result)


def section_of(result: object, title: str, **options: Any) -> Section:
    """Return a result as a section of another's page: its tables, and its text without them."""
    from rmsnorm_export.show.page import Section, Text

    return Section(title, [Text(show_lines(result, **options)), *_tables(result)])


def page_of(result: object, **options: Any) -> Page:
    """Return a result as a page: its own, or verdict, text and tables."""
    from rmsnorm_export.show.page import Page, Text
    from rmsnorm_export.show.text import kind_of_line, text_of

    function = _function(result, "page")
    if function is not None:
        page: Page = function(result)
        return page
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(result).__name__).capitalize()
    first, *rest = show_lines(result, **options) or [title]
    verdicts = [(text_of(first).strip(), kind_of_line(first))]
    return Page(title, "", verdicts, [Text(rest), *_tables(result)])


def to_html(
    result: object,
    *,
    about: About | None = None,
    sections: Sequence[Section] = (),
    **options: Any,
) -> str:
    """Return a result as a page: a file that needs no other and no network.

    Args:
        result: any.
        about: date, versions and the like, which the result does not know.
        sections: more parts, at the end.
        options: as for ``show_lines``.
    """
    from rmsnorm_export.show.page import About, render

    page = page_of(result, **options)
    page = dataclasses.replace(page, sections=[*page.sections, *sections])
    return render(page, about or About())


def to_text(result: object, *, verbose: int = 0, **options: Any) -> str:
    """Return a result as plain text; arguments as for ``show_lines``."""
    from rmsnorm_export.show.text import render

    return render(show_lines(result, verbose=verbose, **options))


def to_json(result: object) -> str:
    """Return a result as its JSON document."""
    from rmsnorm_export.records import to_json

    return to_json(result)


def to_rich(result: object) -> Text:
    """Return a result as rich prints it, with styles."""
    from rmsnorm_export.show.text import rich_text

    return rich_text(show_lines(result))


def headline_of(result: object) -> str:
    """Return the verdict as one line."""
    from rmsnorm_export.show.text import text_of

    return "; ".join(text_of(line).strip() for line in show_lines(result, verbose=-1))


def to_fragment(result: object) -> str:
    """Return a result for a notebook: its verdict, its tables, and its text to open."""
    from rmsnorm_export.show.page import fragment

    return fragment(show_lines(result, verbose=-1), _tables(result), show_lines(result))
