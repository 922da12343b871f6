"""A trained model, SmolLM2-135M, by every exporter: what it writes, weighs and takes.

The weights are those of a package (`toolbox.trained`). Each exporter is a command of its own, of
which the processor's seconds and the largest memory are those of the process; one that is missing
is left out, with its words. All graphs run in turn in one process, on one thread: one token after a
cache, and a prompt; shares are of optimum-cli's time, by rounds of new sessions.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bench.decode_speed import BUILDER, OPTIMUM, opened, theirs, timed
from bench.lib.results import Start, about, bullets, write_results
from bench.lib.tables import markdown_table
from rmsnorm_export.decoder.generation import verify_generation
from rmsnorm_export.errors import Error
from toolbox.command import ROOT, add_output, module_command, module_environment, parser, say
from toolbox.trained import INSTALL, trained_model

PACKAGES = ("rmsnorm-export", "torch", "transformers", "onnx", "onnxruntime")
PAST, ROUNDS, TOKENS, STATIC = 256, 5, 64, 512
TEXT = ROOT / "docs" / "tutorials" / "decoder.md"
PROMPTS = ("The capital of France is", "def root_mean_square(values):", "Once upon a time")
MOBIUS = "python -m mobius build --model {source} {out}"
OURS = {
    "optimum": "--names optimum",
    "optimum, fused": "--names optimum --fusions cpu",
    "genai, fused": "--names genai --fusions cpu",
    "two graphs, fused": "--fusions cpu",
    f"static {STATIC}": f"--static-cache {STATIC}",
    f"static {STATIC}, fused": f"--static-cache {STATIC} --fusions cpu",
}
"""Forms of our export, by the options of the command."""
Record = dict[str, Any]


def _commands(source: Path, arguments: Any) -> dict[str, list[str]]:
    """Return what each exporter is run by, ``{out}`` left open."""
    templates = {
        "optimum-cli": arguments.cli,
        "builder": arguments.builder,
        "mobius": arguments.mobius,
    }
    commands = {
        name: [word.replace("{source}", str(source)) for word in shlex.split(text)]
        for name, text in templates.items()
    }
    for name, fused in (("transformers", ""), ("transformers, its fusions", "cpu")):
        commands[name] = module_command("bench.real", "--theirs", str(source), "{out}", fused)
    for name, options in OURS.items():
        export = ["export", str(source), "--task", "generation", "-o", "{out}", "-q"]
        commands[f"ours, {name}"] = module_command("rmsnorm_export", *export, *options.split())
    return commands


def _export(command: list[str], out: Path, source: Path) -> Record:
    """Run an exporter; say how long it took, what memory it had, and what it wrote."""
    words = [word.replace("{out}", str(out)) for word in command]
    with tempfile.TemporaryFile("w+") as said:
        child = os.posix_spawnp(
            words[0], words, module_environment() | {"OMP_NUM_THREADS": "1"},
            file_actions=[(os.POSIX_SPAWN_DUP2, said.fileno(), one) for one in (1, 2)],
        )  # fmt: skip
        _, status, used = os.wait4(child, 0)
        said.seek(0)
        lines = said.read().strip().splitlines() or ["it wrote nothing"]
    if status:
        return {"detail": lines[-1][:200]}
    if not (out / "config.json").exists():
        shutil.copy(source / "config.json", out)
    files = [file for file in out.iterdir() if file.suffix in (".onnx", ".data")]
    return {
        "megabytes": sum(file.stat().st_size for file in files) / 1e6,
        "export seconds": used.ru_utime + used.ru_stime,
        "export gigabytes": used.ru_maxrss / 1e6,
    }


def _graph(out: Path, role: str) -> Path:
    """Return the graph of a folder that takes a token, or a prompt."""
    return next(path for name in (role, "model") if (path := out / f"{name}.onnx").exists())


def _written(model: Any, tokenizer: Any, out: Path, static: bool) -> str:
    """Return how many greedy tokens after some prompts are PyTorch's."""
    counts = []
    for prompt in PROMPTS:
        feeds = tokenizer(prompt, return_tensors="pt")
        inputs = {name: feeds[name] for name in ("input_ids", "attention_mask")}
        how: dict[str, Any] = {"static_cache": STATIC} if static else {}
        try:
            outcome = verify_generation(model, out, inputs, tokens=TOKENS, **how)
        except Error as error:
            return f"refused: {error.found[:120]}"
        counts.append(outcome.notes[0].split(" greedy")[0] if outcome.notes else outcome.verdict)
    same = [count.split(" of ") for count in counts]
    if any(len(pair) != 2 for pair in same):
        return "; ".join(counts)
    return " of ".join(str(sum(map(int, column))) for column in zip(*same, strict=True))


def _perplexity(logits: Any, ids: Any) -> float:
    loss = torch.nn.functional.cross_entropy(torch.as_tensor(logits[0, :-1]).float(), ids[0, 1:])
    return float(loss.exp())


def _of_graph(path: Path, ids: Any, cache: tuple[int, ...]) -> float | None:
    """Return the perplexity of a graph that gives logits for every token of a text."""
    session, feeds = opened(path, 0, ids.shape[1], cache)
    results = session.run(["logits"], feeds | {"input_ids": ids.numpy()})
    return _perplexity(results[0], ids) if results[0].shape[1] == ids.shape[1] else None


