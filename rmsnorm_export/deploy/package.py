"""``package_model``: a model, an engine or a decoder's folder in a Triton model repository."""

from __future__ import annotations

import os
from pathlib import Path

from rmsnorm_export.deploy.batching import decide_batch
from rmsnorm_export.deploy.card import card
from rmsnorm_export.deploy.config import config_text, refuse_options
from rmsnorm_export.deploy.decoder import package_bundle
from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.deploy.packaged import (
    CARD_FILE,
    CONFIG_FILE,
    MODEL_FILE,
    RECORD_FILE,
    REPORT_FILE,
    Packaged,
    PackagedModel,
)
from rmsnorm_export.deploy.place import Place, find_place, model_name
from rmsnorm_export.deploy.served import ServedModel, check_kept, open_served
from rmsnorm_export.deploy.trial import try_model
from rmsnorm_export.errors import (
    BackendMissingError,
    InputError,
    NotRunError,
    UsageError,
    VerificationError,
)
from rmsnorm_export.graph.bundle import bundle_at
from rmsnorm_export.graph.load import Source, load_model
from rmsnorm_export.graph.save import save_model
from rmsnorm_export.options import takes
from rmsnorm_export.printable import quoted
from rmsnorm_export.records import to_json
from rmsnorm_export.runtime.session import has_cuda_nodes
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath, copy_file, refusals_as, write_whole
from rmsnorm_export.system.folders import Stage
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.system.provenance import utc_now
from rmsnorm_export.tensorrt.plugin.libraries import open_library
from rmsnorm_export.tensorrt.plugin.lines import library


@takes(PackageOptions)
def package_model(model: Source, repository: StrPath, options: PackageOptions) -> Packaged:
    """Put a model into a Triton model repository: ``REPOSITORY/NAME/VERSION``.

    Beside the version stand ``config.pbtxt`` and a model card. All is made in a hidden folder and
    appears in one step; whatever goes wrong, the repository is as it was. A further version keeps
    those that are there and the configuration as it is, and must have its inputs and outputs.

    Args:
        model: ONNX model, as for ``optimize``; path of a TensorRT engine that ``build_engine``
            wrote; or a folder of graphs, of which each becomes a model ``NAME_COMPONENT``.
        repository: folder; made if it is missing.

    Raises:
        UsageError: an option does not fit, the version exists, or the folder is of other origin.
        InputError: something cannot be read, written, or run by the server; or another version has
            other inputs and outputs.
        VerificationError: the model does not answer, or with nothing to compare, or joined requests
            change each other's answers.
        BackendMissingError: the plugin's library is missing.
    """
    bundle = bundle_at(model)
    if bundle is not None:
        return package_bundle(bundle, repository, options, _put)
    return _put(model, repository, options)


def _put(model: Source, repository: StrPath, options: PackageOptions) -> Packaged:
    step = options.progress or (lambda *_: None)
    name, fix = model_name(options.name, model), "check the folder; nothing was changed"
    full = "free some space; nothing was changed"
    with refusals_as("The package cannot be written.", repository, fix=fix, fix_full=full):
        place = find_place(repository, name, options)
        step("reading the model", 0, 3)
        subject = open_served(model, options)
        package = _Package(place, subject, options)
        with Stage(place.folder) as stage:
            step("checking the package", 1, 3)
            record = package.fill(stage.folder)
            versions = sorted([*place.kept, record], key=lambda one: one.version)
            write_whole(stage.folder / CARD_FILE, card(versions))
            stage.keep({str(options.version), CARD_FILE, *([CONFIG_FILE] * place.new_config)})
            step("putting it into place", 2, 3)
            stage.publish()
    return Packaged(place.folder.parent, (record,))


