"""package: the model, with its proofs and measurements, in a Triton model repository."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.bundle import open_folder
from rmsnorm_export.options import keywords
from rmsnorm_export.pipeline.place import named_errors, read_claim, read_record, write_claim
from rmsnorm_export.pipeline.steps import bench, build
from rmsnorm_export.pipeline.steps.base import REPORT, Made, Step
from rmsnorm_export.pipeline.tables import Package, StepName, Subject
from rmsnorm_export.printable import plural, short
from rmsnorm_export.serving.folder import component_names
from rmsnorm_export.serving.kserve import check_kserve
from rmsnorm_export.serving.place import find_place
from rmsnorm_export.serving.protos import definitions
from rmsnorm_export.serving.result import RECORD_FILE, Packaged, PackageRecord
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.progress import Progress
from rmsnorm_export.system.reading import read_file

PACKAGED = "packaged.json"
CLAIM = ".package.json"
"""In the pipeline's folder: which model is about to be put where. It tells a version that a killed
run left in the repository from one of somebody else."""

_EDITABLE = ("config.pbtxt", "README.md", "inferenceservice.yaml")


class PackageStep(Step[Package]):
    """Packages, in place of what this pipeline put there before."""

    name = "package"
    packages = ("tritonclient", "PyYAML", "onnxruntime", "onnx", "onnx-ir")

    @property
    def _engine(self) -> bool:
        return self.table.model == build.ENGINE

    @property
    def _onnx(self) -> Subject:
        """The ONNX model that is packaged, or that the engine was built from."""
        if self._engine:
            return self.settings.built
        return "raw" if self.table.model == "raw" else self.settings.newest

    @property
    def _proved(self) -> StepName | None:
        """The step whose report belongs to the packaged model."""
        if self._onnx == "raw":
            return None
        return "prove" if self.settings.prove is not None else "optimize"

    @property
    def _place(self) -> str:
        settings = self.settings
        folder = os.path.relpath(settings.repository / settings.model_name, settings.folder)
        return f"{folder}/{self.table.options.version}"

    @property
    def _models(self) -> list[str]:
        """Names in the repository: of a folder of graphs, a model of each."""
        settings = self.settings
        if not settings.of_graphs:
            return [settings.model_name]
        place, known = settings.onnx(self._onnx), ["prefill", "decode"]
        with contextlib.suppress(InputError):  # before the steps run: not there, or damaged
            known = [*open_folder(place).files]
        return list(component_names(settings.model_name, known).values())

    def subjects(self) -> tuple[Subject, ...]:
        return (self._onnx,)

    def reads(self) -> dict[StepName, tuple[str, ...]]:
        """The engine, and the reports that go into the model card."""
        found: dict[StepName, tuple[str, ...]] = {}
        if self._engine:
            found["build"] = (build.ENGINE, build.SIDECAR)
        if self._proved is not None:
            found[self._proved] = ("report",)
        if self.settings.bench is not None:
            found["bench"] = (bench.BENCHMARK,)
        return found

    def options(self) -> dict[str, Any]:
        """With the name and the place that it comes to."""
        place = os.path.relpath(self.settings.repository, self.settings.folder)
        return {**super().options(), "name": self.settings.model_name, "repository": place}

    def surroundings(self) -> dict[str, str]:
        """The plugin library that is named."""
        library = self.table.options.plugin
        paths = [] if library is None else [Path(library)]
        return self.settings.files.plain(paths, self.settings.document.path.parent, "[package]")

    def check(self, force: bool) -> None:
        """Triton's definitions, the manifest's options, and the place in the repository."""
        definitions()
        settings = self.settings
        self.check_shapes(self.table.options)
        if (kserve := self.table.manifest.manifest()) is not None:
            check_kserve(kserve, settings.model_name)
        if settings.folder.exists() or settings.repository.parent != settings.folder:
            self._replaced(force=force)

    def _replaced(self, *, force: bool) -> set[str]:
        """Hashes of what the version that is there was made from, if it may be replaced; or none.

        Raises:
            UsageError: it is somebody else's, or a file of it was edited and ``force`` is not
                given.
            InputError: the place cannot be written or read.
        """
        found = (self._replaced_model(name, force=force) for name in self._models)
        return {source for sources in found for source in sources}

    def _replaced_model(self, name: str, *, force: bool) -> set[str]:
        root, version = self.settings.repository, self.table.options.version
        with named_errors(root):
            try:
                find_place(root, name, version, force=False)
            except UsageError as error:
                record = _record(root / name)
                sources = {v.source_sha256 for v in record.versions if v.version == version}
                if not force and not sources & self._known():
                    raise UsageError(
                        f"The model repository has this model already: {error.what}",
                        found=f"{short(str(root / name / str(version)), 300)} is of other origin",
                        fix="give another [package] version, name or repository, or --force to "
                        "replace what rmsnorm-export package made",
                    ) from error
                find_place(root, name, version, force=True)
                if not force:
                    _refuse_edited(root / name, record)
                return sources
        return set()

    def _known(self) -> set[str]:
        """Hashes of models that this pipeline put, or was about to put, into this very place."""
        claims = [read_claim(self.settings.folder / CLAIM)]
        record = read_record(self.home)
        if record is not None and isinstance(record.facts.get("claim"), dict):
            claims.append(record.facts["claim"])
        mine = (claim for claim in claims if claim.get("place") == self._place)
        return {source for claim in mine for source in claim.get("sources", "").split()}

    def run(self, folder: Path, progress: Progress, force: bool) -> Made:
        from rmsnorm_export.serving.folder import package_decoder
        from rmsnorm_export.serving.package import package_model

        settings = self.settings
        onnx = settings.onnx(self._onnx)
        model = settings.engine if self._engine else onnx
        files = open_folder(onnx).files.values() if settings.of_graphs else (model,)
        there, own = self._replaced(force=force), {settings.files.sha256(one) for one in files}
        claim = {"place": self._place, "sources": " ".join(sorted(there | own))}
        write_claim(settings.folder / CLAIM, claim)
        alone = not settings.of_graphs  # a report and a benchmark are of one graph
        options = dataclasses.replace(
            self.table.options,
            name=settings.model_name,
            onnx=onnx if self._engine else None,
            report=settings.step_folder(self._proved) / REPORT if alone and self._proved else None,
            benchmarks=[settings.step_folder("bench") / bench.RECORD]
            if alone and settings.bench
            else [],
            kserve=self.table.manifest.manifest(),
            force=bool(there),
            progress=progress,
        )
        put = package_model if alone else package_decoder
        result: Any = put(model, settings.repository, **keywords(options))
        (folder / PACKAGED).write_text(self.document(result, folder), encoding="utf-8")
        made: list[Packaged] = [result] if alone else [*result.results.values()]
        packaged, record = made[0], made[0].record
        outcomes = [check.outcome for one in made for check in one.checks]
        summary = f"{plural(outcomes.count('passed'), 'check')} passed"
        for outcome in ("skipped", "not run"):
            if count := outcomes.count(outcome):
                summary += f", {count} {outcome}"
        return Made(
            summary=f"{' and '.join(self._models)} version {packaged.version} for Triton's "
            f"{record.backend}, {summary}",
            facts={
                "path": str(packaged.path if alone else result.path),
                "version": packaged.version,
                "backend": record.backend,
                "max_batch": record.max_batch,
                "load": packaged.load,
                "checks": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
                "claim": claim,
                "notes": [
                    *dict.fromkeys(n for one in made for n in (*one.current.notes, *one.notes))
                ],
            },
            elsewhere=tuple(
                one.path / name
                for one in made
                for name in (
                    RECORD_FILE,
                    *(file.path for file in (*one.record.files, *one.current.files)),
                )
            ),
        )


def _record(folder: Path) -> PackageRecord:
    from rmsnorm_export.records import from_json

    try:
        return from_json(read_file(folder / RECORD_FILE), PackageRecord)
    except (OSError, InputError) as error:
        raise UsageError(
            "The model repository has a folder of this name that this tool did not make.",
            found=f"{short(str(folder), 300)} has no {RECORD_FILE} that can be read",
            fix="give another [package] name or repository; it is not replaced, with --force "
            "neither",
        ) from error


def _refuse_edited(folder: Path, record: PackageRecord) -> None:
    """Files that people edit by hand are not replaced in silence."""
    for file in record.files:
        path = folder / file.path
        if file.path in _EDITABLE and path.is_file() and sha256_of(path) != file.sha256:
            raise UsageError(
                "A file of the package was edited since it was made.",
                found=short(str(path), 300),
                fix="move it away to keep the changes, or use --force to replace it",
            )
