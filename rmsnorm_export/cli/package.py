"""``package``: a model or engine as an entry of a Triton model repository."""

from __future__ import annotations

from typing import Any

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import MODEL, OUTPUT, define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.outcome import is_folder
from rmsnorm_export.serving.options import PackageOptions


@define("package", PackageOptions, params=[MODEL, OUTPUT], reports=False)
def command(files: Files, model: str, output: str, **options: Any) -> None:
    """Put MODEL into a Triton model repository, as OUT/NAME/VERSION.

    MODEL is an ONNX file, a TensorRT engine that build wrote, - for an ONNX model on stdin, or a
    folder of graphs: each is a model NAME_COMPONENT then, and their cards hold a client. It is
    never changed. The packaged model is loaded and asked in ONNX Runtime before it is in place.

    \b
    Example:
      rmsnorm-export package fused.onnx -o models --name decoder --max-batch 16 \\
        --shapes "ids=1x1,4x128,16x2048" --report fused.json
    """
    from rmsnorm_export.serving.folder import package_decoder
    from rmsnorm_export.serving.package import package_model

    result: Any
    source = files.source(model)
    with console.progress(files.state, "Packaging") as step:
        if is_folder(model):
            result = package_decoder(model, output, progress=step, **options)
            packages = list(result.results.values())
        else:
            result = package_model(source, output, progress=step, **options)
            packages = [result]
    written = [
        one.path / file.path for one in packages for file in (*one.record.files, *one.current.files)
    ]
    files.finish(result, outputs=written)
