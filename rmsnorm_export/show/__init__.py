"""Results for people: the lines and the page of each, from the same rows.

``show_lines``, ``to_text`` and ``to_html`` take any result. A module shows one kind of result, with
a function for its lines and, where it has one, for its page; it is imported when it is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

    from rmsnorm_export.show.page.document import About
    from rmsnorm_export.show.page.markup import Markup
    from rmsnorm_export.show.text import Line

_HOMES = {
    "Benchmark": ("benchmark", "benchmark"),
    "Built": ("plugin", "built"),
    "CheckResult": ("plugin", "plugin_check"),
    "CommandLines": ("plugin", "loader"),
    "Components": ("components", "components"),
    "Deployment": ("deployment", "deployment"),
    "Diagnosis": ("doctor", "diagnosis"),
    "EngineCheck": ("engine", "engine_check"),
    "EngineResult": ("engine", "engine"),
    "GenerationExport": ("generation", "generation"),
    "Packaged": ("package", "package"),
    "Report": ("report", "report"),
    "Verification": ("verification", "verification"),
}
"""Class of a result -> the module that shows it, and what the names of its functions begin with."""


def _function(result: object, form: str) -> Callable[..., Any]:
    """What makes the lines or the page of a result.

    Raises:
        TypeError: nothing makes that of it.
    """
    name = type(result).__name__
    if name in _HOMES:
        module, prefix = _HOMES[name]
        home = importlib.import_module(f"{__name__}.{module}")
        function: Callable[..., Any] | None = getattr(home, f"{prefix}_{form}", None)
        if function is not None:
            return function
    raise TypeError(f"{name} has no {form} to show")


def show_lines(result: object, *, verbose: int = 0, **options: object) -> Sequence[Line]:
    """A result as lines with styles.

    Args:
        result: of a command, or of the function behind it.
        verbose: below 0 the verdict alone, above 0 with all details.
        options: of the function that makes the lines, e.g. ``compared`` of a verification.
    """
    lines: Sequence[Line] = _function(result, "lines")(result, verbose=verbose, **options)
    return lines


def to_text(result: object, *, verbose: int = 0, **options: object) -> str:
    """A result as plain text; arguments as for ``show_lines``."""
    from rmsnorm_export.show.text import render

    return render(show_lines(result, verbose=verbose, **options))


def to_html(result: object, *, about: About | None = None, **options: object) -> str:
    """A result as a page: a file that needs no other and no network.

    Args:
        result: any; one without a page of its own is its tables and its text.
        about: date, versions and the like, which the result does not know.
        options: of the function that makes the page: ``sections`` for a report, ``compared`` and
            ``sections`` for a verification.
    """
    from rmsnorm_export.show.page.document import About

    about = about or About()
    try:
        page = _function(result, "page")
    except TypeError:
        from rmsnorm_export.show.page.plain import plain_page

        return plain_page(type(result).__name__, show_lines(result), _tables(result), about)
    html: str = page(result, about=about, **options)
    return html


def _tables(result: object) -> Sequence[Markup]:
    """The tables of a result; () where it has none."""
    try:
        tables: Sequence[Markup] = _function(result, "tables")(result)
    except TypeError:
        return ()
    return tables


def to_json(result: object) -> str:
    """A result as its JSON document."""
    from rmsnorm_export.records import to_json

    return to_json(result)


def to_rich(result: object) -> Text:
    """A result as rich prints it, with styles."""
    from rmsnorm_export.show.text import rich_text

    return rich_text(show_lines(result))


def headline_of(result: object) -> str:
    """The verdict as one line."""
    from rmsnorm_export.show.text import text_of

    return "; ".join(text_of(line).strip() for line in show_lines(result, verbose=-1))


def to_fragment(result: object) -> str:
    """A result for a notebook: its verdict, its tables, and its text to open."""
    from rmsnorm_export.show.page.plain import fragment

    return fragment(show_lines(result, verbose=-1), _tables(result), show_lines(result))
