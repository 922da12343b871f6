"""export: the PyTorch module as plain ONNX, and what it computes on its example inputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import NotRunError
from rmsnorm_export.pipeline.steps.base import MODEL_FILES, Made, Step, files_in
from rmsnorm_export.pipeline.tables import Export, Subject
from rmsnorm_export.system.packages import require_package
from rmsnorm_export.system.progress import Progress

LOG = "export.log"
RUNS = "reference"
"""Fact: files with inputs and outputs of the module, see ``pytorch.recorded``."""

RUN_IN = "run in"
"""Fact: the float type of the module's weights then, "" for that of the file, and notes."""

NOT_RUN = "not run"
"""Fact: why PyTorch could not run the module here; "" where it did."""

_STAGES = 7


class ExportStep(Step[Export]):
    """Exports, then runs the module once or, with dynamic sizes, twice."""

    name = "export"
    packages = ("torch", "onnxscript", "transformers", "onnx", "onnx-ir", "numpy", "ml_dtypes")

    def subjects(self) -> tuple[Subject, ...]:
        """None: it makes the first."""
        return ()

    def options(self) -> dict[str, Any]:
        """Without the files, which are known by their contents."""
        return {key: value for key, value in super().options().items() if key != "files"}

    def surroundings(self) -> dict[str, str]:
        """The files that are named; Python files are noted while they are read."""
        settings = self.settings
        source = [Path(settings.source)] if os.path.isabs(settings.source) else []
        base = settings.document.path.parent
        return settings.files.plain([*source, *self.table.files], base, "[export]")

    def check(self, force: bool) -> None:  # noqa: ARG002
        """PyTorch, and transformers for its models."""
        source = self.settings.source
        for module in ("torch", "onnxscript"):
            require_package(module, "[export]", "[torch]")
        if os.path.isabs(source) and not source.endswith(".pt2"):
            require_package("transformers", "[export] of this source", "transformers")

    def run(self, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG002
        progress("loading the module", 0, _STAGES)
        if self.table.task is not None:
            return self._decoder(folder, progress)
        from rmsnorm_export.compare.own_type import reference
        from rmsnorm_export.graph.save import save_model
        from rmsnorm_export.pipeline import pytorch
        from rmsnorm_export.runtime.inputs import write_arrays
        from rmsnorm_export.torch.export.export import STAGES

        settings, table = self.settings, self.table
        subject = pytorch.open_subject(
            settings.source,
            settings.document.path.parent,
            options=table.load,
            seed=table.seed,
            own=table.reference,
        )
        model, log = pytorch.plain_onnx(
            subject, table.opset, lambda stage: progress(stage, 1 + STAGES.index(stage), _STAGES)
        )
        names = [str(value.name) for value in model.graph.inputs]
        results = [str(value.name) for value in model.graph.outputs]
        progress("writing the model", 5, _STAGES)
        saved = save_model(model, folder / f"{settings.name}.onnx", weights=table.weights)
        files = files_in(folder)
        del model
        files_of_runs: list[str] = []
        told: tuple[str, tuple[str, ...]] = ("", ())
        not_run = ""
        if table.reference:
            progress("running the module", 6, _STAGES)
            try:
                runs = reference(subject.loaded, subject.given, subject.own, seed=table.seed)
            except NotRunError as error:
                not_run = error.found
            else:
                told = runs.weights, runs.notes
                for number, arrays in enumerate(pytorch.recorded(runs, names, results), 1):
                    files_of_runs.append(f"pytorch-{number}.npz")
                    write_arrays(folder / files_of_runs[-1], arrays)
        (folder / LOG).write_text(log + "\n", encoding="utf-8", errors="backslashreplace")
        weights = sum((folder / name).stat().st_size for name in files)
        module = subject.loaded.module
        return Made(
            summary=f"{type(module).__name__}: {weights / 2**20:.1f} MiB of ONNX",
            facts={
                MODEL_FILES: files,
                RUNS: files_of_runs,
                RUN_IN: told,
                NOT_RUN: not_run,
                "module": f"{type(module).__module__}.{type(module).__qualname__}",
                "inputs": names,
                "outputs": results,
                "notes": [*subject.loaded.notes, *saved.notes],
            },
            reads=subject.reads,
        )

    def _decoder(self, folder: Path, progress: Progress) -> Made:
        """A folder of plain graphs; PyTorch is run when they are compared."""
        from rmsnorm_export.pipeline import pytorch
        from rmsnorm_export.rewrite.options import GenerationOptions
        from rmsnorm_export.torch.generation.export import make_decoder

        settings, table = self.settings, self.table
        model, inputs, notes, reads = pytorch.open_generative(
            settings.source, settings.document.path.parent, options=table.load, seed=table.seed
        )
        options = GenerationOptions(
            target="plain",
            opset=table.opset,
            static_cache=table.static_cache,
            multi_token=table.multi_token,
            seed=table.seed,
            inputs=inputs,
            progress=progress,
        )
        made = make_decoder(model, options).save(folder / settings.name)
        files = files_in(folder)
        (folder / LOG).write_text(made.log + "\n", encoding="utf-8", errors="backslashreplace")
        size = sum((folder / name).stat().st_size for name in files)
        return Made(
            summary=f"{type(model).__name__}: {size / 2**20:.1f} MiB of ONNX, "
            f"{' and '.join(made.reports)}",
            facts={
                MODEL_FILES: files,
                RUNS: [],
                "module": f"{type(model).__module__}.{type(model).__qualname__}",
                "components": list(made.reports),
                "notes": list(notes),
            },
            reads=reads,
        )
