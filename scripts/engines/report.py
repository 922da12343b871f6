"""The page of scripts/engines/run."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from scripts.lib.results import about, bullets
from scripts.lib.tables import markdown_table

_NUMERIC = "half-norm"
_HARMLESS = ("index-type", "function-names")


_ENGINE_HEADINGS = (
    *("model", "type", "form", "norms:", "fused:", "unfused:", "unknown:", "kernels", "in all:"),
    *("sum apart:", "half:", "other:", "layers:", "s:"),
)


def markdown(report: dict[str, Any]) -> str:
    """The report as Markdown: a line per model and form, then what is to be known about it."""
    rows, kept = report["rows"], report["kept_rows"]
    built = [f for row in rows for f in row["forms"].values() if f["status"] == "built"]
    found = [
        *about(report),
        f"{len(built)} engines built, {len(_failed(report))} failed;"
        f" {len({row['model'] for row in rows})} architectures",
        f"norms: {_totals(built)}",
    ]
    if kept:
        found.append(
            f"{kept} of the {len(rows)} models and types were kept from earlier runs; date, load"
            " and row lengths are of the last run"
        )
    cells = [_engine_cells(row, form, done) for row in rows for form, done in row["forms"].items()]
    lines = [
        "# Engines of whole architectures",
        "",
        *bullets(found),
        "",
        "*kernels*: compute kernels per norm, smallest and largest, the residual sum not counted."
        " *in all*: kernels that compute a norm or a part of one, and mostly other nodes too."
        " *sum apart*: residual sums that are computed in the kernel before, mostly a product's."
        " *half*: warnings that a norm is computed in f16; *other*: all other kinds but two that"
        " change no number (64-bit inputs, names of functions). *s*: whole build, the check of the"
        " model included.",
        "",
        *markdown_table(_ENGINE_HEADINGS, cells),
        *_reasons(report),
        *_lengths(report["row_lengths"]),
        "",
        "The kernels are those of the engine as it was compiled without a GPU, from the builder's"
        " log of its layers at detailed profiling verbosity. Nothing was run, so nothing here says"
        " how fast an engine is, or that a GPU computes the same.",
    ]
    return "\n".join(lines) + "\n"


def _engine_cells(row: dict[str, Any], form: str, done: dict[str, Any]) -> list[str]:
    cells = [row["model"], row["dtype"], form]
    if done["status"] != "built":
        return [*cells, f"**{done['error']}**", *[""] * 10]
    how, kernels = done["how"], done["kernels_per_norm"]
    counts: Counter[str] = Counter()
    for message in done["messages"]:
        counts[message["kind"]] += message["count"]
    numbers = [
        done["norms"],
        how.get("fused", 0) + how.get("plugin", 0),
        how.get("unfused", 0),
        how.get("unknown", 0),
        "-".join(map(str, dict.fromkeys(kernels or ""))) or "-",
        done["distinct_kernels"],
        done["sums_apart"],
        counts[_NUMERIC],
        sum(n for kind, n in counts.items() if kind not in (*_HARMLESS, _NUMERIC)),
        done["layers"],
        done["seconds"],
    ]
    return [*cells, *map(str, numbers)]


def _lengths(found: list[dict[str, Any]]) -> list[str]:
    """The norm alone, by the length of its row: lengths with the same kernels are one line."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in found:
        steps = tuple(re.sub(r"^__myl_|_myl\d+_\d+$", "", name) for name in row["names"])
        groups.setdefault((row["dtype"], row["how"], *steps), []).append(f"{row['n']:,}")
    rows = [
        [dtype, "; ".join(lengths), how, ", ".join(f"`{step}`" for step in steps)]
        for (dtype, how, *steps), lengths in groups.items()
    ]
    title = "One RMSNormalization alone, up to 4096 rows of n elements:"
    return ["", title, "", *markdown_table(("type", "n", "", "kernels"), rows)]


def _failed(report: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{row['model']} {row['dtype']} {form}", done)
        for row in report["rows"]
        for form, done in row["forms"].items()
        if done["status"] != "built"
    ]


def _totals(built: list[dict[str, Any]]) -> str:
    totals: Counter[str] = Counter()
    for done in built:
        totals.update(done["how"])
    return ", ".join(f"{count} {how}" for how, count in totals.items()) or "none"


def _reasons(report: dict[str, Any]) -> list[str]:
    """What failed, what is unknown, and every other warning, once."""
    unknown: Counter[str] = Counter()
    other: Counter[str] = Counter()
    for row in report["rows"]:
        for done in row["forms"].values():
            unknown.update(done.get("unknown", ()))
            other.update(
                f"{message['stage']} [{message['kind']}] {message['text']}"
                for message in done.get("messages", ())
                if message["kind"] not in _HARMLESS
            )
    lines = [f"{name}: {done['error']} {done['found']}" for name, done in _failed(report)]
    lines += [f"unknown in {count} engines: {reason}" for reason, count in unknown.items()]
    lines += [f"warning in {count} engines: {text}" for text, count in other.items()]
    return ["", *bullets(lines)] if lines else []
