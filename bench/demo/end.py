"""The end of the demo, by commands: a page and an engine of one model, and a decoder's tokens."""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path

from bench.demo.models import ARCHITECTURES
from rmsnorm_export.cli.main import main as command_line
from toolbox.command import say


def _run(*words: str) -> list[str]:
    """Run a command, which may replace files; what did not hold."""
    command = [*words, "--force"]
    say(f"rmsnorm-export {shlex.join(command)}")
    code = command_line(command)
    return [] if code == 0 else [f"rmsnorm-export {words[0]} ended with {code}"]


def page_and_engine(source: Path) -> list[str]:
    """Write the report of a model as a page, and an engine, beside it; what did not hold."""
    path, page = source.with_name(f"{source.stem}_portable.onnx"), source.with_suffix(".html")
    files = ["-o", str(path), "--report", str(page)]
    problems = _run("optimize", str(source), "--prove", "--quiet", *files)
    print(f"\nreport of {source.name}, for a browser: {page}\n")
    if find_spec("tensorrt_rtx") is None:
        print('no engine: TensorRT-RTX is not installed (pip install ".[tensorrt-rtx]")')
        return problems
    engine = path.with_suffix(".engine")  # building needs no GPU
    return problems + _run("build", str(path), "-o", str(engine), "--backend", "tensorrt-rtx")


def generate(folder: Path, layers: int) -> list[str]:
    """Export a decoder with its cache and let it write beside PyTorch; what did not hold.

    Its config.json has the sizes of the demo's first model, its weights are random. Two rows of
    32 tokens are written, one of which is padded.
    """
    config = next(iter(ARCHITECTURES.values())).config()
    config.num_hidden_layers, config.use_cache = layers, True
    config.architectures = ["LlamaForCausalLM"]
    path = folder / "config.json"
    path.write_text(json.dumps(config.to_dict(), default=str), encoding="utf-8")
    how = ["--task", "generation", "--fusions", "cpu", "--verify", "--require", "all"]
    return _run("export", str(path), *how, "-o", str(folder / "decoder"))
