"""The next state of a model's folder: model, configuration, manifest, card and record."""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Sequence
from pathlib import Path

from rmsnorm_export.errors import NotRunError, UsageError, VerificationError
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.graph.save import save_model
from rmsnorm_export.printable import plural, quoted
from rmsnorm_export.records import to_json
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.serving.batching import Batching, RequestShapes
from rmsnorm_export.serving.card import card
from rmsnorm_export.serving.config import make_config, served
from rmsnorm_export.serving.kserve import MOUNT, manifest
from rmsnorm_export.serving.options import PackageOptions
from rmsnorm_export.serving.place import Place
from rmsnorm_export.serving.protos import config_text
from rmsnorm_export.serving.records import BenchmarkDocument, merged, reported_norms, with_copies
from rmsnorm_export.serving.result import (
    CARD_FILE,
    CONFIG_FILE,
    MANIFEST_FILE,
    RECORD_FILE,
    Outcome,
    PackageCheck,
    PackagedFile,
    PackagedNorm,
    PackagedVersion,
    PackageRecord,
)
from rmsnorm_export.serving.served_model import MODEL_FILE, ServedModel, load_line, mismatch
from rmsnorm_export.serving.trial import Trial, try_model, untried
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import copy_file, write_whole
from rmsnorm_export.system.folders import Stage
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.system.provenance import FileState, provenance
from rmsnorm_export.tensorrt.engine.result import EngineProfile, sidecar_path

_PACKAGE = "rmsnorm-export"

REPORT_FILE = "report.json"
ENGINE_FILE = "engine.json"
"""The record of an engine, with the hash of the ONNX model that it was built from."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """What was asked for, checked; ``batching`` as decided before the model was run.

    ``profile`` has the shapes of requests, where they are given; ``plugin`` is a library to copy;
    ``report`` is that of ``optimize``, and its text.
    """

    name: str
    subject: ServedModel
    batching: Batching
    profile: EngineProfile | None
    plugin: Path | None
    report: tuple[Report, str] | None
    benchmarks: tuple[BenchmarkDocument, ...]
    options: PackageOptions


def fill(stage: Stage, place: Place, wish: Wish) -> tuple[PackageRecord, Trial]:
    """Make everything in ``stage``; nothing outside is changed.

    Returns:
        The record, and how the model was tried.

    Raises:
        VerificationError: the model does not answer, or joined requests change each other.
        OSError: no room, or the disk fails.
    """
    folder = stage.folder / str(place.version)
    folder.mkdir()
    model = folder / MODEL_FILE[wish.subject.backend]
    _put_model(wish.subject, model)
    trial, max_batch, notes = _tried(model, wish)
    checks = [_inside(folder, model, wish.subject), *trial.checks]
    load = ""
    if wish.subject.record is not None and wish.subject.path is not None:
        copy_file(sidecar_path(wish.subject.path), folder / ENGINE_FILE)
    if wish.plugin is not None:
        library = folder / wish.plugin.name
        copy_file(wish.plugin, library)
        if wish.subject.backend == "tensorrt":
            served_at = f"/models/{wish.name}/{place.version}/{library.name}"
            load = load_line(wish.plugin, served_at, "/models")
        notes += filter(None, [mismatch(wish.subject, wish.plugin)])
    files = _listed(_files_below(folder), stage.folder, stage.folder)
    reports = {} if wish.report is None else {REPORT_FILE: wish.report[1]}
    reports |= {f"benchmark-{i}.json": one.text for i, one in enumerate(wish.benchmarks, 1)}
    copies = {file.sha256: os.path.relpath(file.path, str(place.version)) for file in files}
    for name, text in reports.items():
        write_whole(folder / name, with_copies(text, copies))
    files += _listed([folder / name for name in reports], stage.folder, stage.folder)
    samples, more = _warm_up(trial, wish)
    checks.append(_put_config(stage, place, wish, max_batch, samples))
    if (kserve := wish.options.kserve) is not None:
        loads = wish.plugin if wish.subject.backend == "tensorrt" else None
        library_path = f"{wish.name}/{place.version}/{loads.name}" if loads else ""
        document = manifest(kserve, wish.name, wish.options.kind or "gpu", library_path)
        write_whole(stage.folder / MANIFEST_FILE, document)
        checks.append(PackageCheck(MANIFEST_FILE, "passed", "read back, equal"))
    version = PackagedVersion(
        version=place.version,
        source="memory" if wish.subject.path is None else wish.subject.path.name,
        source_sha256=sha256_of(model if wish.subject.path is None else wish.subject.path),
        made=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        tool=_made_by(),
        files=tuple(sorted(files, key=lambda file: file.path)),
        norms=_known_norms(wish),
        load=load,
        checks=tuple(checks),
        notes=(*wish.subject.notes, *notes, *more),
    )
    return _put_record(stage, place, wish, max_batch, version), trial


def kernels_of(wish: Wish) -> Path | None:
    """The library that ONNX Runtime runs the model with."""
    return wish.plugin if wish.subject.backend == "onnxruntime" else None


def replaced(place: Place, wish: Wish) -> set[str]:
    """Paths in the model's folder that ``fill`` makes anew."""
    paths = {str(place.version), CONFIG_FILE, CARD_FILE, RECORD_FILE}
    return paths | ({MANIFEST_FILE} if wish.options.kserve is not None else set())


