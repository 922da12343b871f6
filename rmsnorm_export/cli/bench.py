"""``bench``: a model's speed, raw against each target."""

from __future__ import annotations

from typing import Any

from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import MODEL, define
from rmsnorm_export.cli.files import Files


@define("bench", BenchOptions, params=[MODEL])
def command(files: Files, model: str, **options: Any) -> None:
    """Measure MODEL, an ONNX file or - for stdin, against what each target makes of it.

    Where MODEL is a folder of graphs, each is measured by itself. An engine, or a folder of them,
    is timed alone, on a GPU.

    Every file is run once, to compare its outputs with those of MODEL; those that are right are
    timed together, each once per round in random order.
    A second session of MODEL tells what is noise. Speed never decides the exit code; wrong outputs
    of a target do (4).

    \b
    Example:
      rmsnorm-export bench model.onnx --shapes "ids=1x16,4x128" --report speed.html
    """
    from rmsnorm_export.benchmark.measure import bench
    from rmsnorm_export.benchmark.result import outputs_error

    files.check(model)
    source = files.source(model)
    with console.progress(files.state, "Measuring") as step:
        result = bench(source, progress=step, **options)
    files.finish(result, outputs_error(result.parts()))
