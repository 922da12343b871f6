"""Decoders: what an export costs beside transformers' own, and how fast the graphs generate.

LLaMA, Qwen3 and Gemma 3 with random float32 weights, 4 layers of width 512, and a LLaMA with 1.5
GB of weights, which is only exported. Each is exported by transformers' exporter alone and by ours,
in processes of their own with one thread, in turn; the cost is processor time, and the peak memory
of the process less that after its imports.

What transformers' exporter wrote is then measured with ``bench --generate`` (ONNX Runtime on the
CPU, one thread, processor time, a prompt of 16 tokens): as it is (raw), with ours for target ort,
with ours and transformers' fusions after them (``--fusions cpu``), and with transformers' fusions
alone. Every variant writes the same tokens, its logits compared at each; a round runs all of them
in a random order, and a ratio is to raw in the same round.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench.generate_step import EXPORTED_ONLY, MODELS, TOKENS
from tests.tools.lib.command import add_output, parser, say
from tests.tools.lib.process import run_step
from tests.tools.lib.results import Start, about, bullets, write_results
from tests.tools.lib.tables import markdown_table

PACKAGES = ("rmsnorm-export", "torch", "transformers", "onnx-ir", "onnxscript", "onnxruntime")
TOOLS = ("transformers", "ours")

Record = dict[str, Any]


def _arguments() -> argparse.Namespace:
    options = parser("bench.generate", __doc__)
    add = options.add_argument
    add("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    add("--repeats", type=int, default=1, help="exports by each tool")
    add_output(options, "bench_generate.json")
    arguments = options.parse_args()
    if arguments.repeats < 1:
        options.error("--repeats takes numbers from 1")
    return arguments


def _measure(name: str, repeats: int, folder: Path) -> Record:
    exports: list[Record] = []
    for _ in range(repeats):
        for tool in TOOLS:
            shutil.rmtree(folder / tool, ignore_errors=True)
            exports.append({"tool": tool, **_step(tool, name, folder / tool, folder)})
            say(f"{name}: exported by {tool} in {exports[-1]['seconds']:.1f} s")
    if name in EXPORTED_ONLY:
        return {"model": name, "exports": exports, "speed": None}
    speed = _step("speed", name, folder / "transformers", folder)
    say(f"{name}: measured, {speed['reason'] or 'all right'}")
    return {"model": name, "exports": exports, "speed": speed}


def _step(tool: str, name: str, target: Path, folder: Path) -> Record:
    step = [tool, name, str(target), "RESULT"]
    done = run_step("bench.generate_step", step, folder=folder, time_limit=1800)
    if done.status != "ok":
        raise SystemExit(f"error: {name}, {tool}: {done.status}\nfound: {done.detail}")
    return done.result


def _export_rows(report: Record) -> list[list[str]]:
    rows = []
    for model in report["models"]:
        base: Record = {}
        for tool in TOOLS:
            runs = [run for run in model["exports"] if run["tool"] == tool]
            row = {
                key: statistics.median(run[key] for run in runs)
                for key in ("seconds", "peak_mb", "weights_mb", "written_mb")
            }
            base = base or row
            rows.append(
                [
                    model["model"],
                    tool,
                    f"{row['seconds']:.1f}",
                    f"{row['seconds'] / base['seconds']:.2f}",
                    f"{row['peak_mb']:,.0f}",
                    f"{row['peak_mb'] / row['weights_mb']:.2f}",
                    f"{row['written_mb'] / row['weights_mb']:.2f}",
                ]
            )
    return rows


def _speed_rows(report: Record) -> list[list[str]]:
    return [
        [
            model["model"],
            one["case"],
            one["variant"],
            f"{one['median_ms']:.2f}",
            f"{1000 / one['median_ms']:.0f}",
            f"{one['ratio']:.3f} ({one['low']:.3f}-{one['high']:.3f})",
            one["verdict"],
        ]
        for model in report["models"]
        if model["speed"]
        for one in model["speed"]["timings"]
    ]


def markdown(report: Record) -> str:
    """The report as a Markdown page."""
    costs = ("model", "exporter", "processor s:", "ratio:", "peak, MiB:", "/ weights:", "written:")
    speeds = ("model", "case", "variant", "ms:", "tokens/s:", "time / raw:", "verdict")
    lines = [
        "# Decoders: the cost of an export, and tokens per second",
        "",
        *bullets([*about(report, "; one thread"), f"exports by each tool: {report['repeats']}"]),
        "",
        "Peak: of the process less that after its imports, MiB and over the weights, of which the "
        "model in memory is 1.00. Written: bytes of the folder over the weights.",
        "",
        *markdown_table(costs, _export_rows(report)),
        "",
        f"ONNX Runtime on the CPU, one thread, a prompt of 16 tokens, {TOKENS} more, "
        "processor time: medians; ratios to raw of the same round with their 95 % interval. A "
        "difference is called one where it passes the noise floor, which is that of a second "
        "session of raw.",
        "",
        *markdown_table(speeds, _speed_rows(report)),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Exit code 1 when ours failed or has other outputs."""
    arguments, start = _arguments(), Start()
    with tempfile.TemporaryDirectory(prefix="bench_generate_") as name:
        models = [_measure(one, arguments.repeats, Path(name)) for one in arguments.models]
    report = start.facts(*PACKAGES) | {"repeats": arguments.repeats, "models": models}
    page = markdown(report)
    print(page + write_results(report, page, arguments.output))
    return 0 if all(one["speed"]["passed"] for one in models if one["speed"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