def measure(source: Path, place: Path, arguments: Any) -> list[Record]:
    """Export by every exporter, compare with PyTorch, and time all graphs in turn."""
    # First: a child's largest memory counts what this process had when it began.
    exports: dict[str, Record] = {}
    for name, command in _commands(source, arguments).items():
        exports[name] = _export(command, place / name.replace(" ", "_"), source)
        say(" ".join(map(str, [name, *exports[name].values()])))
    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    text = TEXT.read_text(encoding="utf-8")
    ids = tokenizer(text, return_tensors="pt")["input_ids"][:, : 2 * PAST]
    config = model.config
    heads, width = config.num_key_value_heads, config.head_dim
    with torch.no_grad():
        rows: list[Record] = [
            {"exporter": "PyTorch", "perplexity": _perplexity(model(ids)[0], ids)}
        ]
    roles = {"token": ("decode", PAST, 1), "prompt": ("prefill", 0, PAST)}
    paths: dict[str, dict[str, Path]] = {role: {} for role in roles}
    for name, export in exports.items():
        out = place / name.replace(" ", "_")
        rows.append({"exporter": name, **export})
        if "detail" not in rows[-1]:
            static = f"static {STATIC}" in name
            rows[-1]["tokens"] = _written(model, tokenizer, out, static)
            if not static:
                prompt = _graph(out, "prefill")
                rows[-1]["perplexity"] = _of_graph(prompt, ids, (1, heads, 0, width))
                paths["prompt"][name] = prompt
            paths["token"][name] = _graph(out, "decode")
        say(" ".join(map(str, rows[-1].values())))
    for role, (_, past, tokens) in roles.items():
        make = functools.partial(opened, past=past, tokens=tokens, cache=(1, heads, past, width))
        repeats = arguments.repeats if role == "token" else 1 + arguments.repeats // 8
        rounds = [timed(paths[role], repeats, make) for _ in range(ROUNDS)]
        for row in rows:
            if (label := row["exporter"]) in paths[role]:
                base = next(iter(paths[role]))
                shares = [float(np.median(one[label] / one[base])) for one in rounds]
                milliseconds = float(np.median([one[label] for one in rounds])) * 1e3
                row[role] = {"ms": milliseconds, "shares": sorted(shares)}
    return rows


def _page(report: Record) -> str:
    def cell(row: Record, name: str, form: str = "{:.1f}") -> str:
        value = row.get(name)
        return "" if value is None else value if isinstance(value, str) else form.format(value)

    def times(row: Record, role: str) -> list[str]:
        if (of := row.get(role)) is None:
            return ["", ""]
        low, middle, high = (of["shares"][i] for i in (0, ROUNDS // 2, -1))
        return [f"{of['ms']:.1f}", f"{middle:.3f} ({low:.2f} to {high:.2f})"]

    rows = [
        [
            row["exporter"], cell(row, "tokens"), cell(row, "perplexity", "{:.4f}"),
            cell(row, "megabytes", "{:.0f}"), *times(row, "token"), *times(row, "prompt"),
            cell(row, "export seconds", "{:.0f}"), cell(row, "export gigabytes"),
            cell(row, "detail"),
        ]
        for row in report["rows"]
    ]  # fmt: skip
    headings = (
        "exporter", "tokens", "perplexity:", "MB:", "token ms:", "share:", "prompt ms:", "share:",
        "export s:", "GB:", "",
    )  # fmt: skip
    return "\n".join(
        [
            "# A trained model, by exporter", "", *bullets(about(report)),
            f"- SmolLM2-135M, float32; tokens: greedy, {TOKENS} after each of {len(PROMPTS)} "
            f"prompts, that are PyTorch's; perplexity: of the first {2 * PAST} tokens of "
            f"{TEXT.relative_to(ROOT)}",
            f"- a token after {PAST} that are cached (a static cache holds {STATIC}), and a prompt "
            f"of {PAST}, one row, one thread; shares of the first exporter's time: median and "
            f"range of {ROUNDS} rounds of new sessions",
            "- export: the processor's seconds and the largest memory of the command", "",
            *markdown_table(headings, rows), "",
        ]
    )  # fmt: skip


def main() -> int:
    """Measure, print and write; 1 where the trained model is missing."""
    if sys.argv[1:2] == ["--theirs"]:  # a process of its own
        source, out, fused = sys.argv[2:]
        model = transformers.AutoModelForCausalLM.from_pretrained(source)
        failed = theirs(model, Path(out), None, fused or None)
        say(failed if isinstance(failed, str) else "")
        return int(isinstance(failed, str))
    options = parser("bench.real", __doc__)
    options.add_argument("--repeats", type=int, default=40, help="runs of a graph in a round")
    options.add_argument("--cli", default=OPTIMUM, help="command of optimum")
    options.add_argument("--builder", default=BUILDER, help="command of onnxruntime-genai")
    options.add_argument("--mobius", default=MOBIUS, help="command of mobius-onnx")
    add_output(options, "real.json")
    arguments, start = options.parse_args(), Start()
    if (source := trained_model()) is None:
        return 1
    with tempfile.TemporaryDirectory(prefix="real_") as place:
        rows = measure(source, Path(place), arguments)
    report = {**start.facts(*PACKAGES), "weights": INSTALL, "repeats": arguments.repeats}
    report["rows"] = rows
    page = _page(report)
    print(page)
    say(write_results(report, page, arguments.output))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
