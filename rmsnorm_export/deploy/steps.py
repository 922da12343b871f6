"""The steps: what each reads, what else its result depends on, what it needs, and the work."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.deploy.result import files_of, identities
from rmsnorm_export.deploy.settings import Settings, StepName, Subject
from rmsnorm_export.errors import NotRunError, RequirementError
from rmsnorm_export.op.type_names import TYPE_NAMES
from rmsnorm_export.options import Progress, keywords, written
from rmsnorm_export.printable import plural
from rmsnorm_export.quantize.result import QUANTIZED_RTOL
from rmsnorm_export.rewrite.options import OptimizeOptions, Requirement
from rmsnorm_export.system.machine import cores, cpu_name, gpus
from rmsnorm_export.system.packages import require_package, versions_of
from rmsnorm_export.system.shown import Shown


@dataclasses.dataclass(slots=True)
class Products:
    """Products of a step, apart from the models in its folder.

    Attributes:
        results: of the functions that it called; each becomes NAME.json.
        notes: what a reader has to know, and no result says.
        failure: why the step failed, although it has a result.
        remark: what no result says.
        elsewhere: files that it made outside of its folder.
    """

    results: dict[str, Shown]
    notes: Iterable[str] = ()
    failure: BaseException | None = None
    remark: str = ""
    elsewhere: Iterable[Path] = ()

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
        subjects: what it reads of earlier steps, or of [model].
    """

    name: ClassVar[StepName]
    needs: ClassVar[dict[str, str]] = {"onnxruntime": "[ort]"}
    subjects: tuple[Subject, ...] = ("raw",)

    def __init__(self, settings: Settings, force: bool) -> None:
        self.settings, self.force = settings, force
        self.table: Any = getattr(settings, self.name)
        self.home = settings.folder / self.name

    def more(self) -> dict[str, Any]:
        """Return what else its result depends on; options of other tables, the machine."""
        return {}

    def files(self) -> list[Path]:
        """Return other files that it reads than ``subjects``, and those that its table names."""
        return []

    def inputs(self) -> dict[str, str]:
        """Return everything that its result depends on; what it reads is there."""
        base, named = self.settings.path.parent, self.settings.paths(self.name)
        options = {**written(self.table), **self.more()}
        read = [self.files(), map(self.settings.place, self.subjects), *named.values()]
        files = [file for paths in read for path in paths for file in files_of(path)]
        return {
            **{f"option {k}": _text(v, base) for k, v in options.items() if k not in named},
            **{f"file {name}": value for name, value in identities(files, base).items()},
            **{f"package {name}": version for name, version in versions_of().items()},
        }

    def check(self) -> None:
        """Refuse, before the first step runs, what would fail for want of a package."""
        for module, brings in self.needs.items():
            require_package(module, f"[{self.name}]", brings)

    def run(self, folder: Path, progress: Progress) -> Products:
        """Do the work: fill ``folder``; ``Error`` where it failed and has no result."""
        raise NotImplementedError


def _text(value: object, base: Path) -> str:
    """Return a value as a string that is equal for equal values, wherever the folder is."""
    value = os.path.relpath(value, base) if isinstance(value, Path) else value
    return json.dumps(value, sort_keys=True, default=str)


class ExportStep(Step):
    """Exports a PyTorch source, and compares the file with PyTorch."""

    name = "export"
    needs: ClassVar = {"torch": "[torch]", "onnxscript": "[torch]"}
    subjects = ()

    def files(self) -> list[Path]:
        """Return the modules beside the pipeline file, which a factory may import."""
        return sorted(self.settings.path.parent.glob("*.py")) if ":" in self.table.source else []

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
            every = proved + len(failed)
            remark = f"{proved} of {plural(every, 'proof')} hold" if every else ""
        failure = next(filter(None, (one.proof_error for one in reports.values())), None)
        return Products({"report": result}, failure=failure, remark=remark)


class BuildStep(Step):
    """Builds an engine where a backend is; no GPU is needed for TensorRT-RTX."""

    name = "build"
    needs: ClassVar = {"polygraphy": "[tensorrt-rtx]"}
    subjects = ("newest",)

    def more(self) -> dict[str, Any]:
        return {"GPUs": [f"{one.name}, {one.driver}" for one in gpus()]}

    def run(self, folder: Path, progress: Progress) -> Products:  # noqa: ARG002
        from rmsnorm_export.api import build_engine

        model, place = self.settings.place("newest"), folder / self.settings.place("engine").name
        built = build_engine(model, place, **keywords(self.table))
        return Products({}, remark=built.headline())


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
        self.subjects = tuple(dict.fromkeys(side for pair in self.pairs for side in pair))

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

    def more(self) -> dict[str, Any]:
        return {"numerics": self._numerics, "processor": f"{cpu_name()}, {cores()} cores"}

    @property
    def _numerics(self) -> Any:
        optimize = self.settings.optimize
        return (self.table if optimize is None else optimize).numerics

    def run(self, folder: Path, progress: Progress) -> Products:  # noqa: ARG002
        from rmsnorm_export.benchmark.measure import bench
        from rmsnorm_export.benchmark.result import outputs_error

        options = dataclasses.replace(self.table, numerics=self._numerics, progress=progress)
        result = bench(self.settings.place("raw"), **keywords(options))
        return Products({"benchmark": result}, failure=outputs_error(result.parts()))


class PackageStep(Step):
    """Packages, in place of what this pipeline put there before."""

    name = "package"
    needs: ClassVar = {}

    def __init__(self, settings: Settings, force: bool) -> None:
        super().__init__(settings, force)
        self.subjects = ("engine",) if self.table.model == "engine" else ("newest",)
        name = self.table.name or settings.name
        owner = f"pipeline {settings.name}"
        self.options = dataclasses.replace(self.table, name=name, owner=owner)

    def more(self) -> dict[str, Any]:
        return {"name": self.options.name, "repository": self.settings.repository}

    def run(self, folder: Path, progress: Progress) -> Products:  # noqa: ARG002
        from rmsnorm_export.deploy.package import package_model

        model = self.settings.place(self.subjects[0])
        options = dataclasses.replace(self.options, force=self.force, progress=progress)
        packaged = package_model(
            model, self.settings.repository, **keywords(options, PackageOptions)
        )
        return Products({"packaged": packaged}, elsewhere=packaged.files)


STEP_CLASSES: dict[StepName, type[Step]] = {
    cls.name: cls
    for cls in (ExportStep, OptimizeStep, BuildStep, VerifyStep, BenchStep, PackageStep)
}
