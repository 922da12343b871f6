"""``package_model``: a model, an engine or a decoder's folder in a Triton model repository.

Of a decoder's folder every graph is a model; of one graph for prompt and tokens (``--multi-token``)
the server holds the weights once. The cache goes with the requests: Triton's implicit
state belongs to one model, so that prefill could not hand its cache to decode. On one host the
cache costs no copy through the network with Triton's shared memory.
``docs/examples/triton_decoder.py`` is a client.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from pathlib import Path

from rmsnorm_export.decoder.bundle import Bundle, open_folder
from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.deploy.repository import (
    CONFIG_FILE,
    MODEL_FILE,
    RECORD_FILE,
    Packaged,
    PackagedModel,
    Place,
    check_kept,
    config_text,
    find_place,
    model_name,
)
from rmsnorm_export.deploy.served import ServedModel, decide_batch, open_served
from rmsnorm_export.deploy.trial import try_model
from rmsnorm_export.errors import (
    BackendMissingError,
    InputError,
    NotRunError,
    UsageError,
    VerificationError,
)
from rmsnorm_export.graph.load import Source, load_model
from rmsnorm_export.graph.save import save_model
from rmsnorm_export.options import takes
from rmsnorm_export.printable import quoted
from rmsnorm_export.records import to_json
from rmsnorm_export.runtime.session import has_cuda_nodes
from rmsnorm_export.runtime.sizes import RANGES
from rmsnorm_export.system.files import StrPath, copy_file, next_state, refusals_as, write_whole
from rmsnorm_export.system.machine import gpus
from rmsnorm_export.system.reading import sha256_of
from rmsnorm_export.tensorrt.plugin.libraries import find_build, open_library


@takes(PackageOptions)
def package_model(model: Source, repository: StrPath, options: PackageOptions) -> Packaged:
    """Put a model into a Triton model repository: ``REPOSITORY/NAME/VERSION``.

    Beside the version stands ``config.pbtxt``. All is made in a hidden folder and
    appears in one step; whatever goes wrong, the repository is as it was. A further version keeps
    those that are there and the configuration as it is, and must have its inputs and outputs.

    Args:
        model: ONNX model, as for ``optimize``; path of a TensorRT engine that ``build_engine``
            wrote; or a folder of graphs: each becomes a model ``NAME_COMPONENT``, one
            alone ``NAME``.
        repository: folder; made if it is missing.

    Raises:
        UsageError: an option does not fit, the version exists, or the folder is of other origin.
        InputError: something cannot be read, written, or run by the server; or another version has
            other inputs and outputs.
        VerificationError: the model does not answer, or with nothing to compare, or joined requests
            change each other's answers.
        BackendMissingError: the plugin's library is missing.
    """
    if isinstance(model, str | os.PathLike) and os.path.isdir(model):
        return _put_bundle(open_folder(model), repository, options)
    return _put(model, repository, options)


def _put_bundle(bundle: Bundle, repository: StrPath, options: PackageOptions) -> Packaged:
    """Put every graph of a folder into the repository; what is new is taken back if one fails."""
    base = options.name or model_name(None, bundle.folder)
    alone = len(bundle.files) == 1
    names = {n: model_name(base if alone else f"{base}_{n}", None) for n in bundle.files}
    places = [find_place(repository, one, options) for one in names.values()]
    models: list[PackagedModel] = []
    root = places[0].folder.parent
    with contextlib.ExitStack() as undo:
        if not root.exists():
            undo.callback(_drop_empty, root)
        for place in places:
            if not place.folder.exists():
                undo.callback(shutil.rmtree, place.folder, ignore_errors=True)
        for name, (shapes, dims) in bundle.sizes(options.shapes, options.dims, RANGES).items():
            own = dataclasses.replace(options, name=names[name], shapes=shapes, dims=dims)
            models += _put(bundle.files[name], repository, own).models
        undo.pop_all()
    if len(models) > 1:
        note = "each model holds its weights: a folder of one graph (--multi-token) holds them once"
        models[-1] = dataclasses.replace(models[-1], notes=(*models[-1].notes, note))
    return Packaged(root, tuple(models))


def _drop_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _put(model: Source, repository: StrPath, options: PackageOptions) -> Packaged:
    step = options.progress or (lambda *_: None)
    name = model_name(options.name, model)
    fix = "check the repository, the folder above it and their space; nothing was changed"
    with refusals_as("The package cannot be written.", repository, fix=fix):
        place = find_place(repository, name, options)
        step("reading the model", 0, 3)
        package = _Package(place, open_served(model, options), options)
        replaced = {str(options.version), *([CONFIG_FILE] * place.new_config)}
        with next_state(place.folder, replaced) as folder:
            step("checking the package", 1, 3)
            record = package.fill(folder)
            step("putting it into place", 2, 3)
    return Packaged(place.folder.parent, (record,))


class _Package:
    """One version of a model, checked against what is there before anything is written."""

    def __init__(self, place: Place, subject: ServedModel, options: PackageOptions) -> None:
        self.place, self.subject, self.options = place, subject, options
        self.asked = options.max_batch
        if self.asked is None and place.kept and not place.new_config:
            self.asked = place.kept[0].max_batch
        every = (*subject.inputs, *subject.outputs)
        self.max_batch, reason = decide_batch(every, self.asked, subject.profiles)
        self.notes = [f"requests are not batched: {reason}"] if reason else []
        if options.kind == "cpu" and subject.record is not None:
            what, fix = "An engine runs on a GPU only.", "omit --kind"
            raise UsageError(what, found="--kind cpu", fix=fix)
        self.plugin = _plugin_library(subject, options)
        self.kind = options.kind or _kind(subject, self.plugin)
        for kept in place.kept:
            check_kept(kept, subject, self.max_batch)
        if not place.new_config:
            self.notes.append(f"{CONFIG_FILE} stays as it is without --force")

    def fill(self, folder: Path) -> PackagedModel:
        """Make the version and, where it is new, the configuration in ``folder``."""
        subject, options, name = self.subject, self.options, self.place.folder.name
        home, config = folder / str(options.version), folder / CONFIG_FILE
        home.mkdir()
        model = home / MODEL_FILE[subject.backend]
        _put_model(subject, model)
        answers = self._tried(model)
        served_at = ""
        if self.plugin is not None:
            copy_file(self.plugin, home / self.plugin.name)
            served_at = f"/models/{name}/{options.version}/{self.plugin.name}"
        files = [path for path in sorted(home.rglob("*")) if path.is_file()]
        by_tensorrt = served_at and subject.record is not None
        load = f"--backend-config=tensorrt,plugins={served_at}" if by_tensorrt else ""
        if self.place.new_config:
            kernels = "" if by_tensorrt else served_at
            text = config_text(name, subject, self.max_batch, self.kind, kernels)
            write_whole(config, text)
            files.append(config)
        record = PackagedModel(
            name=name,
            version=options.version,
            backend=subject.backend,
            max_batch=self.max_batch,
            inputs=subject.tensors[0],
            outputs=subject.tensors[1],
            source="memory" if subject.path is None else subject.path.name,
            owner=options.owner,
            answers=answers,
            load=load,
            notes=(*(subject.loaded.notes if subject.loaded else ()), *self.notes),
            files={path.relative_to(folder).as_posix(): sha256_of(path) for path in files},
        )
        write_whole(home / RECORD_FILE, to_json(record))
        return record

    def _tried(self, model: Path) -> str:
        """Say what was asked and answered; ``max_batch`` is 0 where requests mix."""
        if not self.options.check or self.subject.loaded is None:
            return "no, see verify" if self.options.check else "no, check was False"
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


def _kind(subject: ServedModel, kernels: Path | None) -> str:
    """Return where a model runs for which nobody said it."""
    if subject.record is not None:
        return "gpu"
    return "auto" if gpus() and (kernels is None or has_cuda_nodes(kernels)) else "cpu"


def _put_model(subject: ServedModel, model: Path) -> None:
    """Copy the file as it is with its external data, or write the model from memory."""
    loaded = subject.loaded
    if subject.path is None and loaded is not None:
        save_model(loaded.model, model, weights="copy")
        return
    assert subject.path is not None  # an engine is a file
    copy_file(subject.path, model)
    if loaded is None:
        return
    for location in loaded.external:
        target = Path(os.path.normpath(model.parent / location))
        if target.exists() or target.name == RECORD_FILE:
            what = "A file of external data has a name that the package needs for another file."
            fix = "save the model again with rmsnorm-export optimize -o"
            raise UsageError(what, found=quoted(location), fix=fix)
        copy_file(Path(os.path.realpath(subject.path.parent / location)), target)
    load_model(model)  # whole by itself: no link, no path out of the folder


def _plugin_library(subject: ServedModel, options: PackageOptions) -> Path | None:
    """Return the library that the server must load for the model; None when it needs none.

    Raises:
        InputError: the library is missing, of no use, or not needed.
        BackendMissingError: none was given and none is built.
    """
    path, record = options.plugin, subject.record
    if path is None:
        return find_build().path("dlopen") if record is not None and record.plugin else None
    if record is not None and record.plugin:
        return open_library(path, "dlopen")
    problem, fix = "the engine uses no plugin", "omit --plugin"
    if record is None:
        kernels = open_library(path, "register")
        if options.kind in ("cpu", None) or has_cuda_nodes(kernels):
            return kernels
        problem, fix = "it has kernels for the CPU only", "give --kind cpu, or a library for CUDA"
    found = f"{path}: {problem}"
    raise InputError("The plugin library cannot be used.", found=found, fix=fix)
