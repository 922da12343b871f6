"""``optimize`` and ``inspect`` for a folder of graphs: each graph, and a report that has all."""

from __future__ import annotations

import copy
import dataclasses
import os
import time
from collections.abc import Mapping

from rmsnorm_export.graph.bundle import Bundle, open_folder
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.options import keywords, takes
from rmsnorm_export.rewrite.optimize import Result, inspect, optimize
from rmsnorm_export.rewrite.options import InspectOptions, OptimizeOptions
from rmsnorm_export.rewrite.result import GenerationExport, Report
from rmsnorm_export.system.shown import Shown


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class FolderResult(Shown):
    """Outcome of `optimize_folder`.

    Attributes:
        bundle: the folder that was read.
        results: of each component, by its name.
        seconds: wall-clock time of it all.
    """

    bundle: Bundle
    results: Mapping[str, Result]
    seconds: float

    @property
    def reports(self) -> dict[str, Report]:
        """The report of each component."""
        return {name: result.report for name, result in self.results.items()}

    def _shown(self) -> GenerationExport:
        return GenerationExport(self.bundle.folder, self.reports, (), "", self.seconds)

    def save(  # type: ignore[override]  # of graphs: their weights have a policy
        self, path: str | os.PathLike[str], *, weights: WeightsPolicy = "auto", force: bool = False
    ) -> GenerationExport:
        """Write the folder, whole or not at all: the graphs, the manifest, weights and configs.

        Args:
            path: of the folder; with ``force`` it may be the one that was read.
            weights: as for ``Result.save``; what components share stays in one file. After fusions,
                which pack weights, ``auto`` writes all of them anew.
            force: replace an export that is there.

        Raises:
            UsageError, InputError: as ``Result.save``.
        """
        models = {name: (result.model, result.source) for name, result in self.results.items()}
        bundle = dataclasses.replace(self.bundle, manifest=self._manifest())
        fused = any(report.fusions is not None for report in self.reports.values())
        if fused:
            from rmsnorm_export.rewrite.fusions import share_weights

            share_weights(model for model, _ in models.values())
        files = bundle.save(path, models, weights=weights, anew=fused, force=force)
        folder = files[0].parent if files else self.bundle.folder
        return GenerationExport(folder, self.reports, files, "", self.seconds)

    def _manifest(self) -> Mapping[str, object] | None:
        """That of the folder; where it says the opset, the one that the graphs have now."""
        if self.bundle.manifest is None:
            return None
        manifest = copy.deepcopy(self.bundle.manifest)
        for name, report in self.reports.items():
            config = manifest["components"][name]["metadata"].get("export_config") or {}
            if config.get("opset_version"):
                config["opset_version"] = report.opset_after
            if config and report.fusions is not None:
                config |= {"ort_fusions": report.fusions.provider, "optimize": True}
        return manifest


@takes(OptimizeOptions)
def optimize_folder(folder: str | os.PathLike[str], options: OptimizeOptions) -> FolderResult:
    """Make every RMSNorm of every graph in a folder one node, e.g. of prefill and decode.

    The folder is one that ``export_generation`` or transformers' own exporter has written, or one
    of ONNX files and a config without a manifest.

    Args:
        folder: its path; it is not changed.

    Raises:
        InputError: it is no folder of ONNX graphs, or its manifest and its files disagree.
        UsageError, InputError, BackendMissingError: as `optimize`.
    """
    start = time.perf_counter()
    bundle = open_folder(folder)
    results = {name: optimize(file, **keywords(options)) for name, file in bundle.files.items()}
    return FolderResult(bundle, results, time.perf_counter() - start)


@takes(InspectOptions)
def inspect_folder(folder: str | os.PathLike[str], options: InspectOptions) -> GenerationExport:
    """What `optimize_folder` would do; changes nothing.

    Args:
        folder: as for `optimize_folder`.

    Raises:
        UsageError, InputError: as `optimize_folder`.
    """
    start = time.perf_counter()
    bundle = open_folder(folder)
    reports = {name: inspect(file, **keywords(options)) for name, file in bundle.files.items()}
    return GenerationExport(bundle.folder, reports, (), "", time.perf_counter() - start)
