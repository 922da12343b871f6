"""The last part of the demo: from a config to generated tokens, in one command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from bench.demo.models import ARCHITECTURES
from rmsnorm_export.cli.main import main as command_line
from toolbox.command import say


def generate(folder: Path) -> list[str]:
    """Export a decoder with its cache and let it write beside PyTorch; what did not hold.

    Its config.json has the sizes of the demo's first model, its weights are random. Two rows of
    32 tokens are written, one of which is padded.
    """
    first = ARCHITECTURES[0]
    config = first.build().config
    config.use_cache, config.architectures = True, ["LlamaForCausalLM"]
    path = folder / "config.json"
    path.write_text(json.dumps(config.to_dict(), default=str), encoding="utf-8")
    command = ["export", str(path), "--task", "generation", "--fusions", "cpu", "--force"]
    command += ["--verify", "--require", "all", "-o", str(folder / "decoder")]
    say(f"{first.name}: rmsnorm-export {shlex.join(command)}")
    code = command_line(command)
    return [] if code == 0 else [f"the decoder: rmsnorm-export ended with {code}"]
