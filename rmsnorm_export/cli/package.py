"""``package``: a model or engine as an entry of a Triton model repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.options import State, format_option, logging_options

if TYPE_CHECKING:
    from rmsnorm_export.serving.kserve import KServe

_FILE = click.Path(path_type=Path)


@click.command("package", short_help="Make a Triton model repository.")
@click.argument("model")
@click.option(
    "-o", "--output", required=True, metavar="REPOSITORY", help="Folder of models; made if missing."
)
@click.option("--name", help="Name of the model.  [default: of the file]")
@click.option(
    "--version",
    "version",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Version; those that are there are kept.",
)
@click.option(
    "--backend",
    type=click.Choice(("auto", "onnxruntime", "tensorrt")),
    default="auto",
    show_default=True,
    help="auto: tensorrt for an engine, else onnxruntime.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=0),
    metavar="N",
    help="Most requests in a batch; 0: none.  [default: of the shapes, or 8, where all inputs and"
    " outputs share a dynamic leading axis]",
)
@click.option(
    "--dynamic-batching/--no-dynamic-batching",
    default=None,
    help="Let the server join requests.  [default: where there are batches]",
)
@click.option(
    "--preferred-batch",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Batch size that does not wait for more requests. Repeat for several.",
)
@click.option(
    "--queue-delay",
    type=click.IntRange(min=0),
    metavar="US",
    help="Most microseconds that a request waits for others.  [default: 100]",
)
@click.option(
    "--instances",
    type=click.IntRange(min=1),
    metavar="N",
    help="Copies of the model on every GPU, or on the CPU.  [default: 1]",
)
@click.option("--kind", type=click.Choice(("gpu", "cpu")), help="Where it runs.  [default: gpu]")
@click.option(
    "--warmup/--no-warmup",
    default=None,
    help="Let the server answer requests of the usual and the largest shape before it takes any."
    "  [default: where it can]",
)
@click.option(
    "--shapes",
    metavar='"NAME=MIN,OPT,MAX;..."',
    help="Shapes of requests, as for build: for the check and the warm-up.",
)
@click.option("--onnx", type=_FILE, metavar="FILE", help="Model that an engine was built from.")
@click.option(
    "--plugin-library",
    type=_FILE,
    metavar="FILE",
    help="Plugin for an engine that uses it.  [default: of plugin build]",
)
@click.option(
    "--report", type=_FILE, metavar="FILE", help="optimize --report FILE.json, for the model card."
)
@click.option(
    "--benchmark",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="Record of a benchmark (JSON), for the model card. Repeat for several.",
)
@click.option(
    "--kserve",
    "storage_uri",
    metavar="URI",
    help="Write a KServe InferenceService, too. URI: where the cluster finds REPOSITORY, e.g."
    " s3://bucket/models or pvc://claim/models.",
)
@click.option("--kserve-name", metavar="NAME", help="Of the service.  [default: of the model]")
@click.option("--kserve-namespace", metavar="NAME", help="Of the service.")
@click.option("--kserve-cpu", metavar="N", help="Cores of a replica.  [default: 4]")
@click.option("--kserve-memory", metavar="SIZE", help="Of a replica.  [default: 16Gi]")
@click.option(
    "--kserve-gpus", type=click.IntRange(min=0), metavar="N", help="Of a replica.  [default: 1]"
)
@click.option(
    "--kserve-replicas",
    nargs=2,
    type=click.IntRange(min=0),
    metavar="MIN MAX",
    help="Least and most replicas.  [default: 1 1]",
)
@click.option("--no-check", is_flag=True, help="Do not run the model in ONNX Runtime.")
@click.option(
    "--force", is_flag=True, help="Replace the version, and write the configuration anew."
)
@format_option
@logging_options
@click.pass_context
def command(
    context: click.Context,
    model: str,
    output: str,
    name: str | None,
    version: int,
    backend: Literal["auto", "onnxruntime", "tensorrt"],
    max_batch: int | None,
    dynamic_batching: bool | None,
    preferred_batch: tuple[int, ...],
    queue_delay: int | None,
    instances: int | None,
    kind: Literal["gpu", "cpu"] | None,
    warmup: bool | None,
    shapes: str | None,
    onnx: Path | None,
    plugin_library: Path | None,
    report: Path | None,
    benchmark: tuple[Path, ...],
    storage_uri: str | None,
    kserve_name: str | None,
    kserve_namespace: str | None,
    kserve_cpu: str | None,
    kserve_memory: str | None,
    kserve_gpus: int | None,
    kserve_replicas: tuple[int, int] | None,
    no_check: bool,
    force: bool,
) -> None:
    """Put MODEL into a Triton model repository, as REPOSITORY/NAME/VERSION.

    MODEL is an ONNX file, a TensorRT engine that build wrote, or - for an ONNX model on stdin. It
    is never changed. The packaged model is loaded and asked in ONNX Runtime before it is in place.

    \b
    Example:
      rmsnorm-export package fused.onnx -o models --name decoder --max-batch 16 \\
        --shapes "ids=1x1,4x128,16x2048" --report fused.json --kserve s3://bucket/models
    """
    state = context.ensure_object(State)
    state.model_on_stdout = False
    with console.logging_to_stderr(state):
        from rmsnorm_export.cli.source import model_source
        from rmsnorm_export.serving.package import package_model
        from rmsnorm_export.show.package_text import package_lines

        kserve = _kserve(
            storage_uri,
            name=kserve_name,
            namespace=kserve_namespace,
            cpu=kserve_cpu,
            memory=kserve_memory,
            gpus=kserve_gpus,
            replicas=kserve_replicas or None,
        )
        with console.progress(state, "Packaging") as step:
            packaged = package_model(
                model_source(model),
                output,
                name=name,
                version=version,
                backend=backend,
                max_batch=max_batch,
                dynamic_batching=dynamic_batching,
                preferred_batch_sizes=preferred_batch,
                queue_delay_us=queue_delay,
                instances=instances,
                kind=kind,
                warmup=warmup,
                shapes=shapes,
                onnx=onnx,
                plugin=plugin_library,
                report=report,
                benchmarks=benchmark,
                kserve=kserve,
                check=not no_check,
                force=force,
                progress=step,
            )
        if state.json:
            console.show_json(state, packaged)
        else:
            console.show(state, package_lines(packaged, verbose=state.verbosity))


def _kserve(
    storage_uri: str | None,
    *,
    name: str | None,
    namespace: str | None,
    cpu: str | None,
    memory: str | None,
    gpus: int | None,
    replicas: tuple[int, int] | None,
) -> KServe | None:
    """The options of the manifest; None when none is asked for."""
    from rmsnorm_export.errors import UsageError
    from rmsnorm_export.serving.kserve import KServe

    if storage_uri is not None:
        low, high = replicas or (1, 1)
        return KServe(storage_uri, name, namespace, cpu or "4", memory or "16Gi", gpus, low, high)
    given = (name, namespace, cpu, memory, gpus, replicas)
    if any(option is not None for option in given):
        raise UsageError(
            "Options of the KServe manifest need the place of the repository.",
            found="an option --kserve-... without --kserve",
            fix="give it with --kserve URI, e.g. --kserve pvc://claim/models",
        )
    return None
