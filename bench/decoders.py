"""Decoders in the runtimes that people use: a row for each architecture.

Every model has random weights and is exported with ``--task generation``. Its graphs write 32
tokens in ONNX Runtime after a prompt of two rows, of which one is padded. They are given PyTorch's
own tokens, so that the logits of every step are compared; where another one is chosen, the margin
by which PyTorch preferred its own has to be within what the bound of the logits allows.

Other runtimes load the folder and write by themselves (`bench.consumers`), each in a process of the
Python that its option names, e.g. ``--genai "env PYTHONPATH=genai/ python"``; the column of one
that is not named is empty. ``--add`` keeps what the file has, so that columns can be measured one
by one.
What exports weigh and take is measured on a trained model (`bench.real`).
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import torch

import rmsnorm_export as rx
from bench.consumers import PACKAGES, Writer, cases_of, speak_clearly
from bench.lib.results import Start, publish
from rmsnorm_export.decoder.inputs import sample_inputs, written_name
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.printable import first_line
from rmsnorm_export.runtime.inputs import graph_inputs
from rmsnorm_export.runtime.sizes import sized_names
from toolbox.command import add_output, parser, say
from toolbox.corpus.decoders import DECODERS, decoder

CACHE, TOKENS = 48, 32
FORMS = {
    "dynamic f32": (None, torch.float32),
    "static f32": (CACHE, torch.float32),
    "dynamic f16": (None, torch.float16),
}
"""What each export is: the size of its cache, and the type of its weights."""

_SIZES = {"batch": "1,2,4", "sequence": "1,8,16", "past": "1,8,32"}
Record = dict[str, Any]


def _arguments() -> argparse.Namespace:
    options = parser("bench.decoders", __doc__)
    options.add_argument("--models", nargs="+", choices=list(DECODERS), default=list(DECODERS))
    options.add_argument("--forms", nargs="*", choices=list(FORMS), default=list(FORMS))
    for name, (package, *_) in PACKAGES.items():
        options.add_argument(f"--{name}", default="", help=f"Python that has {package}")
    options.add_argument("--engines", action="store_true", help="build some by TensorRT-RTX, too")
    options.add_argument("--add", action="store_true", help="keep what the file has")
    add_output(options, "decoders.json")
    return options.parse_args()


def measure(kind: str, arguments: argparse.Namespace, writers: list[Writer]) -> Record:
    """One architecture: norms of its graphs, and who loads them and writes the same tokens."""
    row: Record = {"model": kind, "tokens": {}, "notes": {}, "consumers": {}}
    with tempfile.TemporaryDirectory(prefix="decoders_") as name:
        for form in arguments.forms:
            row["tokens"][form] = _written(row, form, Path(name) / form.replace(" ", "_"))
        if arguments.engines and "norms" in row:
            row["consumers"]["TensorRT-RTX"] = _built(Path(name), next(Path(name).iterdir()))
        for writer in writers:
            row["consumers"][writer.consumer] = _loaded(kind, writer, Path(name) / writer.consumer)
    return row


def _written(row: Record, form: str, folder: Path) -> str:
    """Export a model, let it write, and add to its row; say how many tokens are PyTorch's."""
    cache, dtype = FORMS[form]
    model = decoder(row["model"], dtype)
    if cache is not None:
        prompt = sample_inputs(model, {})[written_name(model)]
        cache = max(cache, prompt.shape[1] + TOKENS - 1)
    try:
        exported = rx.export_generation(model, folder, static_cache=cache)
        outcome = rx.verify(model, folder, generate=TOKENS)
    except rx.Error as error:
        return _refused(error)
    counts = {graph: len(report.fused) for graph, report in exported.reports.items()}
    unfused = [site for report in exported.reports.values() for site in report.unfused]
    row.setdefault("norms", counts)
    row.setdefault("refused", [site.module or site.node for site in unfused])
    if outcome.not_run:
        return f"not run: {outcome.not_run}"
    details = filter(None, (outcome.reason, *outcome.notes[1:]))
    if note := "; ".join(details):
        row["notes"][form] = note
    same = outcome.notes[0].removesuffix(" greedy tokens are the same")
    return same if outcome.passed else f"{same}, beyond the bounds"


