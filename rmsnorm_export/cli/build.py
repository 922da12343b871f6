"""``build``: a TensorRT or TensorRT-RTX engine from an ONNX model."""

from __future__ import annotations

from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import State
from rmsnorm_export.tensorrt.engine.options import BuildOptions


@define("build", BuildOptions, short_help="Build a TensorRT or TensorRT-RTX engine.")
@click.argument("model")
@click.option("-o", "--output", required=True, metavar="ENGINE", help="File to write.")
def command(state: State, model: str, output: str, **options: Any) -> None:
    """Build an engine from MODEL, write it to ENGINE and what became of its norms to ENGINE.json.

    MODEL is an ONNX file, as it was exported or as optimize wrote it, or - for stdin. It is never
    changed. The backend runs in a process of its own.

    \b
    Example:
      rmsnorm-export build fused.onnx -o fused.engine --shapes "ids=1x1,4x128,8x2048"
    """
    from rmsnorm_export.tensorrt.engine.build import build_engine

    files = Files(state)
    with console.progress(state, "Building an engine") as step:
        result = build_engine(files.source(model), output, progress=step, **options)
    files.finish(result, inputs=[model], outputs=[result.path, result.sidecar])
