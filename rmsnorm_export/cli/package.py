"""``package``: a model or engine as an entry of a Triton model repository."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.folder import is_folder
from rmsnorm_export.cli.options import FILE, State
from rmsnorm_export.serving.options import ManifestOptions, PackageOptions


@define(
    "package",
    PackageOptions,
    ManifestOptions,
    short_help="Make a Triton model repository.",
)
@click.argument("model", type=FILE)
@click.option(
    "-o",
    "--output",
    required=True,
    type=FILE,
    metavar="REPOSITORY",
    help="Folder of models; made if missing.",
)
def command(state: State, model: str, output: str, **options: Any) -> None:
    """Put MODEL into a Triton model repository, as REPOSITORY/NAME/VERSION.

    MODEL is an ONNX file, a TensorRT engine that build wrote, - for an ONNX model on stdin, or a
    folder of graphs: each is a model NAME_COMPONENT then, and their cards hold a client. It is
    never changed. The packaged model is loaded and asked in ONNX Runtime before it is in place.

    \b
    Example:
      rmsnorm-export package fused.onnx -o models --name decoder --max-batch 16 \\
        --shapes "ids=1x1,4x128,16x2048" --report fused.json --kserve s3://bucket/models
    """
    from rmsnorm_export.serving.package import package_model

    names = [field.name for field in dataclasses.fields(ManifestOptions)]
    manifest = ManifestOptions(**{name: options.pop(name) for name in names}).manifest()
    files = Files(state)
    if is_folder(model):
        from rmsnorm_export.serving.folder import package_decoder

        with console.progress(state, "Packaging") as step:
            made = package_decoder(model, output, kserve=manifest, progress=step, **options)
        paths = [
            one.path / file.path
            for one in made.results.values()
            for file in (*one.record.files, *one.current.files)
        ]
        files.finish(made, inputs=[model], outputs=paths)
        return
    source = files.source(model)
    with console.progress(state, "Packaging") as step:
        packaged = package_model(source, output, kserve=manifest, progress=step, **options)
    written = (*packaged.record.files, *packaged.current.files)
    files.finish(packaged, inputs=[model], outputs=[packaged.path / file.path for file in written])
