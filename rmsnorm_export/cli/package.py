"""``package``: a model, an engine or a decoder's folder in a Triton model repository."""

from __future__ import annotations

from typing import Any

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import MODEL, define, output
from rmsnorm_export.cli.files import Files
from rmsnorm_export.deploy.options import PackageOptions

_WHAT = "Folder of the model repository, which may hold other models."


@define("package", PackageOptions, params=[MODEL, output(_WHAT, on_disk=True)], reports=False)
def command(files: Files, model: str, output: str, **options: Any) -> None:
    """Put MODEL into a Triton model repository, as OUT/NAME/VERSION.

    MODEL is an ONNX file, a TensorRT engine that build wrote, - for an ONNX model on stdin, or a
    folder of graphs: each is a model NAME_COMPONENT then, one alone is NAME. MODEL is never
    changed. The packaged model is asked in ONNX Runtime before it is in place.

    \b
    Example:
      rmsnorm-export package fused.onnx -o models --name decoder --max-batch 16 \\
        --shapes "ids=1x1,4x128,16x2048"
    """
    from rmsnorm_export.deploy.package import package_model

    source = files.source(model)
    with console.progress(files.state, "Packaging") as step:
        packaged = package_model(source, output, progress=step, **options)
    files.finish(packaged, outputs=packaged.files)
