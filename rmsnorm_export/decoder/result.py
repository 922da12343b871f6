"""Outcomes for a folder of graphs: what is to be written, and what was."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.decoder.bundle import Bundle, new_folder, write_models
from rmsnorm_export.graph.external import not_in_place
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.graph.policy import WeightsPolicy, check_policy
from rmsnorm_export.graph.tensors import tensor_slots
from rmsnorm_export.rewrite.result import Report, Result
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.shown import Shown


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class GenerationExport(Shown):
    """Outcome of ``export_generation``, or of ``optimize`` or ``inspect`` on several graphs.

    Attributes:
        path: the folder; None where the graphs are of no folder, or nothing was written.
        reports: of each graph, by its name.
        files: that were written.
        log: what the exporters printed, logged and warned of; "" where there was no export.
        seconds: wall-clock time of it all.
    """

    path: Path | None
    reports: Mapping[str, Report]
    files: tuple[Path, ...] = ()
    log: str = ""
    seconds: float = 0.0

    @property
    def planned(self) -> bool:
        """Nothing was changed (``inspect``)."""
        return any(report.planned for report in self.reports.values())

    def parts(self) -> Mapping[str, Any]:
        return self.reports


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class FolderResult(Shown):
    """Optimized graphs in memory that one folder is to hold.

    Attributes:
        results: of each graph, by its name.
        manifest: the content of ``export.json``; None without it.
        fill: writes what stands beside the graphs into a folder.
        log: what the exporters printed, logged and warned of; "" where there was no export.
        seconds: wall-clock time of making them.
        source: the folder that was read; None: an export, whose weights are still the model's.
    """

    results: Mapping[str, Result]
    manifest: Mapping[str, Any] | None
    fill: Callable[[Path], None]
    log: str
    seconds: float
    source: Bundle | None = None

    @property
    def reports(self) -> dict[str, Report]:
        """The report of each graph."""
        return {name: result.report for name, result in self.results.items()}

    def _shown(self) -> GenerationExport:
        path = None if self.source is None else self.source.folder
        return GenerationExport(path, self.reports, log=self.log, seconds=self.seconds)

    def save(
        self, path: StrPath, *, weights: WeightsPolicy = "auto", force: bool = False
    ) -> GenerationExport:
        """Write the folder, whole or not at all: the graphs, the manifest, weights and configs.

        Weights that several graphs share stay in one file.

        Args:
            path: of the folder; with ``force`` it may be the one that was read, whose weights stay
                where they are then, but with ``copy`` and ``embed``.
            weights: as for ``Result.save``. After fusions, a conversion and a quantization, which
                make weights, ``auto`` writes all of them anew.
            force: replace an export that is there.

        Raises:
            UsageError: the folder exists, is not empty, and ``force`` is not given.
            InputError: it cannot be written.
        """
        check_policy(weights)
        start, source = time.perf_counter(), self.source
        names = {n: n if source is None else source.files[n].stem for n in self.results}
        models = {names[name]: result.model for name, result in self.results.items()}
        if any(one.fusions or one.precision or one.quantized for one in self.reports.values()):
            _share_weights(models.values())
            weights = "copy" if weights == "auto" else weights
        here = source is not None and os.path.isdir(path) and os.path.samefile(path, source.folder)
        if weights == "reference" and not here:
            raise not_in_place(os.fspath(path))
        files = source.files.values() if source is not None and here else ()
        cached = any(load_model(file).moved for file in files)
        if weights == "reference" and cached:
            raise not_in_place(f"the weights are not in {os.fspath(path)}, which has links to them")
        in_place = here and not cached and weights in ("auto", "reference")
        with new_folder(path, force=force, keep_old=in_place) as folder:
            write_models(models, folder, "reference" if in_place else weights, self._manifest())
            if not in_place:
                self.fill(folder)
            every = (path for path in folder.rglob("*") if path.is_file())
            written = sorted(path.relative_to(folder) for path in every)
        final = Path(os.path.abspath(path))
        for name, model in models.items() if here and not in_place else ():
            # The data that it referred to was replaced.
            saved = list(tensor_slots(load_model(final / f"{name}.onnx").model))
            for slot, new in zip(list(tensor_slots(model)), saved, strict=True):
                slot.put(new.tensor)
        seconds = self.seconds + time.perf_counter() - start
        places = tuple(final / name for name in written)
        return GenerationExport(final, self.reports, places, self.log, seconds)

    def _manifest(self) -> Mapping[str, Any] | None:
        """Return it with the opset and the fusions that the graphs have now."""
        if self.manifest is None:
            return None
        manifest = copy.deepcopy(dict(self.manifest))
        for name, report in self.reports.items():
            config = manifest["components"][name]["metadata"].get("export_config") or {}
            if config.get("opset_version"):
                config["opset_version"] = report.opset_after
            if config and report.fusions is not None:
                config |= {"ort_fusions": report.fusions.provider, "optimize": True}
        return manifest


def _share_weights(models: Iterable[ir.Model]) -> None:
    """Let equal weights that were made in several graphs be one piece of memory, or one object."""
    first: dict[Hashable, Any] = {}
    for value in (value for model in models for value in model.graph.initializers.values()):
        tensor = value.const_value
        # What PyTorch holds is its own memory already.
        is_array = isinstance(tensor, ir.Tensor) and isinstance(tensor.raw, np.ndarray)
        if tensor is None or not (is_array or isinstance(tensor, ir.LazyTensor)):
            continue
        name, content = tensor.name, hashlib.sha256(tensor.tobytes()).digest()
        key = is_array or name, tensor.dtype, tuple(tensor.shape), content
        shared = first.setdefault(key, tensor)
        if is_array:
            shared = ir.Tensor(shared.raw, dtype=tensor.dtype, name=name)
        value.const_value = shared
