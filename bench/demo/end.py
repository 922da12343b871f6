"""The end of the demo: one model's report as a page, an engine of it, and a decoder's tokens."""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import rmsnorm_export as rx
from bench.demo.models import ARCHITECTURES, Exported
from rmsnorm_export.cli.main import main as command_line
from rmsnorm_export.show import show_blocks, to_html
from rmsnorm_export.show.text import Line, flat, under
from toolbox.command import say


def page_and_engine(source: Exported, date: str) -> tuple[list[Line], list[str]]:
    """Write page and engine of a model beside it.

    The page holds the report: its sites, proofs, refusals, and the
    comparison of the whole model.

    Returns:
        Lines for the reader, and what must not happen.
    """
    path = source.path.with_name(f"{source.path.stem}_portable.onnx")
    result = rx.optimize(source.path, prove=True)
    result.save(path, force=True)
    (name,) = (value.name for value in result.model.graph.inputs)
    compared = rx.verify(source.path, path, inputs={str(name): np.asarray(source.tokens)})
    problems = [] if compared.passed else [f"the models differ: {compared.reason}"]
    names = (source.path.name, path.name)
    after = under("verification", show_blocks(compared, verbose=1, compared=names))
    if find_spec("tensorrt_rtx") is None:
        lines = ['no engine: TensorRT-RTX is not installed (pip install ".[tensorrt-rtx]")']
    else:
        engine = path.with_suffix(".engine")
        try:  # building needs no GPU
            built = rx.build_engine(path, engine, backend="tensorrt-rtx", force=True)
            lines = flat(show_blocks(built))
            after = [*under("engine", show_blocks(built, verbose=1)), *after]
            is_known = all(norm.how != "unknown" for norm in built.record.norms)
        except rx.Error as error:
            lines, is_known = [f"no engine: {error.what} {error.found}"], False
        problems += [] if is_known else ["TensorRT-RTX: see above"]
    page = source.path.with_suffix(".html")
    after += under("how it was made", [date, f"output {path.name}"])
    page.write_text(to_html(result.report, after=after), encoding="utf-8")
    return [*lines, "", f"report of this model, for a browser: {page}"], problems


def generate(folder: Path, layers: int) -> list[str]:
    """Export a decoder with its cache and let it write beside PyTorch; what did not hold.

    Its config.json has the sizes of the demo's first model, its weights are random. Two rows of
    32 tokens are written, one of which is padded.
    """
    name, entry = next(iter(ARCHITECTURES.items()))
    config = entry.config()
    config.num_hidden_layers, config.use_cache = layers, True
    config.architectures = ["LlamaForCausalLM"]
    path = folder / "config.json"
    path.write_text(json.dumps(config.to_dict(), default=str), encoding="utf-8")
    command = ["export", str(path), "--task", "generation", "--fusions", "cpu", "--force"]
    command += ["--verify", "--require", "all", "-o", str(folder / "decoder")]
    say(f"{name}: rmsnorm-export {shlex.join(command)}")
    code = command_line(command)
    return [] if code == 0 else [f"the decoder: rmsnorm-export ended with {code}"]
