"""``package_model``: a model or engine becomes an entry of a Triton model repository."""

from __future__ import annotations

import contextlib
import os

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.load import Source
from rmsnorm_export.options import takes
from rmsnorm_export.serving.batching import decide
from rmsnorm_export.serving.config import check_agreement, check_others, check_serving, make_config
from rmsnorm_export.serving.contents import Wish, fill, kernels_of, replaced
from rmsnorm_export.serving.kserve import check_kserve
from rmsnorm_export.serving.options import PackageOptions
from rmsnorm_export.serving.place import Place, find_place, model_name
from rmsnorm_export.serving.protos import definitions
from rmsnorm_export.serving.records import read_benchmarks, read_report
from rmsnorm_export.serving.result import Packaged
from rmsnorm_export.serving.served_model import (
    MODEL_FILE,
    ServedModel,
    load_line,
    open_engine,
    open_onnx,
    plugin_library,
)
from rmsnorm_export.serving.trial import answers
from rmsnorm_export.system.files import StrPath, refusals_as
from rmsnorm_export.system.folders import Stage
from rmsnorm_export.system.progress import Progress
from rmsnorm_export.tensorrt.engine.backends import is_engine
from rmsnorm_export.tensorrt.engine.model import make_profiles
from rmsnorm_export.tensorrt.engine.result import EngineProfile

_PACKAGE_STEPS = 3

_OF_THE_CONFIGURATION = (
    "max_batch", "dynamic_batching", "preferred_batch_sizes", "queue_delay_us", "instances",
    "kind", "warmup",
)  # fmt: skip
"""Options that stand in config.pbtxt."""


@takes(PackageOptions)
def package_model(
    model_or_engine: Source, repository: StrPath, options: PackageOptions
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

    Raises:
        UsageError: an option does not fit, the version exists, or the folder is of other origin.
        InputError: something cannot be read, written, or run by the server; or another version has
            other inputs and outputs.
        VerificationError: the model does not answer, or with nothing to compare, or joined requests
            change each other's answers.
        BackendMissingError: tritonclient, PyYAML or the plugin's library is missing.
    """
    definitions()
    step = options.progress or (lambda *_: None)
    step("reading the model", 0, _PACKAGE_STEPS)
    named = model_name(options.name, model_or_engine)
    with _refusals(repository):
        place = find_place(repository, named, options.version, force=options.force)
    subject = _open_source(model_or_engine, options.backend, options.onnx)
    if place.config is not None:
        _refuse_serving_options(options, subject)
    profiles = _request_profiles(subject, options)
    promised = None if place.config is None else int(place.config.max_batch_size)
    batching = decide(subject, options.max_batch if promised is None else promised, profiles)
    check_serving(subject, batching.max_batch, options)
    if place.config is not None:
        config = make_config(named, subject, options, batching.max_batch)
        check_agreement(place.config, config)
    elif place.record is not None:
        check_others(place.record, options.version, subject)
    if options.kserve is not None:
        check_kserve(options.kserve, named)
    wish = Wish(
        name=named,
        subject=subject,
        batching=batching,
        profile=profiles[-1] if profiles else None,
        plugin=plugin_library(subject, options.plugin, gpu=options.kind != "cpu"),
        report=None if options.report is None else read_report(options.report, subject),
        benchmarks=read_benchmarks(options.benchmarks),
        options=options,
    )
    with _refusals(repository):
        return _write(place, wish, step)


def _write(place: Place, wish: Wish, step: Progress) -> Packaged:
    version = place.folder / str(place.version)
    model = version / MODEL_FILE[wish.subject.backend]
    load = ""
    if wish.plugin is not None and wish.subject.backend == "tensorrt":
        load = load_line(wish.plugin, str(version / wish.plugin.name), str(place.folder.parent))
    with Stage(place.folder) as stage:
        step("checking the package", 1, _PACKAGE_STEPS)
        record, trial = fill(stage, place, wish)
        current = next(item for item in record.versions if item.version == place.version)
        stage.keep(replaced(place, wish))
        step("putting it into place", 2, _PACKAGE_STEPS)
        stage.publish()
        checks = list(current.checks)
        if trial.checks[0].outcome == "passed":
            checks.append(answers(model, trial, wish.subject, kernels_of(wish)))
    return Packaged(place.folder, place.version, record, tuple(checks), load, tuple(stage.notes))


def _open_source(source: Source, backend: str, onnx: StrPath | None) -> ServedModel:
    """The subject for the backend that was asked for, or that fits."""
    engine = is_engine(source)
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


def _request_profiles(subject: ServedModel, options: PackageOptions) -> tuple[EngineProfile, ...]:
    given = options.shapes or options.dims
    if subject.record is None:
        return make_profiles(subject.inputs, options.shapes, options.dims) if given else ()
    if given:
        raise UsageError(
            "An engine has its own shapes.",
            found=f"{'--shapes' if options.shapes else '--dims'} with an engine",
            fix="leave it away, or build the engine for other shapes",
        )
    return subject.profiles


def _refuse_serving_options(options: PackageOptions, subject: ServedModel) -> None:
    """The configuration belongs to all versions; adding one does not change it."""
    names = [*_OF_THE_CONFIGURATION, *(["plugin"] if subject.backend == "onnxruntime" else [])]
    if all(getattr(options, name) in (None, (), []) for name in names):
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
