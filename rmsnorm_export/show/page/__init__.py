"""Results as one self-contained HTML page: ``to_html``, a pure function of what it is given.

A later kind of result makes ``Section``s of its own, with ``markup.tag``, and passes them to
``to_html`` beside a report, or to ``page`` alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show.page.page import page
from rmsnorm_export.show.page.refusals import refusal_sections
from rmsnorm_export.show.page.rewrites import rewrites, rewrites_section
from rmsnorm_export.show.page.section import About, Section
from rmsnorm_export.show.page.sites import sites_section
from rmsnorm_export.show.page.summary import report_summary, verification_summary
from rmsnorm_export.show.page.verification import Verified, verification_section

__all__ = ["About", "Section", "page", "to_html", "verification_section"]


def to_html(
    result: Report | Verified,
    *,
    about: About | None = None,
    planned: bool = False,
    compared: tuple[str, str] = ("the first model", "the second model"),
    sections: Sequence[Section] = (),
) -> str:
    """An HTML page of a result: a file that needs no other and no network.

    Args:
        result: of ``optimize`` or ``inspect`` (with ``drawings=True``, sites are drawn), or of
            ``verify``.
        about: date, versions and the like, which the result does not know.
        planned: nothing was changed (``inspect``), so say what can be, not what is.
        compared: what the two models of a verification are called.
        sections: more parts, at the end, e.g. ``verification_section(...)``.

    Raises:
        ValueError: two sections have one id.
    """
    about = about or About()
    if not isinstance(result, Report):
        summary = verification_summary(result, about)
        subject = f"{compared[0]} and {compared[1]}"
        parts = [summary, verification_section(result, *compared), *sections]
        return page("Verification", subject, parts)
    found = rewrites(result)
    parts = [
        report_summary(result, about, planned=planned),
        *(part for part in (rewrites_section(result, found),) if part),
        *(part for part in (sites_section(result, found),) if part),
        *refusal_sections(result, planned=planned),
        *sections,
    ]
    return page("RMSNorm report", result.source, parts)
