"""export: the PyTorch module as plain ONNX, and what it computes on its example inputs."""

from __future__ import annotations

import os
from pathlib import Path

from rmsnorm_export.pipeline.identity import plain_files
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.steps.base import (
    MODEL_FILES,
    Made,
    Progress,
    files_in,
    options,
    require_package,
)
from rmsnorm_export.pipeline.tables import StepName

LOG = "export.log"
RUNS = "reference"
"""Fact: files with inputs and outputs of the module, see ``pytorch.reference``."""

_STAGES = 7


def needs(settings: Settings) -> tuple[StepName, ...]:  # noqa: ARG001
    """Nothing."""
    return ()


def inputs(settings: Settings) -> dict[str, str]:
    """The options and the files that they name; Python files are noted while they are read."""
    table = settings.export
    assert table is not None
    source = [Path(settings.source)] if os.path.isabs(settings.source) else []
    return options(table, "files", "weights") | {
        "option weights": table.weights,
        **plain_files([*source, *table.files], settings.document.path.parent, "[export]"),
    }


def check(settings: Settings, force: bool) -> None:  # noqa: ARG001
    """PyTorch, and transformers for its models."""
    for module in ("torch", "onnxscript"):
        require_package(module, "[export]", 'pip install "rmsnorm-export[torch]"')
    if os.path.isabs(settings.source) and not settings.source.endswith(".pt2"):
        require_package("transformers", "[export] of this source", "pip install transformers")


def run(settings: Settings, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG001
    """Export, then run the module once or, with dynamic sizes, twice."""
    progress("loading the module", 0, _STAGES)
    from rmsnorm_export.benchmark.arrays import write_arrays
    from rmsnorm_export.graph.save import save_model
    from rmsnorm_export.pipeline import pytorch
    from rmsnorm_export.torch.export.export import STAGES

    table = settings.export
    assert table is not None
    subject = pytorch.open_subject(
        settings.source,
        settings.document.path.parent,
        arguments=table.arguments,
        shapes=table.shapes,
        dtype=table.dtype,
        seed=table.seed,
    )
    traced = pytorch.plain_onnx(
        subject, table.opset, lambda stage: progress(stage, 1 + STAGES.index(stage), _STAGES)
    )
    model, log = traced.model, traced.log
    del traced
    names = [str(value.name) for value in model.graph.inputs]
    results = [str(value.name) for value in model.graph.outputs]
    progress("writing the model", 5, _STAGES)
    saved = save_model(model, folder / f"{settings.name}.onnx", weights=table.weights)
    files = files_in(folder)
    del model
    runs = []
    if table.reference:
        progress("running the module", 6, _STAGES)
        for number, arrays in enumerate(pytorch.reference(subject, names, results, table.seed), 1):
            runs.append(f"pytorch-{number}.npz")
            write_arrays(folder / runs[-1], arrays)
    (folder / LOG).write_text(log + "\n", encoding="utf-8", errors="backslashreplace")
    weights = sum((folder / name).stat().st_size for name in files)
    module = subject.loaded.module
    return Made(
        summary=f"{type(module).__name__}: {weights / 2**20:.1f} MiB of ONNX",
        facts={
            MODEL_FILES: files,
            RUNS: runs,
            "module": f"{type(module).__module__}.{type(module).__qualname__}",
            "inputs": names,
            "outputs": results,
            "notes": list(saved.notes),
        },
        reads=subject.reads,
    )
