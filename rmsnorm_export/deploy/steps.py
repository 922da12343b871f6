"""The steps: what each needs, and the work."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.deploy.result import files_of
from rmsnorm_export.deploy.settings import Settings, StepName, Subject
from rmsnorm_export.errors import NotRunError, RequirementError
from rmsnorm_export.op.type_names import TYPE_NAMES
from rmsnorm_export.options import Progress, keywords
from rmsnorm_export.printable import plural
from rmsnorm_export.quantize.result import QUANTIZED_RTOL
from rmsnorm_export.rewrite.options import OptimizeOptions, Requirement
from rmsnorm_export.system.machine import gpus
from rmsnorm_export.system.packages import require_package
from rmsnorm_export.system.shown import Shown


@dataclasses.dataclass(slots=True)
class Products:
    """Products of a step, apart from the models in its folder.

    Attributes:
        results: of the functions that it called; each becomes NAME.json.
        notes: what else a reader may want to know.
        failure: why the step failed, although it has a result.
        remark: what no result says.
    """

    results: dict[str, Shown]
    notes: Iterable[str] = ()
    failure: BaseException | None = None
    remark: str = ""

    def summary(self) -> str:
        """Return one line: the verdict of each result, and the remark."""
        named = len(self.results) > 1
        lines = [(f"{k}: " if named else "") + one.headline() for k, one in self.results.items()]
        return "; ".join(filter(None, (*lines, self.remark)))


class Step:
    """A step of a pipeline.

    Attributes:
        name: of the step and of its table.
        needs: modules, and what brings them, as for ``pip_install``.
    """

    name: ClassVar[StepName]
    needs: ClassVar[dict[str, str]] = {"onnxruntime": "[ort]"}

    def __init__(self, settings: Settings, force: bool) -> None:
        self.settings, self.force = settings, force
        self.table: Any = getattr(settings, self.name)

    def check(self) -> None:
        """Refuse, before the first step runs, what would fail for want of a package."""
        for module, brings in self.needs.items():
            require_package(module, f"[{self.name}]", brings)

    def run(self, folder: Path, progress: Progress) -> Products:
        """Do the work: fill ``folder``; ``Error`` where it failed and has no result."""
        raise NotImplementedError


class ExportStep(Step):
    """Exports a PyTorch source, and compares the file with PyTorch."""

    name = "export"
    needs: ClassVar = {"torch": "[torch]", "onnxscript": "[torch]"}

    def run(self, folder: Path, progress: Progress) -> Products:
        from rmsnorm_export.deploy.source import load_and_convert, working_beside

        progress("loading the module", 0, 1)
        table, place = self.table, folder / self.settings.place("raw").name
        options = {"target": "plain", "opset": table.opset, "progress": progress}
        if table.task is not None:
            options |= {"static_cache": table.static_cache, "multi_token": table.multi_token}
        source = self.settings.source, table, table.task
        bounds = VerifyOptions(rtol=table.rtol, seed=table.seed, progress=progress)
        with working_beside(self.settings.path.parent):
            exported, log, compare = load_and_convert(
                *source, options, bounds, compared=table.verify
            )
            progress("writing the model", 0, 1)
            exported.save(place)
            size = sum(file.stat().st_size for file in files_of(folder)) / 2**20
            (folder / "export.log").write_bytes(f"{log}\n".encode("utf-8", "backslashreplace"))
            notes = [note for report in exported.reports.values() for note in report.notes]
            products = Products({}, notes, remark=f"{size:.1f} MiB of ONNX")
            if table.verify:
                progress("comparing with PyTorch", 0, 1)
                try:
                    products.results["pytorch-raw"] = parity = compare(place)
                    products.failure = parity.error(fix="[export] rtol is the bound")
                except Exception as problem:  # the file is written: it is not lost
                    products.failure = problem
        return products


class OptimizeStep(Step):
    """Optimizes, with proofs where ``prove`` is true, and saves."""

    name = "optimize"
    needs: ClassVar = {}

    def run(self, folder: Path, progress: Progress) -> Products:
        from rmsnorm_export.api import optimize

        progress("optimizing", 0, 2)
        options = dataclasses.replace(self.table, progress=progress)
        result = optimize(self.settings.place("raw"), **keywords(options, OptimizeOptions))
        reports, requirement = result.reports, Requirement(require=options.require)
        for report in reports.values():
            if (unmet := requirement.unmet(report)) is not None:
                raise RequirementError(f"[optimize] {unmet.what}", found=unmet.found, fix=unmet.fix)
        progress("writing the model", 1, 2)
        result.save(folder / self.settings.place("optimized").name, weights=self.table.weights)
        remark = ""
        if options.prove:
            failed = [site for one in reports.values() for site in one.unproved]
            proved = sum(len(one.fused) for one in reports.values())
            remark = f"{proved} of {plural(proved + len(failed), 'proof')} hold"
        notes = [note for one in reports.values() for note in one.notes]
        failure = next(filter(None, (one.proof_error for one in reports.values())), None)
        return Products({"report": result}, notes, failure, remark)


class BuildStep(Step):
    """Builds an engine where a backend is; no GPU is needed for TensorRT-RTX."""

    name = "build"
    needs: ClassVar = {"polygraphy": "[tensorrt-rtx]"}

    def run(self, folder: Path, progress: Progress) -> Products:  # noqa: ARG002
        from rmsnorm_export.api import build_engine

        model, place = self.settings.place("newest"), folder / self.settings.place("engine").name
        built = build_engine(model, place, **keywords(self.table))
        notes = [note for one in built.parts().values() for note in one.record.notes]
        return Products({}, notes, remark=built.headline())


class VerifyStep(Step):
    """Compares the optimized model with the raw one, and the engine with its model."""

    name = "verify"

    def __init__(self, settings: Settings, force: bool) -> None:
        super().__init__(settings, force)
        self.pairs: list[tuple[Subject, Subject]] = []
        if settings.optimize is not None:
            self.pairs.append(("raw", "optimized"))
        self.skipped = ""
        if settings.build is not None and self.table.engine != "never":
            self.skipped = "" if gpus() else "no GPU is visible"
            if settings.of_graphs:
                self.skipped = "only single engines are compared"
            self.pairs += [] if self.skipped else [("newest", "engine")]

    def run(self, folder: Path, progress: Progress) -> Products:  # noqa: ARG002
        from rmsnorm_export.api import verify
        from rmsnorm_export.runtime.metrics import DEFAULT_RTOL

        products, errors, options = Products({}), [], self.table
        if (lossy := self.settings.optimize) and options.rtol is options.atol is None:
            half = DEFAULT_RTOL.get(TYPE_NAMES.get(str(lossy.dtype), ""))
            rtol = QUANTIZED_RTOL.get(str(lossy.quantize), half)
            options = dataclasses.replace(options, rtol=rtol)
        for number, (a, b) in enumerate(self.pairs):
            progress(f"comparing {a} with {b}", number, len(self.pairs))
            models = map(self.settings.place, (a, b))
            products.results[f"{a}-{b}"] = outcome = verify(
                *models, **keywords(options, VerifyOptions)
            )
            errors.append(outcome.error(fix="[verify] rtol and atol set the bounds"))
        if self.skipped:
            products.remark = f"engine not compared: {self.skipped}"
            what = "The engine could not be run here, and was not compared."
            if self.table.engine == "require":
                errors.append(NotRunError(what, found=self.skipped, fix="run it where a GPU is"))
        # That models differ is more to know than that others could not be run.
        failures = filter(None, errors)
        products.failure = min(failures, key=lambda one: one.exit_code, default=None)
        return products


class BenchStep(Step):
    """Measures the raw model against its targets; speed never decides whether it fails."""

    name = "bench"

    def run(self, folder: Path, progress: Progress) -> Products:  # noqa: ARG002
        from rmsnorm_export.benchmark.measure import bench
        from rmsnorm_export.benchmark.result import outputs_error

        numerics = (self.settings.optimize or self.table).numerics
        options = dataclasses.replace(self.table, numerics=numerics, progress=progress)
        result = bench(self.settings.place("raw"), **keywords(options))
        parts = result.parts()
        notes = [note for one in parts.values() for note in one.notes]
        return Products({"benchmark": result}, notes, outputs_error(parts))


class PackageStep(Step):
    """Packages; in its own folder the pipeline replaces what it put there before."""

    name = "package"
    needs: ClassVar = {}

    def run(self, folder: Path, progress: Progress) -> Products:  # noqa: ARG002
        from rmsnorm_export.deploy.package import package_model

        table = self.table
        model = self.settings.place("engine" if table.model == "engine" else "newest")
        name, force = table.name or self.settings.name, self.force or table.repository is None
        options = dataclasses.replace(table, name=name, force=force, progress=progress)
        packaged = package_model(
            model, self.settings.repository, **keywords(options, PackageOptions)
        )
        notes = [note for one in packaged.models for note in (f"asked: {one.answers}", *one.notes)]
        return Products({"packaged": packaged}, notes)


STEP_CLASSES: dict[StepName, type[Step]] = {
    cls.name: cls
    for cls in (ExportStep, OptimizeStep, BuildStep, VerifyStep, BenchStep, PackageStep)
}