class _Package:
    """One version of a model, checked against what is there before anything is written."""

    def __init__(self, place: Place, subject: ServedModel, options: PackageOptions) -> None:
        self.place, self.subject, self.options = place, subject, options
        self.asked = options.max_batch
        if not place.new_config and not options.owner:
            refuse_options(subject.backend, options)
            self.asked = next((kept.max_batch for kept in place.kept), None)
        every = (*subject.inputs, *subject.outputs)
        self.max_batch, reason = decide_batch(every, self.asked, subject.profiles)
        self.notes = [f"requests are not batched: {reason}"] if reason else []
        if options.kind == "cpu" and subject.backend == "tensorrt":
            what, fix = "An engine runs on a GPU only.", "omit --kind"
            raise UsageError(what, found="--kind cpu", fix=fix)
        self.plugin = _plugin_library(subject, options.plugin, gpu=options.kind != "cpu")
        for kept in place.kept:
            check_kept(kept, subject, self.max_batch)
        if not place.new_config:
            self.notes.append(f"{CONFIG_FILE} stays as it is without --force")

    def fill(self, folder: Path) -> PackagedModel:
        """Make the version and, where it is new, the configuration in ``folder``."""
        subject, options, name = self.subject, self.options, self.place.folder.name
        home, engine = folder / str(options.version), subject.record is not None
        home.mkdir()
        model = home / MODEL_FILE[subject.backend]
        _put_model(subject, model)
        answers = self._tried(model)
        served_at = ""
        if self.plugin is not None:
            copy_file(self.plugin, home / self.plugin.name)
            served_at = f"/models/{name}/{options.version}/{self.plugin.name}"
        if subject.report:
            write_whole(home / REPORT_FILE, subject.report)
        config = folder / CONFIG_FILE
        if self.place.new_config:
            kernels = "" if engine else served_at
            write_whole(config, config_text(name, subject, self.max_batch, options, kernels))
        files = [path for path in sorted(home.rglob("*")) if path.is_file()]
        files += [config] if self.place.new_config else []
        record = PackagedModel(
            name=name,
            version=options.version,
            backend=subject.backend,
            max_batch=self.max_batch,
            inputs=subject.tensors[0],
            outputs=subject.tensors[1],
            source="memory" if subject.path is None else subject.path.name,
            source_sha256=sha256_of(subject.path or model),
            owner=options.owner,
            made=utc_now().isoformat(timespec="seconds"),
            tool=f"rmsnorm-export {version_of('rmsnorm-export')}",
            norms=dict(subject.norms),
            answers=answers,
            load=f"--backend-config=tensorrt,plugins={served_at}" if engine and served_at else "",
            notes=(*subject.loaded.notes, *self.notes),
            files={path.relative_to(folder).as_posix(): sha256_of(path) for path in files},
        )
        write_whole(home / RECORD_FILE, to_json(record))
        return record

    def _tried(self, model: Path) -> str:
        """Say what was asked and answered; ``max_batch`` is 0 where requests mix."""
        if not self.options.check or self.subject.record is not None:
            return "no, see verify" if self.options.check else "no, as it was wished"
        try:
            mixed, asked = try_model(model, self.subject, self.max_batch, self.plugin)
        except (BackendMissingError, NotRunError) as error:
            return f"not run: {error.found}"
        if not mixed:
            return asked
        if self.asked is not None:
            what = "Requests that are joined into a batch change each other's answers."
            fix = "package with --max-batch 0, or export the model with a batch axis"
            raise VerificationError(what, found=mixed, fix=fix)
        self.max_batch = 0
        self.notes.append(f"requests are not batched: {mixed}")
        return self._tried(model)


def _put_model(subject: ServedModel, model: Path) -> None:
    """Copy the file as it is with its external data, or write the model from memory."""
    if subject.path is None:
        save_model(subject.loaded.model, model, weights="copy")
        return
    copy_file(subject.path, model)
    for location in subject.loaded.external if subject.record is None else ():
        target = Path(os.path.normpath(model.parent / location))
        if target.exists() or target.name in (REPORT_FILE, RECORD_FILE):
            what = "A file of external data has a name that the package needs for another file."
            fix = "save the model again with rmsnorm-export optimize -o"
            raise UsageError(what, found=quoted(location), fix=fix)
        copy_file(Path(os.path.realpath(subject.path.parent / location)), target)
    if subject.record is None:
        load_model(model)  # whole by itself: no link, no path out of the folder


def _plugin_library(subject: ServedModel, given: StrPath | None, *, gpu: bool) -> Path | None:
    """Return the library that the server must load for the model; None when it needs none.

    Args:
        subject: the model or engine.
        given: by the user: for an engine the plugin, for a model kernels for ONNX Runtime.
        gpu: the server runs it on a GPU.

    Raises:
        InputError: the library is missing, of no use, or not needed.
        BackendMissingError: none was given and none is built.
    """
    state = subject.record.plugin if subject.record is not None else None
    needed = state is not None and bool(state.library) and not state.embedded
    if given is None:
        return library("triton") if needed else None
    if state is not None and needed:
        return open_library(given, "dlopen").path
    problem, fix = "the engine uses no plugin, or has it inside", "omit --plugin"
    if state is None:
        path = open_library(given, "register").path
        if not gpu or has_cuda_nodes(path):
            return path
        problem, fix = "it has kernels for the CPU only", "give --kind cpu, or a library for CUDA"
    found = f"{given}: {problem}"
    raise InputError("The plugin library cannot be used.", found=found, fix=fix)
