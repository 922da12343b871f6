"""bench: the raw model's speed against that of its targets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import VerificationError
from rmsnorm_export.options import keywords
from rmsnorm_export.pipeline.steps.base import Made, Step
from rmsnorm_export.pipeline.tables import Bench
from rmsnorm_export.system.machine import cores, cpu_name
from rmsnorm_export.system.packages import require_package
from rmsnorm_export.system.progress import Progress

RECORD = "benchmark.json"
PICTURE = "benchmark.png"
BENCHMARK = "benchmark"
"""Fact: the record of the benchmark."""


class BenchStep(Step[Bench]):
    """Measures; speed never decides whether it fails."""

    name = "bench"
    packages = (
        "onnxruntime", "onnxruntime-gpu", "onnx", "onnx-ir", "onnxscript", "onnxsim", "onnxslim",
        "numpy", "matplotlib",
    )  # fmt: skip

    def options(self) -> dict[str, Any]:
        """With the class of rewrite that it comes to."""
        optimize = self.settings.optimize
        default = "reordered" if optimize is None else optimize.options.numerics
        return {**super().options(), "numerics": self.table.numerics or default}

    def surroundings(self) -> dict[str, str]:
        """The machine, and the kernels of ``native``."""
        kernels = {
            f"file library of kernels ({provider})": self.settings.files.sha256(Path(path))
            for provider, path in self._kernels().items()
        }
        return {"machine processor": f"{cpu_name()}, {cores()} cores", **kernels}

    def check(self, force: bool) -> None:  # noqa: ARG002
        """ONNX Runtime with what is named, the kernels built, and matplotlib for a picture."""
        from rmsnorm_export.benchmark.sessions import choose_providers

        require_package("onnxruntime", "[bench]", "[ort]")
        if self.table.options.providers is not None:
            choose_providers(self.table.options.providers)
        self._kernels()
        if self.table.png:
            require_package("matplotlib", "[bench] png", "[report]")

    def _kernels(self) -> dict[str, str]:
        from rmsnorm_export.benchmark.sessions import choose_providers, kernels_of

        options = self.table.options
        return kernels_of(choose_providers(options.providers)[0]) if options.native else {}

    def run(self, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG002
        from rmsnorm_export.benchmark.measure import bench
        from rmsnorm_export.benchmark.result import headlines

        options = dataclasses.replace(
            self.table.options, numerics=self.options()["numerics"], progress=progress
        )
        raw, parts = self.settings.onnx("raw"), {}
        if not self.settings.of_graphs:
            result: Any = bench(raw, **keywords(options))
            parts[""] = result
        elif options.generate is not None:
            from rmsnorm_export.benchmark.generation import bench_generation

            parts[""] = result = bench_generation(raw, **keywords(options))
        else:
            from rmsnorm_export.benchmark.folder import bench_folder

            result = bench_folder(raw, **keywords(options))
            parts |= result.results
        (folder / RECORD).write_text(self.document(result, folder), encoding="utf-8")
        if self.table.png:
            from rmsnorm_export.benchmark.plot import to_png

            (folder / PICTURE).write_bytes(to_png(result))
        lines = [
            f"{name}: {line}" if name else line
            for name, one in parts.items()
            for line in headlines(one)
        ]
        failure = None
        if wrong := [one.reason for one in parts.values() if not one.passed]:
            failure = VerificationError(
                "A target gives other outputs than the model.",
                found="; ".join(wrong),
                fix="add [prove] for a proof site by site",
            )
        notes = list(dict.fromkeys(note for one in parts.values() for note in one.notes))
        return Made(
            summary="; ".join(lines) or "nothing could be measured",
            facts={BENCHMARK: [RECORD], "headlines": lines, "notes": notes},
            failure=failure,
        )
