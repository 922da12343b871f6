"""package: the model, with its proofs and measurements, in a Triton model repository."""

from __future__ import annotations

import os
from pathlib import Path

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.pipeline.identity import plain_files
from rmsnorm_export.pipeline.place import named_errors, read_claim, read_record, write_claim
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.steps import bench, build
from rmsnorm_export.pipeline.steps.base import (
    Made,
    Progress,
    check_shapes,
    options,
    outputs_of_step,
    subject_inputs,
    subject_needs,
)
from rmsnorm_export.pipeline.tables import StepName, Subject
from rmsnorm_export.printable import short
from rmsnorm_export.serving.kserve import check_kserve
from rmsnorm_export.serving.place import find_place
from rmsnorm_export.serving.protos import definitions
from rmsnorm_export.serving.result import RECORD_FILE, PackageRecord
from rmsnorm_export.system.digest import sha256_of

PACKAGED = "packaged.json"
CLAIM = ".package.json"
"""In the pipeline's folder: which model is about to be put where. It tells a version that a killed
run left in the repository from one of somebody else."""

_EDITABLE = ("config.pbtxt", "README.md", "inferenceservice.yaml")


def _engine(settings: Settings) -> bool:
    return settings.package is not None and settings.package.model == build.ENGINE


def _onnx(settings: Settings) -> Subject:
    """The ONNX model that is packaged, or that the engine was built from."""
    if _engine(settings):
        return build.subject(settings)
    assert settings.package is not None
    return "raw" if settings.package.model == "raw" else settings.newest


def _proved(settings: Settings) -> StepName | None:
    """The step whose report belongs to the packaged model."""
    if _onnx(settings) == "raw":
        return None
    return "prove" if settings.prove is not None else "optimize"


def needs(settings: Settings) -> tuple[StepName, ...]:
    """The model, the engine, and the reports that go into the model card."""
    found: list[StepName] = list(subject_needs(settings, _onnx(settings)))
    found += ["build"] if _engine(settings) else []
    proved = _proved(settings)
    found += [proved] if proved is not None else []
    found += ["bench"] if settings.bench is not None else []
    return tuple(dict.fromkeys(found))


def inputs(settings: Settings) -> dict[str, str]:
    """The options and everything that is packaged."""
    table = settings.package
    assert table is not None
    library = [table.plugin_library] if table.plugin_library is not None else []
    found = {
        **options(table, "name"),
        "option name": settings.model_name,
        "option repository": os.path.relpath(settings.repository, settings.folder),
        **plain_files(library, settings.document.path.parent, "[package]"),
        **subject_inputs(settings, _onnx(settings)),
    }
    if _engine(settings):
        found |= outputs_of_step(settings, "build", build.ENGINE, build.SIDECAR)
    if (proved := _proved(settings)) is not None:
        found |= outputs_of_step(settings, proved, "report")
    if settings.bench is not None:
        found |= outputs_of_step(settings, "bench", bench.BENCHMARK)
    return found


def check(settings: Settings, force: bool) -> None:
    """Triton's definitions, the manifest's options, and the place in the repository."""
    definitions()
    assert settings.package is not None
    check_shapes(settings, settings.package.shapes)
    if (kserve := settings.kserve) is not None:
        check_kserve(kserve, settings.model_name)
    if settings.folder.exists() or settings.repository.parent != settings.folder:
        _replaced(settings, force=force)


def _replaced(settings: Settings, *, force: bool) -> set[str]:
    """Hashes of what the version that is there was made from, if it may be replaced; else empty.

    Raises:
        UsageError: it is somebody else's, or a file of it was edited and ``force`` is not given.
        InputError: the place cannot be written or read.
    """
    table = settings.package
    assert table is not None
    root, name, version = settings.repository, settings.model_name, table.version
    with named_errors(root):
        try:
            find_place(root, name, version, force=False)
        except UsageError as error:
            record = _record(root / name)
            sources = {v.source_sha256 for v in record.versions if v.version == version}
            ours = bool(sources & _known(settings))
            if not ours and not force:
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


def _record(folder: Path) -> PackageRecord:
    from rmsnorm_export.records import from_json

    try:
        return from_json((folder / RECORD_FILE).read_text("utf-8"), PackageRecord)
    except (OSError, UnicodeDecodeError, InputError) as error:
        raise UsageError(
            "The model repository has a folder of this name that this tool did not make.",
            found=f"{short(str(folder), 300)} has no {RECORD_FILE} that can be read",
            fix="give another [package] name or repository; it is not replaced, with --force "
            "neither",
        ) from error


def _known(settings: Settings) -> set[str]:
    """Hashes of models that this pipeline put, or was about to put, into this very place."""
    claims = [read_claim(settings.folder / CLAIM)]
    record = read_record(settings.step_folder("package"))
    if record is not None and isinstance(record.facts.get("claim"), dict):
        claims.append(record.facts["claim"])
    place = _place(settings)
    mine = [claim.get("sources", "").split() for claim in claims if claim.get("place") == place]
    return {source for sources in mine for source in sources}


def _place(settings: Settings) -> str:
    assert settings.package is not None
    folder = os.path.relpath(settings.repository / settings.model_name, settings.folder)
    return f"{folder}/{settings.package.version}"


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


def run(settings: Settings, folder: Path, progress: Progress, force: bool) -> Made:
    """Package, in place of what this pipeline put there before."""
    from rmsnorm_export.records import to_json
    from rmsnorm_export.serving.package import package_model

    table = settings.package
    assert table is not None
    onnx = settings.onnx(_onnx(settings))
    model = settings.engine if _engine(settings) else onnx
    there, own = _replaced(settings, force=force), sha256_of(model)
    claim = {"place": _place(settings), "sources": " ".join(sorted(there | {own}))}
    write_claim(settings.folder / CLAIM, claim)
    proved = _proved(settings)
    report = None if proved is None else settings.step_folder(proved) / "report.json"
    benchmarks = [settings.step_folder("bench") / bench.RECORD] if settings.bench else []
    packaged = package_model(
        model,
        settings.repository,
        name=settings.model_name,
        version=table.version,
        max_batch=table.max_batch,
        dynamic_batching=table.dynamic_batching,
        preferred_batch_sizes=table.preferred_batch,
        queue_delay_us=table.queue_delay,
        instances=table.instances,
        kind=table.kind,
        warmup=table.warmup,
        shapes=table.shapes,
        onnx=onnx if _engine(settings) else None,
        plugin=table.plugin_library,
        report=report,
        benchmarks=benchmarks,
        kserve=settings.kserve,
        check=table.check,
        force=bool(there),
        progress=progress,
    )
    (folder / PACKAGED).write_text(to_json(packaged), encoding="utf-8")
    names = [
        RECORD_FILE,
        *(file.path for file in (*packaged.record.files, *packaged.current.files)),
    ]
    checks = [check.outcome for check in packaged.checks]
    said = f"{checks.count('passed')} checks passed"
    skipped = checks.count("skipped")
    return Made(
        summary=f"{settings.model_name} version {packaged.version} for Triton's "
        f"{packaged.record.backend}, {said}" + (f", {skipped} skipped" if skipped else ""),
        facts={
            "path": str(packaged.path),
            "version": packaged.version,
            "backend": packaged.record.backend,
            "max_batch": packaged.record.max_batch,
            "load": packaged.load,
            "claim": claim,
            "notes": [*packaged.current.notes, *packaged.notes],
        },
        elsewhere=tuple(packaged.path / name for name in names),
    )
