"""``package_model``: a model or engine becomes an entry of a Triton model repository."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Literal

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.load import Source
from rmsnorm_export.printable import short
from rmsnorm_export.runtime.sizes import Shapes
from rmsnorm_export.serving.batching import decide
from rmsnorm_export.serving.config import (
    Serving,
    check_agreement,
    check_others,
    check_serving,
    make_config,
)
from rmsnorm_export.serving.contents import Wish, fill, replaced
from rmsnorm_export.serving.kserve import KServe, check_kserve
from rmsnorm_export.serving.place import Place, find_place, model_name
from rmsnorm_export.serving.plugins import load_line, plugin_library
from rmsnorm_export.serving.protos import definitions
from rmsnorm_export.serving.records import read_benchmarks, read_report
from rmsnorm_export.serving.result import InstanceKind, Packaged
from rmsnorm_export.serving.served_model import (
    MODEL_FILE,
    ServedModel,
    is_engine,
    open_engine,
    open_onnx,
)
from rmsnorm_export.serving.trial import answers
from rmsnorm_export.system.files import StrPath, refusals_as
from rmsnorm_export.system.folders import Stage
from rmsnorm_export.system.progress import Progress
from rmsnorm_export.tensorrt.engine.result import EngineProfile
from rmsnorm_export.tensorrt.engine.shapes import make_profiles

_PACKAGE_STEPS = 3

QUEUE_DELAY_US = 100
"""Microseconds: small against a decoder's milliseconds for one step."""


