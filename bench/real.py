"""A trained model, SmolLM2-135M, by every exporter: what it writes, weighs and takes.

The weights are those of a package (`toolbox.trained`). Each exporter is a command of its own, of
which the processor's seconds and the largest memory are those of the process; one that is missing
is left out, with its words. What --folder has is kept: an export, and what was measured of it in a
JSON file beside it, which a busy machine changes little. So --repeats 0 exports and compares, and
leaves the times empty; the same command with repeats takes minutes then, on an idle machine.

The graphs run in one process, on one thread, a few beside optimum-cli's at a time: one token after
a cache, and a prompt. Shares are of its time in the same turns, by rounds of new sessions.
"""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import rmsnorm_export as rx
from bench.lib import exporters
from bench.lib.decoding import logits_of, timed
from bench.lib.exporters import Record
from bench.lib.results import Start, publish
from rmsnorm_export.system.files import write_whole
from toolbox.command import ROOT, add_output, parser, say
from toolbox.trained import INSTALL, trained_model

PAST, ROUNDS, TOKENS = 256, 5, 64
ROLES = {"token": ("decode", PAST, 1), "prompt": ("prefill", 0, PAST)}
"""What is timed: the graph where a folder has two, the tokens that are cached, those given."""
BESIDE = 3
"""Graphs that are open beside the first one: each holds a model."""
TEXT = ROOT / "docs" / "tutorials" / "decoder.md"
PROMPTS = ("The capital of France is", "def root_mean_square(values):", "Once upon a time")


def _graph(out: Path, role: str) -> Path:
    """Return the graph of a folder that takes a token, or a prompt."""
    return next(path for name in (role, "model") if (path := out / f"{name}.onnx").exists())


def _perplexity(logits: Any, ids: Any) -> float | None:
    """Return the perplexity of a text; None without the logits of every token."""
    if logits.shape[1] != ids.shape[1]:
        return None
    loss = torch.nn.functional.cross_entropy(torch.as_tensor(logits[0, :-1]).float(), ids[0, 1:])
    return float(loss.exp())


class _Reference:
    """PyTorch's model, and a text, with which exports are compared."""

    def __init__(self, source: Path) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        self._heads = _heads(source)
        text = TEXT.read_text(encoding="utf-8")
        self._ids = self._tokenizer(text, return_tensors="pt")["input_ids"][:, : 2 * PAST]
        with torch.no_grad():
            self.perplexity = _perplexity(self._model(self._ids)[0], self._ids)

    def compared(self, out: Path) -> Record:
        """Return what an export writes, and what its graph of a prompt says of the text."""
        logits = logits_of(_graph(out, "prefill"), self._ids.numpy(), self._heads)
        by_prompt = _perplexity(logits, self._ids)
        return {"tokens": self._written(out), "perplexity by prompt": by_prompt}

    def _written(self, out: Path) -> str:
        """Return how many greedy tokens after some prompts are PyTorch's."""
        same = tokens = 0
        for prompt in PROMPTS:
            feeds = self._tokenizer(prompt, return_tensors="np")
            inputs = {name: feeds[name] for name in ("input_ids", "attention_mask")}
            try:
                outcome = rx.verify(self._model, out, inputs=inputs, generate=TOKENS)
            except rx.Error as error:
                return f"refused: {error.found[:120]}"
            if outcome.not_run:
                return f"not run: {outcome.not_run[:120]}"
            counts = outcome.notes[0].split(" greedy")[0].split(" of ")
            same, tokens = same + int(counts[0]), tokens + int(counts[1])
        return f"{same} of {tokens}"


def measure(source: Path, place: Path, arguments: Any) -> list[Record]:
    """Export by every exporter, compare with PyTorch, and time all graphs."""
    # First: a child's largest memory counts what this process had when it began.
    tools, folders = {name: getattr(arguments, name) for name in exporters.TOOLS}, {}
    for name, command in exporters.commands(source, place, tools).items():
        folders[name] = exporters.folder_of(name, place)
        with _kept(folders[name]) as record:
            if "megabytes" not in record:
                record.clear()  # what failed is tried again
                record |= exporters.run(command, folders[name], source)
                say(f"{name}: {record}")
    compare, rows = functools.cache(lambda: _Reference(source)), []
    for name, out in {"PyTorch": place / "PyTorch", **folders}.items():
        with _kept(out) as record:
            if name == "PyTorch" and not record:
                record["perplexity by prompt"] = compare().perplexity
            elif "megabytes" in record and "tokens" not in record:
                record |= compare().compared(out)
            rows.append({"exporter": name, **record})
            say(" ".join(map(str, rows[-1].values())))
    if arguments.repeats:
        _time(rows, folders, arguments.repeats, _heads(source))
    return rows


def _heads(source: Path) -> tuple[int, int]:
    config = transformers.AutoConfig.from_pretrained(source)
    return config.num_key_value_heads, config.head_dim


@contextlib.contextmanager
def _kept(out: Path) -> Iterator[Record]:
    """Provide what was measured of an export; keep what is added."""
    file = out.with_name(f"{out.name}.json")
    record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    yield record
    write_whole(file, json.dumps(record, indent=1) + "\n")


def _time(
    rows: list[Record], folders: dict[str, Path], repeats: int, heads: tuple[int, int]
) -> None:
    """Add to each row the milliseconds of its graphs, and the shares of the first one's time."""
    first, *others = [row for row in rows if "tokens" in row]
    groups = [others[start : start + BESIDE] for start in range(0, len(others), BESIDE)]
    for _ in range(ROUNDS):
        for role, (graph, past, tokens) in ROLES.items():
            runs = repeats if role == "token" else 1 + repeats // 8
            for group in groups:
                names = [row["exporter"] for row in (first, *group)]
                paths = {name: _graph(folders[name], graph) for name in names}
                seconds = timed(paths, runs, past, tokens, heads)
                base = seconds[first["exporter"]]
                for row in (first, *group):
                    of, mine = row.setdefault(role, {}), seconds[row["exporter"]]
                    of.setdefault("ms", []).append(float(np.median(mine)) * 1e3)
                    of.setdefault("shares", []).append(float(np.median(mine / base)))


def write(report: Record, output: Path) -> str:
    """Write a report and its page; return the page."""
    sizes = {"PAST": PAST, "PROMPTS": PROMPTS, "ROUNDS": ROUNDS, "TOKENS": TOKENS}
    return publish("real", report, output, **sizes)


def main() -> int:
    """Measure, print and write; 1 where the trained model is missing."""
    options = parser("bench.real", __doc__)
    text = "runs of a graph in a round; 0: export and compare alone"
    options.add_argument("--repeats", type=int, default=24, help=text)
    options.add_argument("--folder", type=Path, help="exports, kept there; default: made anew")
    for name, command in exporters.TOOLS.items():
        options.add_argument(f"--{name}", default=command, help=f"instead of {command}")
    add_output(options, "real.json")
    arguments, start = options.parse_args(), Start()
    if (source := trained_model()) is None:
        return 1
    with contextlib.ExitStack() as stack:
        place = arguments.folder
        if place is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="real_")))
        place.mkdir(parents=True, exist_ok=True)
        rows = measure(source, place, arguments)
    report = start.facts() | {"weights": INSTALL, "repeats": arguments.repeats, "rows": rows}
    print(write(report, arguments.output))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
