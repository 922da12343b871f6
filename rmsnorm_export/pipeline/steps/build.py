"""build: a TensorRT or TensorRT-RTX engine of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.bundle import Components
from rmsnorm_export.options import keywords
from rmsnorm_export.pipeline.steps.base import Made, Step
from rmsnorm_export.pipeline.tables import Build, Subject
from rmsnorm_export.system.progress import Progress
from rmsnorm_export.tensorrt.engine.result import EngineResult

ENGINE, SIDECAR = "engine", "record"
"""Facts: the engine, and the file beside it."""


class BuildStep(Step[Build]):
    """Builds an engine where a backend is; no GPU is needed for TensorRT-RTX."""

    name = "build"
    packages = ("tensorrt", "tensorrt_rtx", "polygraphy", "onnx", "onnx-ir")

    def subjects(self) -> tuple[Subject, ...]:
        """What is built."""
        return (self.settings.built,)

    def options(self) -> dict[str, Any]:
        """With the model that it comes to."""
        return {**super().options(), "model": self.settings.built}

    def surroundings(self) -> dict[str, str]:
        """The backend, the GPUs, and the plugin that would be used."""
        from rmsnorm_export.tensorrt.engine.backends import choose, gpus
        from rmsnorm_export.tensorrt.engine.options import library_or_none

        options = self.table.options
        info, _ = choose(options.backend)
        library = library_or_none() if info.plugins and options.plugin != "never" else ""
        return {
            "machine backend": info.name,
            "machine GPUs": "; ".join(gpus()) or "none",
            "machine plugin": self.settings.files.sha256(Path(library)) if library else "none",
        }

    def check(self, force: bool) -> None:  # noqa: ARG002
        """The backend, whether it can do what is asked of it, and the shapes.

        Raises:
            BackendMissingError: it is not installed, or builds only where a GPU is.
            UsageError: an option that it does not have, or shapes that do not fit.
        """
        from rmsnorm_export.tensorrt.engine.backends import choose
        from rmsnorm_export.tensorrt.engine.options import plan_plugin

        options, package = self.table.options, self.settings.package
        info, _ = choose(options.backend)
        options.check(info)
        self.check_shapes(options)
        if options.plugin == "require":
            plan_plugin("require", info, own=True)
        if package is not None and package.model == ENGINE and not info.plugins:
            raise UsageError(
                "Triton's TensorRT backend does not run an engine of TensorRT-RTX.",
                found=f'[build] backend = "{options.backend}" comes to {info.name} here',
                fix='give [build] backend = "tensorrt", or package the ONNX model',
            )

    def run(self, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG002
        from rmsnorm_export.tensorrt.engine.build import build_engine

        if self.settings.of_graphs:
            return self._engines(folder)
        built = build_engine(
            self.settings.onnx(self.settings.built),
            folder / self.settings.engine.name,
            **keywords(self.table.options),
        )
        assert isinstance(built, EngineResult)
        record = built.record
        how = [norm.how for norm in record.norms]
        norms = {one: how.count(one) for one in dict.fromkeys(how)}
        counts = ", ".join(f"{count} {one}" for one, count in norms.items())
        return Made(
            summary=f"{record.backend} {record.version}: {record.bytes / 2**20:.1f} MiB"
            + (f", norms: {counts}" if counts else ""),
            facts={
                ENGINE: [built.path.name],
                SIDECAR: [built.sidecar.name],
                "backend": record.backend,
                "version": record.version,
                "bytes": record.bytes,
                "norms": norms,
                "layers": len(record.layers),
                "notes": list(record.notes),
            },
        )

    def _engines(self, folder: Path) -> Made:
        """One of each graph, profiles linked by the names of dimensions."""
        from rmsnorm_export.tensorrt.engine.build import build_engine

        options = self.table.options
        place = folder / self.settings.engine.name
        built = build_engine(self.settings.onnx(self.settings.built), place, **keywords(options))
        assert isinstance(built, Components)
        records = {name: one.record for name, one in built.results.items()}
        first = next(iter(records.values()))
        norms = [norm.how for one in records.values() for norm in one.norms]
        counts = ", ".join(f"{norms.count(one)} {one}" for one in dict.fromkeys(norms))
        size = sum(one.bytes for one in records.values())
        notes = dict.fromkeys(note for one in records.values() for note in one.notes)
        return Made(
            summary=f"{first.backend} {first.version}: {' and '.join(records)}, "
            f"{size / 2**20:.1f} MiB" + (f", norms: {counts}" if counts else ""),
            facts={
                ENGINE: [f"{place.name}/{one.path.name}" for one in built.results.values()],
                SIDECAR: [f"{place.name}/{one.sidecar.name}" for one in built.results.values()],
                "backend": first.backend,
                "version": first.version,
                "bytes": size,
                "norms": {one: norms.count(one) for one in dict.fromkeys(norms)},
                "notes": [*notes],
            },
        )