def package_model(
    model_or_engine: Source,
    repository: StrPath,
    *,
    name: str | None = None,
    version: int = 1,
    backend: Literal["auto", "onnxruntime", "tensorrt"] = "auto",
    max_batch: int | None = None,
    dynamic_batching: bool | None = None,
    preferred_batch_sizes: Sequence[int] = (),
    queue_delay_us: int | None = None,
    instances: int | None = None,
    kind: InstanceKind | None = None,
    warmup: bool | None = None,
    shapes: Shapes | None = None,
    onnx: StrPath | None = None,
    plugin: StrPath | None = None,
    report: StrPath | None = None,
    benchmarks: Sequence[StrPath] = (),
    kserve: KServe | None = None,
    check: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> Packaged:
    """Put a model or engine into a Triton model repository: ``REPOSITORY/NAME/VERSION``.

    Beside the version stand ``config.pbtxt``, a model card, a record with the sha256 of every file
    and, with ``kserve``, a manifest. All is made in a hidden folder and appears in one step;
    whatever goes wrong, the repository is as it was. A further version keeps those that are there
    and the configuration as it is, and must have its inputs and outputs.

    Args:
        model_or_engine: ONNX model, as for ``optimize``; or path of a TensorRT engine that
            ``build_engine`` wrote.
        repository: folder; made if it is missing.
        name: of the model; by default that of the file without suffix.
        version: its number.
        backend: ``auto``: ``tensorrt`` for an engine, else ``onnxruntime``.
        max_batch: most requests in a batch, 0 for none; None: where all inputs and outputs share a
            dynamic leading axis, the most that ``shapes`` or the engine take, else 8.
        dynamic_batching: the server joins requests; by default where there are batches.
        preferred_batch_sizes: sizes that are sent without waiting for more.
        queue_delay_us: most microseconds that a request waits for others, 100 by default.
        instances: copies of the model on every GPU (or on the CPU), 1 by default.
        kind: ``gpu`` (default) or ``cpu``.
        warmup: the server answers requests of the usual and the largest shape before it takes any;
            by default where it can.
        shapes: of requests, as for ``build_engine``: for the check and the warm-up of a model with
            dynamic sizes. An engine has its own.
        onnx: model that the engine was built from, where it is not beside it.
        plugin: library for an engine that uses the plugin; by default that of the build that fits
            this machine best.
        report: JSON report of ``optimize`` on this model; its classes and proofs go into the card.
        benchmarks: JSON records for the card.
        kserve: write an InferenceService manifest, too.
        check: run the packaged model in ONNX Runtime on the CPU.
        force: replace the version if it exists, and write the configuration anew. Files that this
            tool did not make are kept.
        progress: called with the work at hand, the steps that are over and the steps in all.

    Raises:
        UsageError: an option does not fit, the version exists, or the folder is of other origin.
        InputError: something cannot be read, written, or run by the server; or another version has
            other inputs and outputs.
        VerificationError: the model does not answer, or joined requests change each other's
            answers.
        BackendMissingError: tritonclient, PyYAML or the plugin's library is missing.
    """
    definitions()
    step = progress or (lambda *_: None)
    step("reading the model", 0, _PACKAGE_STEPS)
    named = model_name(name, model_or_engine)
    with _refusals(repository):
        place = find_place(repository, named, version, force=force)
    subject = _open_source(model_or_engine, backend, onnx)
    if place.config is not None:
        _refuse_serving_options(
            max_batch, dynamic_batching, preferred_batch_sizes, queue_delay_us, instances, kind,
            warmup,
        )  # fmt: skip
    profiles = _request_profiles(subject, shapes)
    batching = decide(subject, _largest_batch(place, max_batch), profiles)
    delay = QUEUE_DELAY_US if queue_delay_us is None else queue_delay_us
    copies = 1 if instances is None else instances
    where: InstanceKind = "gpu" if kind is None else kind
    check_serving(
        subject, batching.max_batch, dynamic_batching=dynamic_batching,
        preferred=preferred_batch_sizes, queue_delay_us=delay, instances=copies, kind=where,
    )  # fmt: skip
    if place.config is not None:
        serving = Serving(batching.max_batch, False, (), 0, 1, "gpu", ())
        check_agreement(place.config, make_config(named, subject, serving))
    elif place.record is not None:
        check_others(place.record, version, subject)
    if kserve is not None:
        check_kserve(kserve, named)
    wish = Wish(
        name=named,
        subject=subject,
        batching=batching,
        profile=profiles[-1] if profiles else None,
        dynamic_batching=dynamic_batching,
        preferred=tuple(preferred_batch_sizes),
        queue_delay_us=delay,
        instances=copies,
        kind=where,
        warmup=warmup,
        plugin=plugin_library(subject, plugin),
        report=None if report is None else read_report(report, subject),
        benchmarks=read_benchmarks(benchmarks),
        kserve=kserve,
        check=check,
    )
    with _refusals(repository):
        return _write(place, wish, step)


def _write(place: Place, wish: Wish, step: Progress) -> Packaged:
    version = place.folder / str(place.version)
    model = version / MODEL_FILE[wish.subject.backend]
    with Stage(place.folder) as stage:
        step("checking the package", 1, _PACKAGE_STEPS)
        record, usual = fill(stage, place, wish)
        current = next(item for item in record.versions if item.version == place.version)
        stage.keep(replaced(place, wish))
        step("putting it into place", 2, _PACKAGE_STEPS)
        stage.publish()
        checks = list(current.checks)
        if any(c.name == "answers in ONNX Runtime" and c.outcome == "passed" for c in checks):
            checks.append(answers(model, usual, wish.subject))
    load = ""
    if wish.plugin is not None:
        load = load_line(wish.plugin, str(version / wish.plugin.name), str(place.folder.parent))
    return Packaged(place.folder, place.version, record, tuple(checks), load, tuple(stage.notes))


def _open_source(source: Source, backend: str, onnx: StrPath | None) -> ServedModel:
    """The subject for the backend that was asked for, or that fits."""
    engine = is_engine(source)
    if backend not in ("auto", "onnxruntime", "tensorrt"):
        raise UsageError(
            "There is no such backend.",
            found=short(backend),
            fix="one of auto, onnxruntime, tensorrt",
        )
    if backend != "auto" and engine != (backend == "tensorrt"):
        what = "a TensorRT engine" if engine else "no TensorRT engine"
        raise UsageError(
            "The backend does not run this file.",
            found=f"--backend {backend}, and it is {what}",
            fix="leave --backend away, or build an engine with rmsnorm-export build",
        )
    if engine:
        assert isinstance(source, str | os.PathLike)
        return open_engine(source, onnx)
    if onnx is not None:
        raise UsageError(
            "--onnx names the model of an engine.",
            found="the model to package is no engine",
            fix="leave --onnx away",
        )
    return open_onnx(source)


def _request_profiles(subject: ServedModel, shapes: Shapes | None) -> tuple[EngineProfile, ...]:
    if subject.record is None:
        return () if shapes is None else make_profiles(subject.inputs, shapes)
    if shapes is not None:
        raise UsageError(
            "An engine has its own shapes.",
            found="--shapes with an engine",
            fix="leave --shapes away, or build the engine for other shapes",
        )
    return subject.profiles


def _largest_batch(place: Place, max_batch: int | None) -> int | None:
    """As asked, or what the configuration that is there promises."""
    return max_batch if place.config is None else int(place.config.max_batch_size)


def _refuse_serving_options(*options: object) -> None:
    """The configuration belongs to all versions; adding one does not change it."""
    if all(option is None or option == () or option == [] for option in options):
        return
    raise UsageError(
        "Options of the configuration were given for a further version.",
        found="the model is in the repository already; its versions share one config.pbtxt",
        fix="leave these options away, edit config.pbtxt, or use --force to write it anew",
    )


def _refusals(repository: StrPath) -> contextlib.AbstractContextManager[None]:
    return refusals_as(
        "The package cannot be written.",
        repository,
        fix="check the folder and its permissions; nothing was changed",
        fix_full="free some space; nothing was changed",
    )
