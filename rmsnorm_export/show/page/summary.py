"""The head of a page: the verdict, the numbers that carry it, and what was run on what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rmsnorm_export.op.numerics import NUMERICS_ORDER
from rmsnorm_export.printable import number, one_line
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show.page.markup import Content, Markup, code, facts, join, many, tag
from rmsnorm_export.show.page.rewrites import badge, largest
from rmsnorm_export.show.page.section import About, Section
from rmsnorm_export.show.page.verification import Verified
from rmsnorm_export.show.page.words import NUMERICS
from rmsnorm_export.show.report_text import head


def report_summary(report: Report, about: About, *, planned: bool) -> Section:
    """The summary of ``optimize``, or of ``inspect`` (``planned``)."""
    line = head(report, planned=planned)
    text, style = (line, "") if isinstance(line, str) else line
    failed = any(refusal.reason == "proof-failed" for refusal in report.refused)
    kind = "bad" if failed or about.problem else "warn" if "yellow" in style else "good"
    body = [
        _verdict(text, kind),
        _problem(about),
        _numbers(report, planned=planned),
        facts([*_about_model(report), *_made(about)], "facts wide"),
        *(tag("p", "Note: ", one_line(note), class_="note") for note in report.notes),
        _classes(report),
    ]
    return Section("summary", "Summary", join(body))


def verification_summary(verified: Verified, about: About) -> Section:
    """The summary of ``verify``."""
    outputs = verified.outputs
    good = sum(output.passed for output in outputs)
    said = "The models agree" if verified.passed else "The models differ by more than is allowed"
    worst = largest([output.metrics.max_ulp for output in outputs] or [0.0])
    differ = largest([output.metrics.mismatch for output in outputs] or [0.0])
    body = [
        _verdict(f"{said}: {good:,} of {many(len(outputs), 'output')} within bounds",
                 "good" if verified.passed else "bad"),
        _problem(about),
        _strip(
            [
                (f"{good:,} of {len(outputs):,}", "outputs within bounds"),
                (number(worst), "largest distance, ulp"),
                (f"{differ:.2%}", "of elements differ, at most"),
            ]
        ),
        facts(_made(about), "facts wide"),
    ]  # fmt: skip
    return Section("summary", "Summary", join(body))


def _verdict(text: str, kind: str) -> Markup:
    word = {"good": "\u2713", "warn": "!", "bad": "\u2717"}[kind]
    spoken = {"good": "good", "warn": "attention", "bad": "failed"}[kind]
    sign = tag("span", tag("span", word, aria_hidden="true"), tag("span", spoken, class_="hidden"))
    return tag("p", sign, tag("strong", text), class_=f"verdict {kind}")


def _problem(about: About) -> Markup | None:
    """The error that the run ended with, in its three lines."""
    if about.problem is None:
        return None
    what, found, fix = (one_line(text) for text in about.problem)
    lines = facts([("Error", what), ("Found", found or None), ("Fix", fix or None)])
    return tag("div", lines, class_="problem", role="note")


def _numbers(report: Report, *, planned: bool) -> Markup:
    refused, alike = report.unfused, report.look_alikes
    proofs = [site.proof for site in report.fused if site.proof is not None]
    shown = [
        (f"{len(report.fused):,}", "fusable" if planned else "fused"),
        (f"{len(report.kept):,}", "already one node"),
        (f"{len(refused):,}", "refused"),
        (f"{len(alike):,}", "look-alikes"),
    ]
    if report.nodes_after != report.nodes_before:
        shown.append((f"{report.nodes_before:,} \u2192 {report.nodes_after:,}", "nodes"))
    if proofs:
        held = sum(proof.passed for proof in proofs)
        worst = largest(proof.max_ulp for proof in proofs)
        shown.append((f"{held:,} of {len(report.fused):,}", "proofs hold"))
        shown.append((number(worst), "ulp, largest distance"))
    return _strip(shown)


def _strip(numbers: Iterable[tuple[str, str]]) -> Markup:
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for value, name in numbers),
        class_="strip",
    )


def _about_model(report: Report) -> Sequence[tuple[str, Content]]:
    opset = str(report.opset_before)
    if report.opset_after != report.opset_before:
        opset += f" \u2192 {report.opset_after}"
    nodes = f"{report.nodes_before:,}"
    if report.nodes_after != report.nodes_before:
        nodes += f" \u2192 {report.nodes_after:,}"
        if report.functions:
            nodes += f" + {many(report.functions, 'function')}"
    return [
        ("Model", code(report.source)),
        ("Target", report.target or "none: what is an RMSNorm at all"),
        ("Numerics up to", report.numerics),
        ("Opset", opset),
        ("Nodes", nodes),
        ("Time", f"{report.seconds:.2f} s"),
    ]


def _made(about: About) -> list[tuple[str, Content]]:
    pairs: list[tuple[str, Content]] = [(name, one_line(text)) for name, text in about.facts]
    if about.versions:
        versions = (tag("span", f"{name} {v}", class_="whole") for name, v in about.versions)
        pairs.append(("Versions", join(versions, ", ")))
    if about.date:
        pairs.append(("Date", about.date))
    return pairs


def _classes(report: Report) -> Markup | None:
    """How many sites have which class, and what the class promises."""
    counts = Counter(site.numerics for site in report.fused)
    if not counts:
        return None
    rows = [
        tag(
            "tr",
            tag("th", badge(name), scope="row"),
            tag("td", f"{counts[name]:,}", class_="num"),
            tag("td", NUMERICS[name]),
        )
        for name in NUMERICS_ORDER
        if counts[name]
    ]
    heads = (
        tag("th", "Class", scope="col"),
        tag("th", "Sites", scope="col", class_="num"),
        tag("th", "Promise", scope="col"),
    )
    caption = tag("caption", "Numerics of the rewrites")
    return tag(
        "table", caption, tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="wrap"
    )
