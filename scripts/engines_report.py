"""The table of scripts/engines.py."""

from __future__ import annotations

import re
from typing import Any

_NUMERIC = "half-norm"
_HARMLESS = ("index-type", "function-names")


def _kept(report: dict[str, Any]) -> list[str]:
    """That the record was put together from several runs, where it was."""
    kept = report["kept_rows"]
    if not kept:
        return []
    return [
        f"- {kept} of the {len(report['rows'])} models and types were kept from earlier runs; date,"
        " load and row lengths are of the last run"
    ]


def markdown(report: dict[str, Any]) -> str:
    """The report as Markdown: a line per model and form, then what is to be known about it."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    load, machine = report["load_average"], report["machine"]
    built = [f for row in report["rows"] for f in row["forms"].values() if f["status"] == "built"]
    lines = [
        "# Engines of whole architectures",
        "",
        f"- {report['date'].replace('T', ' ').replace('+00:00', '')} UTC, {machine['cpu']},"
        f" Python {machine['python']}",
        f"- {versions}",
        f"- load average of the machine: {load['before']:.2f} before, {load['after']:.2f} after",
        f"- {len(built)} engines built, {len(_failed(report))} failed;"
        f" {len({row['model'] for row in report['rows']})} architectures",
        f"- norms: {_totals(built)}",
        *_kept(report),
        "",
        "*kernels*: compute kernels per norm, smallest and largest, the residual sum not counted."
        " *in all*: kernels that compute a norm or a part of one, and mostly other nodes too."
        " *sum apart*: residual sums that are computed in the kernel before, mostly a product's."
        " *half*: warnings that a norm is computed in f16; *other*: all other kinds but two that"
        " change no number (64-bit inputs, names of functions). *s*: whole build, the check of the"
        " model included.",
        "",
        "| model | type | form | norms | fused | unfused | unknown | kernels | in all | sum apart |"
        " half | other | layers | s |",
        "|---|---|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["rows"]:
        for form, done in row["forms"].items():
            lines.append(_row(row, form, done))
    lines += _reasons(report)
    lines += _lengths(report["row_lengths"])
    lines += [
        "",
        "The kernels are those of the engine as it was compiled without a GPU, from the builder's"
        " log of its layers at detailed profiling verbosity. Nothing was run, so nothing here says"
        " how fast an engine is, or that a GPU computes the same.",
    ]
    return "\n".join(lines) + "\n"


def _row(row: dict[str, Any], form: str, done: dict[str, Any]) -> str:
    cells = [row["model"], row["dtype"], form]
    if done["status"] != "built":
        return "| " + " | ".join([*cells, f"**{done['error']}**", *[""] * 10]) + " |"
    how, kernels = done["how"], done["kernels_per_norm"]
    span = "-" if not kernels else str(kernels[0]) if kernels[0] == kernels[1] else "{}-{}".format(
        *kernels
    )  # fmt: skip
    counts = {message["kind"]: 0 for message in done["messages"]}
    for message in done["messages"]:
        counts[message["kind"]] += message["count"]
    other = sum(n for kind, n in counts.items() if kind not in (*_HARMLESS, _NUMERIC))
    cells += map(
        str,
        [
            done["norms"],
            how.get("fused", 0) + how.get("plugin", 0),
            how.get("unfused", 0),
            how.get("unknown", 0),
            span,
            done["distinct_kernels"],
            done["sums_apart"],
            counts.get(_NUMERIC, 0),
            other,
            done["layers"],
            done["seconds"],
        ],
    )
    return "| " + " | ".join(cells) + " |"


def _lengths(found: list[dict[str, Any]]) -> list[str]:
    """The norm alone, by the length of its row: lengths with the same kernels are one line."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in found:
        steps = tuple(re.sub(r"^__myl_|_myl\d+_\d+$", "", name) for name in row["names"])
        groups.setdefault((row["dtype"], row["how"], *steps), []).append(f"{row['n']:,}")
    lines = [
        "",
        "One RMSNormalization alone, up to 4096 rows of n elements:",
        "",
        "| type | n | | kernels |",
        "|---|---|---|---|",
    ]
    for (dtype, how, *steps), lengths in groups.items():
        kernels = ", ".join(f"`{step}`" for step in steps)
        lines.append(f"| {dtype} | {'; '.join(lengths)} | {how} | {kernels} |")
    return lines


def _failed(report: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{row['model']} {row['dtype']} {form}", done)
        for row in report["rows"]
        for form, done in row["forms"].items()
        if done["status"] != "built"
    ]


def _totals(built: list[dict[str, Any]]) -> str:
    totals: dict[str, int] = {}
    for done in built:
        for how, count in done["how"].items():
            totals[how] = totals.get(how, 0) + count
    return ", ".join(f"{count} {how}" for how, count in totals.items()) or "none"


def _reasons(report: dict[str, Any]) -> list[str]:
    """What failed, what is unknown, and every other warning, once."""
    lines = []
    for name, done in _failed(report):
        lines.append(f"- {name}: {done['error']} {done['found']}")
    unknown: dict[str, int] = {}
    other: dict[str, int] = {}
    for row in report["rows"]:
        for done in row["forms"].values():
            for reason in done.get("unknown", ()):
                unknown[reason] = unknown.get(reason, 0) + 1
            for message in done.get("messages", ()):
                if message["kind"] not in _HARMLESS:
                    text = f"{message['stage']} [{message['kind']}] {message['text']}"
                    other[text] = other.get(text, 0) + 1
    lines += [f"- unknown in {count} engines: {reason}" for reason, count in unknown.items()]
    lines += [f"- warning in {count} engines: {text}" for text, count in other.items()]
    return ["", *lines] if lines else []
