"""``verify``: run two models, each on its backend, on the same inputs and compare every output."""

from __future__ import annotations

from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import FILE
from rmsnorm_export.compare.options import VerifyOptions

_PAIR = [click.Argument([name], type=FILE) for name in ("a", "b")]


@define("verify", VerifyOptions, params=_PAIR)
def command(files: Files, a: str, b: str, **options: Any) -> None:
    """Compare the outputs of model B with those of model A.

    A and B are ONNX files, of which one may be - for stdin; engines; two folders of graphs that an
    exporter of decoders has made; or PyTorch models as export takes them: package.module:factory or
    file.py:factory, a local Hugging Face folder, a config.json or a .pt2 file. A factory runs code,
    a .pt2 file can (--trust-source): give only what you trust.

    ONNX files run in ONNX Runtime on the CPU, A without its graph optimization, B with it. Exit
    code 4 when a bound does not hold, 7 when a model cannot be run here, 6 when a backend or its
    GPU is missing, 3 when an engine cannot be used here.

    \b
    Examples:
      rmsnorm-export verify model.onnx fused.onnx
      rmsnorm-export verify ./my-llama llama.onnx --shapes input_ids=1x16
      rmsnorm-export verify model.onnx model.engine
    """
    from rmsnorm_export.api import verify

    arrays = options["inputs"]
    files.check(a, b, arrays)
    first, second = files.source(a), files.source(b)
    files.remember(arrays)
    with console.progress(files.state, "Comparing") as step:
        outcome = verify(first, second, progress=step, **options)
    files.finish(outcome, outcome.error(), compared=(a, b))
