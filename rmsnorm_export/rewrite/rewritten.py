"""Results of ``optimize``: a model, or the models of a folder, not written yet."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Mapping

import onnx_ir as ir

from rmsnorm_export.graph.bundle import Bundle
from rmsnorm_export.graph.load import LoadedModel, no_gc
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.graph.save import SaveResult, save_model, to_bytes
from rmsnorm_export.rewrite.result import GenerationExport, Report
from rmsnorm_export.system.shown import Shown


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class Result(Shown):
    """Outcome of `optimize`.

    Attributes:
        model: the new model; external weights are referenced, not loaded.
        report: what was done and why.
    """

    model: ir.Model
    report: Report
    source: LoadedModel

    def _shown(self) -> Report:
        return self.report

    def save(  # type: ignore[override]  # of a model: its weights have a policy
        self, path: str | os.PathLike[str], *, weights: WeightsPolicy = "auto", force: bool = False
    ) -> SaveResult:
        """Write the model atomically.

        Args:
            path: the .onnx file to make.
            weights: what happens to external weights: ``reference`` them where they are (same
                folder only), ``link`` or ``copy`` the files, or ``embed`` them; ``auto`` references
                in the same folder and links elsewhere.
            force: overwrite an existing file.

        Raises:
            UsageError: the file exists and ``force`` is not given, or the policy cannot be met.
            InputError: the place cannot be written.
        """
        with no_gc():
            return save_model(self.model, path, source=self.source, weights=weights, force=force)

    def to_bytes(self, *, weights: WeightsPolicy = "auto") -> bytes:
        """The model as a serialized ModelProto.

        Args:
            weights: ``embed`` or ``reference`` for a model with external weights.

        Raises:
            InputError: the model has external weights and ``weights`` does not say what to do.
        """
        with no_gc():
            return to_bytes(self.model, weights=weights)


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class FolderResult(Shown):
    """Outcome of `optimize` on a folder.

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
