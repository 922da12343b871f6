"""``build``: a TensorRT or TensorRT-RTX engine from an ONNX model."""

from __future__ import annotations

from typing import Any

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import MODEL, define, output
from rmsnorm_export.cli.files import Files
from rmsnorm_export.tensorrt.engine.options import BuildOptions

_ENGINE = output("The engine to write; of a folder of graphs a folder.", on_disk=True)


@define("build", BuildOptions, params=[MODEL, _ENGINE], reports=False)
def command(files: Files, model: str, output: str, **options: Any) -> None:
    """Build an engine from MODEL; OUT.json says what became of its norms.

    MODEL is an ONNX file, as it was exported or as optimize wrote it, - for stdin, or a folder of
    graphs: OUT is a folder then, with an engine of each. MODEL is never changed. The backend
    runs in a process of its own. Under "layers" OUT.json has every layer of the engine, with the
    nodes that it was made of.

    \b
    Examples:
      rmsnorm-export build decoder/ -o engines/ \\
        --dims "batch=1,1,4 sequence=1,128,2048 past=1,512,4096"
      rmsnorm-export build fused.onnx -o fused.engine --shapes "ids=1x1,4x128,8x2048"
    """
    from rmsnorm_export.api import build_engine

    source = files.source(model)
    with console.progress(files.state, "Building an engine"):
        result = build_engine(source, output, **options)
    built = result.parts().values()
    files.finish(result, outputs=[file for one in built for file in (one.path, one.sidecar)])
