"""``build``: a TensorRT or TensorRT-RTX engine from an ONNX model."""

from __future__ import annotations

from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.folder import is_folder
from rmsnorm_export.cli.options import FILE, State
from rmsnorm_export.tensorrt.engine.options import BuildOptions


@define("build", BuildOptions, short_help="Build a TensorRT or TensorRT-RTX engine.")
@click.argument("model", type=FILE)
@click.option("-o", "--output", required=True, type=FILE, metavar="ENGINE", help="File to write.")
def command(state: State, model: str, output: str, **options: Any) -> None:
    """Build an engine from MODEL, write it to ENGINE and what became of its norms to ENGINE.json.

    MODEL is an ONNX file, as it was exported or as optimize wrote it, - for stdin, or a folder of
    graphs: ENGINE is a folder then, with an engine of each. It is never changed. The backend runs
    in a process of its own. Under "layers" ENGINE.json has every layer of the engine, with the
    nodes that it was made of.

    \b
    Examples:
      rmsnorm-export build decoder/ -o engines/ \\
        --dims batch=1,1,4 sequence=1,128,2048 past=1,512,4096
      rmsnorm-export build fused.onnx -o fused.engine --shapes "ids=1x1,4x128,8x2048"
    """
    from rmsnorm_export.graph.bundle import Components
    from rmsnorm_export.tensorrt.engine.build import build_engine

    files = Files(state)
    source = model if is_folder(model) else files.source(model)
    with console.progress(state, "Building"):
        result = build_engine(source, output, **options)
    built = result.results.values() if isinstance(result, Components) else [result]
    files.finish(
        result, inputs=[model], outputs=[file for one in built for file in (one.path, one.sidecar)]
    )