def _put_model(subject: ServedModel, model: Path) -> None:
    """The file as it is, byte for byte, with its external data; or the model from memory."""
    if subject.path is None:
        save_model(subject.loaded.model, model, weights="copy")
        return
    copy_file(subject.path, model)
    if subject.backend != "onnxruntime":
        return
    for location in subject.loaded.external:
        target = Path(os.path.normpath(model.parent / location))
        if target.exists() or target.name in (REPORT_FILE, *MODEL_FILE.values()):
            raise UsageError(
                "A file of external data has a name that the package needs for another file.",
                found=quoted(location),
                fix="save the model again, e.g. with rmsnorm-export optimize -o, which gives"
                " external data a name of its own",
            )
        copy_file(Path(os.path.realpath(subject.path.parent / location)), target)


def _inside(folder: Path, model: Path, subject: ServedModel) -> PackageCheck:
    """The packaged model is whole by itself: no link, no path out of its folder."""
    if subject.backend == "onnxruntime":
        load_model(model)
    links = [path for path in folder.rglob("*") if path.is_symlink()]
    if links:
        raise VerificationError(
            "The package holds a link.", found=links[0].name, fix="please report this"
        )
    detail = f"{plural(len(_files_below(folder)), 'file')}, no link, no path out"
    return PackageCheck("whole by itself", "passed", detail)


def _tried(model: Path, wish: Wish) -> tuple[Trial, int, list[str]]:
    """What the model answers, the largest batch after that, and notes."""
    subject, batching = wish.subject, wish.batching
    notes = [f"requests are not batched: {batching.reason}"] if batching.reason else []
    if subject.backend != "onnxruntime" or not wish.options.check:
        outcome: Outcome = "not run" if wish.options.check else "skipped"
        reason = (
            "an engine runs on a GPU: rmsnorm-export verify compares it there"
            if wish.options.check
            else "it was not asked for (--no-check)"
        )
        trial = untried(subject, batching.max_batch, wish.profile, outcome, reason)
    else:
        trial = try_model(model, subject, batching.max_batch, wish.profile, kernels_of(wish))
    missing = [check.detail for check in trial.checks if check.outcome == "not run"]
    if missing and wish.options.require_verified:
        raise NotRunError(
            "The packaged model could not be run here, and nothing was written.",
            found="; ".join(missing),
            fix="package it where it can be run, or leave --require-verified away",
        )
    if not trial.mixed:
        return trial, batching.max_batch, notes
    if batching.asked:
        raise VerificationError(
            "Requests that are joined into a batch change each other's answers.",
            found=trial.mixed,
            fix="package with --max-batch 0, or export the model with a batch axis",
        )
    notes.append(f"requests are not batched: {trial.mixed}")
    return try_model(model, subject, 0, wish.profile, kernels_of(wish)), 0, notes


