"""Decoders against PyTorch: norms of each graph, and greedy tokens, per architecture and cache.

Every model is exported with ``--task generation`` from random weights and writes 32 tokens after a
prompt of two rows, of which one is padded. The export is given PyTorch's own tokens, so that the
logits of every step are compared; where its choice is another one, the margin by which PyTorch
preferred its own has to be within what the bound of the logits allows.

``--speed`` measures the time of one token instead, beside other exporters (`bench.decode_speed`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.decode_speed import BUILDER, OPTIMUM, measure_models, speed_page
from rmsnorm_export.compare.generation import verify_generation
from rmsnorm_export.errors import Error
from rmsnorm_export.torch.generation.export import export_generation
from rmsnorm_export.torch.generation.inputs import sample_inputs
from tests.tools.corpus.decoders import DECODERS, decoder
from tests.tools.lib.command import add_output, parser, say
from tests.tools.lib.results import Start, about, bullets, write_results
from tests.tools.lib.tables import markdown_table

PACKAGES = ("rmsnorm-export", "torch", "transformers", "onnx", "onnx-ir", "onnxruntime")
CACHE, TOKENS = 48, 32
_TYPES = {"f32": torch.float32, "f16": torch.float16}

Record = dict[str, Any]


def _arguments() -> argparse.Namespace:
    options = parser("bench.decoders", __doc__)
    options.add_argument("--models", nargs="+", choices=list(DECODERS), default=list(DECODERS))
    options.add_argument("--caches", nargs="+", choices=["dynamic", "static"])
    options.add_argument("--dtypes", nargs="+", choices=list(_TYPES), default=list(_TYPES))
    options.add_argument("--add", action="store_true", help="keep the other rows of the file")
    options.add_argument("--speed", action="store_true", help="one token, beside other exporters")
    options.add_argument("--repeats", type=int, default=300, help="of --speed")
    options.add_argument("--optimum", default=OPTIMUM, help="command of --speed")
    options.add_argument("--builder", default=BUILDER, help="command of --speed")
    options.add_argument("--quick", action="store_true", help="a smoke run on one model")
    add_output(options, "decoders.json")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.models, arguments.caches, arguments.dtypes = ["llama"], ["dynamic"], ["f32"]
        arguments.repeats = 5
    return arguments


def measure(kind: str, cache: str, dtype: str) -> Record:
    """One export against PyTorch: what its graphs hold, and how many tokens are the same."""
    row: Record = {"model": kind, "cache": cache, "dtype": dtype}
    static = CACHE if cache == "static" else None
    model = decoder(kind, _TYPES[dtype])
    with tempfile.TemporaryDirectory(prefix="decoders_") as name:
        try:
            made = export_generation(model, Path(name) / "made", static_cache=static)
            outcome = verify_generation(
                model, made.path, sample_inputs(model, {}), tokens=TOKENS, static_cache=static
            )
        except Error as error:
            return row | {"passed": False, "detail": f"{error.what} {error.found}"}
    errors = [one.metrics.max_abs / one.bound_abs for one in outcome.outputs if one.bound_abs]
    return row | {
        "passed": outcome.passed,
        "norms": {graph: len(report.fused) for graph, report in made.reports.items()},
        "refused": sum(len(report.unfused) for report in made.reports.values()),
        "tokens": outcome.notes[0],
        "worst": max(errors, default=0.0),
        "seconds": made.seconds,
        "detail": "; ".join(filter(None, (outcome.reason, outcome.not_run, *outcome.notes[1:]))),
    }


def _page(report: Record) -> str:
    rows = [
        [
            row["model"], row["cache"], row["dtype"],
            ", ".join(f"{name} {count}" for name, count in row.get("norms", {}).items()),
            str(row.get("refused", "")), row.get("tokens", "").removesuffix(" are the same"),
            f"{row['worst']:.2g}" if "worst" in row else "",
            row["detail"] or ("passed" if row["passed"] else "failed"),
        ]
        for row in report["rows"]
    ]  # fmt: skip
    headings = ("model", "cache", "type", "norms as one node", "refused:", "equal to PyTorch's:")
    return "\n".join(
        [
            "# Decoders: exported, and compared with PyTorch while they write",
            "",
            *bullets(about(report)),
            f"- rows of {' and '.join(sorted({row['date'][:10] for row in report['rows']}))}",
            f"- {TOKENS} tokens for each of two rows; static caches hold {CACHE}",
            "",
            "Worst: the largest difference of a logit over its bound (1e-4 of the step's largest "
            "logit in f32, 1e-2 in f16).",
            "",
            *markdown_table([*headings, "worst:", ""], rows),
            "",
        ]
    )


def _measure_speed(arguments: argparse.Namespace) -> int:
    start = Start()
    commands = {"optimum-cli": arguments.optimum, "onnxruntime-genai builder": arguments.builder}
    with tempfile.TemporaryDirectory(prefix="decode_speed_") as folder:
        rows = measure_models(arguments.models, Path(folder), arguments.repeats, commands)
    report = {**start.facts(*PACKAGES), "repeats": arguments.repeats, "rows": rows}
    page = speed_page(report)
    output = arguments.output.with_name(arguments.output.name.replace("decoders", "decode_speed"))
    print(page)
    say(write_results(report, page, output))
    return 0


def main() -> int:
    """Measure, print and write; 1 when a model writes other tokens than the bounds allow."""
    arguments = _arguments()
    if arguments.speed:
        return _measure_speed(arguments)
    start, rows = Start(), []
    if arguments.add:
        rows = json.loads(arguments.output.read_text("utf-8"))["rows"]
    caches = arguments.caches or ["dynamic", "static"]
    for cache, dtype, kind in itertools.product(caches, arguments.dtypes, arguments.models):
        if (kind, cache) == ("mamba2", "static"):  # it has no keys and values to fix
            continue
        row = measure(kind, cache, dtype) | {"date": start.date}
        same = {"model": kind, "cache": cache, "dtype": dtype}.items()
        rows = [one if not same <= one.items() else row for one in rows]
        rows += [row] if row not in rows else []
        say(" ".join(str(value) for value in row.values()))
        report = {**start.facts(*PACKAGES), "rows": rows}
        page = _page(report)
        written = write_results(report, page, arguments.output)  # a run that is ended keeps these
    print(page)
    say(written)
    return int(not all(row["passed"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
