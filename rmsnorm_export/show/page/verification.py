"""Two models compared on the same inputs: every output with its bounds and its histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rmsnorm_export.printable import number, one_line
from rmsnorm_export.show.page.histogram import histogram
from rmsnorm_export.show.page.markup import (
    Markup,
    code,
    facts,
    join,
    many,
    scroller,
    shortened,
    tag,
)
from rmsnorm_export.show.page.rewrites import badge
from rmsnorm_export.show.page.section import Section

_HISTOGRAMS = 60
_ROWS = 5000


class Metrics(Protocol):
    """What is shown of ``proof.metrics.ErrorMetrics``."""

    @property
    def max_abs(self) -> float: ...
    @property
    def max_rel(self) -> float: ...
    @property
    def max_ulp(self) -> float: ...
    @property
    def mean_ulp(self) -> float: ...
    @property
    def ulp_histogram(self) -> tuple[tuple[str, int], ...]: ...
    @property
    def mismatch(self) -> float: ...
    @property
    def cosine(self) -> float: ...
    @property
    def nan_inf_agree(self) -> bool: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


class Output(Protocol):
    """What is shown of ``proof.compare.OutputComparison``."""

    @property
    def name(self) -> str: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def bound_abs(self) -> float: ...
    @property
    def bound_ulp(self) -> float | None: ...
    @property
    def passed(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def tolerance(self) -> str: ...


class Norm(Protocol):
    """What is shown of ``proof.compare.DifferenceSite``."""

    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def module(self) -> str | None: ...
    @property
    def place(self) -> str: ...


class FirstDifference(Protocol):
    """What is shown of ``proof.compare.Difference``."""

    @property
    def value(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def module(self) -> str | None: ...
    @property
    def site(self) -> Norm | None: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def conclusion(self) -> str: ...
    @property
    def comparison(self) -> Output: ...
    @property
    def compared(self) -> int: ...
    @property
    def shared(self) -> int: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


class Verified(Protocol):
    """What is shown of ``proof.compare.Verification``; reports know no proofs' modules."""

    @property
    def passed(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def outputs(self) -> Sequence[Output]: ...
    @property
    def runtime(self) -> str: ...
    @property
    def optimized(self) -> tuple[bool, bool]: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def source(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def backends(self) -> tuple[str, str]: ...
    @property
    def first_difference(self) -> FirstDifference | None: ...


_NUMBERS = (
    "Max abs",
    "Allowed",
    "Max rel",
    "Max ulp",
    "Ulp allowed",
    "Mean ulp",
    "Differ",
    "Cosine",
)


def verification_section(
    verified: Verified, a: str = "the first model", b: str = "the second model"
) -> Section:
    """The comparison of two models.

    Args:
        verified: its outcome.
        a, b: what was compared: paths, or e.g. ``PyTorch``.
    """
    first, second = (
        f"graph optimization {'on' if on else 'off'}, backend {backend}"
        if backend.startswith("onnxruntime")
        else f"backend {backend}"
        for backend, on in zip(verified.backends, verified.optimized, strict=True)
    )
    body = [
        tag("p", _verdict(verified)),
        tag("p", one_line(verified.reason), class_="bad-text") if verified.reason else None,
        facts(
            [
                ("A", tag("span", code(a), f", {first}")),
                ("B", tag("span", code(b), f", {second}")),
                ("Runtime", one_line(verified.runtime)),
                ("Inputs", one_line(verified.source)),
                (
                    "Fed",
                    tag("ul", *(tag("li", code(x)) for x in verified.inputs[:100]), class_="names"),
                ),
                (
                    "Notes",
                    join(tag("p", one_line(n)) for n in verified.notes) if verified.notes else None,
                ),
            ]
        ),
        _difference(verified.first_difference),
        scroller("Outputs", _table(verified.outputs[:_ROWS])),
        _rest(len(verified.outputs) - _ROWS, "output"),
        _histograms(verified.outputs),
    ]
    return Section("verification", "Verification", join(body), len(verified.outputs))


def _difference(first: FirstDifference | None) -> Markup | None:
    """Where the models begin to differ."""
    if first is None:
        return None
    metrics, site = first.comparison.metrics, first.site
    places = {
        "at": "it computes the value",
        "among": "among its nodes",
        "before": "the last before",
    }
    computed = "an input" if not first.op else tag("span", first.op, " ", code(first.node, 200))
    listed = tag("ul", *(tag("li", code(x, 200)) for x in first.inputs[:100]), class_="names")
    return join(
        [
            tag("h3", "First difference"),
            tag("p", one_line(first.conclusion), class_="bad-text"),
            facts(
                [
                    ("Value", code(first.value, 200)),
                    ("Computed by", computed),
                    ("Module", code(first.module, 200) if first.module else None),
                    (
                        "Norm",
                        None
                        if site is None
                        else tag(
                            "span",
                            f"{site.op} ",
                            code(site.name, 200),
                            f" ({places.get(site.place, site.place)})",
                        ),
                    ),
                    (
                        "Differs by",
                        f"{number(metrics.max_abs)}, {number(first.comparison.bound_abs)} allowed",
                    ),
                    ("Allowed", one_line(first.comparison.tolerance)),
                    ("Computed from", listed if first.inputs else None),
                    ("Compared", f"{first.compared:,} of {many(first.shared, 'shared value')}"),
                    (
                        "Notes",
                        join(tag("p", one_line(n)) for n in first.notes) if first.notes else None,
                    ),
                ]
            ),
        ]
    )


def _verdict(verified: Verified) -> Markup:
    good = sum(output.passed for output in verified.outputs)
    said = badge("agree", "good") if verified.passed else badge("DIFFER", "bad")
    return join(
        [
            "The models ",
            said,
            f": {good:,} of {many(len(verified.outputs), 'output')} within bounds.",
        ]
    )


def _rest(count: int, noun: str) -> Markup | None:
    return tag("p", f"and {many(count, f'more {noun}')}", class_="note") if count > 0 else None


def _table(outputs: Sequence[Output]) -> Markup:
    heads = [tag("th", name, scope="col") for name in ("Output", "Verdict", "Type")]
    heads += [tag("th", name, scope="col", class_="num") for name in _NUMBERS]
    heads += [tag("th", name, scope="col") for name in ("NaN, inf", "Why so much is allowed")]
    return tag(
        "table",
        tag("caption", "Outputs of B against those of A", class_="hidden"),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *map(_row, outputs)),
    )


def _row(output: Output) -> Markup:
    metrics = output.metrics
    shape = "\u00d7".join(map(str, metrics.shape)) or "scalar"
    numbers = (
        number(metrics.max_abs),
        number(output.bound_abs),
        number(metrics.max_rel),
        number(metrics.max_ulp),
        "\u2013" if output.bound_ulp is None else number(output.bound_ulp),
        number(metrics.mean_ulp),
        f"{metrics.mismatch:.2%}",
        f"{metrics.cosine:.7f}",
    )
    return tag(
        "tr",
        tag("th", code(output.name, 200), scope="row"),
        tag("td", badge("ok", "good") if output.passed else badge("FAILED", "bad")),
        tag("td", f"{shortened(metrics.dtype, 40)} {shape[:200]}"),
        *(tag("td", text, class_="num") for text in numbers),
        tag("td", "agree" if metrics.nan_inf_agree else "do NOT agree"),
        tag("td", shortened(output.tolerance, 300)),
    )


def _histograms(outputs: Sequence[Output]) -> Markup | None:
    """Those of failed outputs first, as far as they are shown."""
    ordered = sorted(outputs, key=lambda output: output.passed)
    figures = []
    for output in ordered[:_HISTOGRAMS]:
        picture = histogram(
            output.metrics.ulp_histogram, f"output {output.name[:100]}, B against A"
        )
        if picture is not None:
            figures.append(tag("figure", tag("figcaption", code(output.name, 60)), picture))
    if not figures:
        return None
    title = tag("h3", "Elements by distance in ulp, logarithmic")
    rest = _rest(len(outputs) - _HISTOGRAMS, "output")
    return join([title, tag("div", *figures, class_="figures"), rest])