def _warm_up(trial: Trial, wish: Wish) -> tuple[tuple[RequestShapes, ...], list[str]]:
    """Shapes to warm up with, and notes."""
    if wish.options.warmup is False:
        return (), []
    if trial.warm:
        return trial.samples, []
    problem = "the model does not run on zeros, which is all that the server can send by itself"
    if wish.options.warmup:
        raise VerificationError(
            "The server cannot warm this model up.", found=problem, fix="leave --warmup away"
        )
    return (), [f"no warm-up: {problem}"]


def _put_config(
    stage: Stage, place: Place, wish: Wish, max_batch: int, samples: Sequence[RequestShapes]
) -> PackageCheck:
    """A new ``config.pbtxt``, or for another version the one that is there, as it is."""
    path = stage.folder / CONFIG_FILE
    if place.config is not None:
        path.write_bytes(place.config_bytes)
        return PackageCheck(CONFIG_FILE, "passed", "parsed; inputs and outputs agree")
    kernels = ""
    if (library := kernels_of(wish)) is not None:
        # The server takes the path as it is: that of the manifest, or the usual one of a container.
        root = MOUNT if wish.options.kserve is not None else "/models"
        kernels = f"{root}/{wish.name}/{place.version}/{library.name}"
    config = make_config(wish.name, wish.subject, wish.options, max_batch, samples, kernels)
    write_whole(path, config_text(config, f"made by {_made_by()}"))
    return PackageCheck(CONFIG_FILE, "passed", "parsed back by Triton's definition, equal")


def _known_norms(wish: Wish) -> tuple[PackagedNorm, ...]:
    if wish.report is None:
        return wish.subject.norms
    if wish.subject.record is not None:
        return merged(wish.subject.norms, wish.report[0])
    return reported_norms(wish.report[0])


def _put_record(
    stage: Stage, place: Place, wish: Wish, max_batch: int, version: PackagedVersion
) -> PackageRecord:
    """The card and the record, which list every file."""
    before = place.record.versions if place.record is not None else ()
    others = [item for item in before if item.version != version.version]
    shared = [name for name in (CONFIG_FILE, MANIFEST_FILE) if (stage.folder / name).is_file()]
    if place.record is not None and wish.options.kserve is None:  # a manifest that was kept
        kept = {file.path for file in place.record.files}
        if MANIFEST_FILE in kept and (place.folder / MANIFEST_FILE).is_file():
            shared = [CONFIG_FILE, MANIFEST_FILE]
    record = PackageRecord(
        name=wish.name,
        backend=wish.subject.backend,
        max_batch=max_batch,
        inputs=tuple(served(item, wish.subject.backend) for item in wish.subject.inputs),
        outputs=tuple(served(item, wish.subject.backend) for item in wish.subject.outputs),
        files=_listed([stage.folder / name for name in shared], stage.folder, place.folder),
        versions=tuple(sorted((*others, version), key=lambda item: item.version)),
    )
    text = card(record, wish.benchmarks, wish.options.client, gpus=wish.options.kind != "cpu")
    write_whole(stage.folder / CARD_FILE, text)
    listed = _listed([stage.folder / CARD_FILE], stage.folder, place.folder)
    record = dataclasses.replace(record, files=(*record.files, *listed))
    present = [file for item in record.versions for file in item.files]
    states = [FileState(f.path, f.bytes, f.sha256) for f in (*record.files, *present)]
    made = provenance((), states)
    write_whole(stage.folder / RECORD_FILE, to_json(record, extra={"provenance": made}))
    return record


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _listed(paths: Sequence[Path], root: Path, kept: Path) -> tuple[PackagedFile, ...]:
    """Sizes and hashes; a file that is not in ``root`` yet is the one in ``kept``."""
    files = []
    for path in paths:
        name = path.relative_to(root).as_posix()
        file = path if path.is_file() else kept / name
        files.append(PackagedFile(name, file.stat().st_size, sha256_of(file)))
    return tuple(files)


def _made_by() -> str:
    return f"{_PACKAGE} {version_of(_PACKAGE)}"