def _refused(error: rx.Error) -> str:
    return f"refused: {error.what} {error.found}"


def _symbols(folder: Path) -> set[str]:
    """Return the names of the dimensions of all graphs of a folder."""
    models = [load_model(path).model for path in sorted(folder.glob("*.onnx"))]
    named = [one for model in models for one in sized_names(graph_inputs(model).values())]
    return {name for kind, name in named if kind == "dimension" and name.isidentifier()}


def _built(place: Path, export: Path) -> str:
    """Build an engine of each graph of an export."""
    names = _symbols(export)
    text = " ".join(f"{name}={_SIZES.get(name, '1,8,16')}" for name in names)
    try:
        rx.build_engine(export, place / "engines", backend="tensorrt-rtx", dims=text)
    except rx.Error as error:
        return _refused(error)
    return "built"


def _loaded(kind: str, writer: Writer, folder: Path) -> str:
    """Let a consumer write from an export with its names; say how many tokens are PyTorch's.

    Of a model that sees it is given the language model.
    """
    model, sees = speak_clearly(decoder(kind)), "vision_config" in DECODERS[kind]
    part = "language-model" if sees else "whole"
    try:
        rx.export_generation(model, folder, names=writer.consumer, part=part)
        same = writer.compare(folder, model)
    except rx.Error as error:
        return _refused(error)
    except RuntimeError as error:
        return f"fails: {first_line(error, 200)}"
    totals = map(sum, zip(*same.values(), strict=True))
    unlike = [f"{name} differs" for name, (equal, of) in same.items() if equal < of]
    return ", ".join([" of ".join(map(str, totals)), *unlike, *["text alone"] * sees])


def write(report: Record, output: Path) -> str:
    """Write a report and its page; return the page."""
    rows = report["rows"]
    forms = [form for form in FORMS if any(form in row["tokens"] for row in rows)]
    notes: dict[str, list[str]] = {}
    for row in rows:
        cells = row["tokens"] | row["consumers"]
        long = [(name, text) for name, text in cells.items() if ":" in text]
        for name, text in [*long, *row["notes"].items()]:
            notes.setdefault(text, []).append(f"{row['model']} ({name})")
    facts = {
        "columns": [*forms, *dict.fromkeys(name for row in rows for name in row["consumers"])],
        "days": sorted({row["date"][:10] for row in rows}),
        "cases": {name: cases_of(name) for name in PACKAGES},
        "notes": notes,
    }
    return publish("decoders", report, output, TOKENS=TOKENS, CACHE=CACHE, **facts)


def main() -> int:
    """Measure, print and write; 1 when ONNX Runtime does not write tokens within the bounds."""
    arguments = _arguments()
    start = Start()
    before = json.loads(arguments.output.read_text("utf-8")) if arguments.add else {}
    rows = {row["model"]: row for row in before.get("rows", ())}
    writers = [Writer(name, python) for name in PACKAGES if (python := getattr(arguments, name))]
    versions = before.get("consumers", {})
    versions |= {one.consumer: f"{one.consumer}: {one.versions()}" for one in writers}
    for kind in arguments.models:
        row, kept = measure(kind, arguments, writers) | {"date": start.date}, rows.get(kind, {})
        rows[kind] = kept | row
        for part in ("tokens", "notes", "consumers"):
            rows[kind][part] = kept.get(part, {}) | row[part]
        say(json.dumps(row))
        ordered = [rows[name] for name in DECODERS if name in rows]
        report = {**start.facts(), "consumers": versions, "rows": ordered}
        page = write(report, arguments.output)  # a run that is ended keeps these
    print(page)
    written_in_ort = [text for row in ordered for text in row["tokens"].values()]
    return int(not all(re.fullmatch(r"\d+ of \d+", text) for text in written_in_ort))


if __name__ == "__main__":
    raise SystemExit(main())
