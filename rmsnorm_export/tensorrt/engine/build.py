"""``build_engine``: from an ONNX file to an engine and the record of what became of its norms."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rmsnorm_export.errors import RequirementError, UsageError
from rmsnorm_export.graph.load import Source
from rmsnorm_export.graph.save import check_output
from rmsnorm_export.options import takes
from rmsnorm_export.printable import one_line, plural, short
from rmsnorm_export.records import to_dict, to_json
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath, Transaction, refusals_as
from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.system.process import Ended
from rmsnorm_export.system.provenance import FileState, Provenance, provenance
from rmsnorm_export.tensorrt.engine.backends import (
    BackendInfo,
    choose,
    gpu_visible,
    gpus,
    run_backend,
)
from rmsnorm_export.tensorrt.engine.failure import failure
from rmsnorm_export.tensorrt.engine.layers import by_profile, layers_of
from rmsnorm_export.tensorrt.engine.model import EngineModel, open_model
from rmsnorm_export.tensorrt.engine.options import BuildOptions
from rmsnorm_export.tensorrt.engine.plugins import plan_plugin
from rmsnorm_export.tensorrt.engine.result import (
    EngineProfile,
    EngineRecord,
    EngineResult,
    Message,
    MessageKind,
    PluginState,
    Stage,
    sidecar_path,
)
from rmsnorm_export.tensorrt.engine.shapes import make_profiles
from rmsnorm_export.tensorrt.engine.sites import find_norms

_RECORDED_PACKAGES = ("rmsnorm-export", "onnx", "onnx-ir")

_MESSAGE_KINDS: tuple[tuple[MessageKind, re.Pattern[str]], ...] = (
    ("half-norm", re.compile(r"layernorm (nodes|after self-attention).*(FP16|BF16)", re.I | re.S)),
    ("index-type", re.compile(r"has Int64 binding", re.I)),
    ("function-names", re.compile(r"A node named .* already exists", re.S)),
)
_MESSAGE_PLACE = re.compile(r"^[\w.]+\.[ch]pp:\d+: ")
"""Source file and line in front of a message."""

_NAMED = 5
"""Norms that an error names."""

MESSAGE_LIMIT = 50
"""Different other messages that are kept."""


@takes(BuildOptions)
def build_engine(model: Source, path: StrPath, options: BuildOptions) -> EngineResult:
    """Build an engine from an ONNX model, and say what became of every RMSNorm in it.

    The backend runs in a process of its own: when it crashes, this raises an error. The engine and
    its record ``PATH.json`` appear whole or not at all.

    Args:
        model: path of an .onnx file, which the parser reads itself, external data with it; or
            bytes, ``onnx.ModelProto`` or ``onnx_ir.Model`` without external data. Never changed.
        path: of the engine.

    Raises:
        UsageError: an option does not fit the model or the backend, or the output exists.
        InputError: the model cannot be read, parsed or built, or the output not be written.
        BackendMissingError: the backend or, with ``require``, the plugin is not there.
        RequirementError: ``plugin="require"``, and a norm of the domain became none.
    """
    origin = model if isinstance(model, str | os.PathLike) else None
    target, sidecar = _outputs(path, origin, options.force)
    cache = _timing_cache(options.timing_cache, (target, sidecar, origin))
    info, why = choose(options.backend)
    options.check(info)
    with open_model(model) as ready:
        profiles = make_profiles(ready.inputs, options.shapes, options.dims)
        library, reason = plan_plugin(options.plugin, info, own=ready.own)
        notes = [f"backend {info.name}: {why}", *ready.notes, *options.notes(info)]
        if cache is not None and not info.timing_cache:
            notes.append(f"{info.label} has no timing cache: {cache.name} was not touched")
            cache = None
        fix = "check the folder, its permissions and its free space; nothing was changed"
        with refusals_as("The engine cannot be written.", target, fix=fix):
            try:
                with Transaction() as files:
                    temporary, descriptor = files.temp(target)
                    os.close(descriptor)
                    request = options.request(info) | {
                        "command": "build",
                        "model": str(ready.path),
                        "engine": str(temporary),
                        "profiles": [to_dict(profile.inputs) for profile in profiles],
                        "plugin": str(library or ""),
                        "timing_cache": str(cache or ""),
                        "inspect": gpu_visible(),
                    }
                    ended = run_backend(request, info, options.progress or None)
                    if ended.first("done") is None:
                        raise failure(ended, info, library=str(library or ""))
                    plugin = PluginState(
                        options.plugin,
                        "" if library is None else library.name,
                        "" if library is None else sha256_of(library),
                        options.embed_plugin and library is not None,
                        reason,
                    )
                    record = _record(
                        target.name, temporary, info, ready, profiles, options, plugin, ended, notes
                    )
                    _check_plugin(record, options)
                    made = _made(record, ready, target)
                    text = to_json(record, extra={"provenance": made})
                    beside = files.write_temp(sidecar, text.encode())
                    files.publish(beside, sidecar, replace=options.force)
                    files.publish(temporary, target, replace=options.force, last=True)
            except FileExistsError as error:
                raise UsageError(
                    "A file of that name appeared during the build.",
                    found=short(str(error.filename or target), 300),
                    fix="choose another name, or use --force to replace it",
                ) from error
    return EngineResult(target, sidecar, record)


def _made(record: EngineRecord, model: EngineModel, target: Path) -> Provenance:
    """What the sidecar says of its making; files in other folders are in ``record.model`` only."""
    identity, folder = record.model, target.parent
    inputs = [FileState(str(model.path.absolute()), identity.bytes, identity.sha256)]
    inputs += [
        FileState(str(model.path.absolute().parent / data.location), data.bytes, data.sha256)
        for data in identity.data
        if data.sha256
    ]
    here = [file for file in inputs if Path(file.path).is_relative_to(folder)]
    engine = FileState(str(target), record.bytes, record.sha256)
    return provenance(here if identity.name != "memory" else (), [engine]).seen_from(folder)


def _record(
    name: str,
    engine: Path,
    info: BackendInfo,
    model: EngineModel,
    profiles: tuple[EngineProfile, ...],
    options: BuildOptions,
    plugin: PluginState,
    ended: Ended,
    notes: Sequence[str],
) -> EngineRecord:
    """The record of ``engine``, which will have the name ``name``."""
    layers, layers_from = layers_of(ended)
    layers = by_profile(layers, len(profiles))
    version = ended.first("version") or {}
    notes = [*notes, *(f"timing cache: {event['text']}" for event in ended.all("timing-cache"))]
    if layers_from == "builder log":
        notes.append("the layers are those that the builder logged; no engine was loaded")
    if model.aliased:
        many = plural(len(model.aliased), "output")
        notes.append(
            f"{many} of a cache: bind each to its input's buffer, see aliased in the record"
        )
    return EngineRecord(
        engine=name,
        bytes=engine.stat().st_size,
        sha256=sha256_of(engine),
        model=model.identity,
        backend=info.name,
        version=str(version.get("version", "")),
        versions=versions_of(_RECORDED_PACKAGES)
        | {"python": platform.python_version()}
        | {"polygraphy": str(version.get("polygraphy", ""))},
        platform=f"{platform.system()} {platform.machine()}",
        gpus=gpus(),
        built=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        seconds=round(ended.seconds, 3),
        profiles=profiles,
        flags=options.flags(),
        plugin=plugin,
        norms=find_norms(model.sites, layers),
        layers=layers,
        layers_from=layers_from,
        messages=collect_messages(
            (event["stage"], event["text"])
            for event in ended.all("message")
            if event["severity"] == "warning"
        ),
        notes=tuple(notes),
        aliased=model.aliased,
    )


def collect_messages(warnings: Iterable[tuple[Stage, str]]) -> tuple[Message, ...]:
    """Warnings of one kind once, with their number.

    Args:
        warnings: stage (``parse`` or ``build``) and text of each, in order.
    """
    groups: dict[tuple[str, str, str], Message] = {}
    for stage, text in warnings:
        text = one_line(_MESSAGE_PLACE.sub("", text.strip()), 600)
        kind = message_kind(text)
        key = (stage, kind, text if kind == "other" else "")
        known = groups.get(key)
        if known is None and len(groups) >= MESSAGE_LIMIT:
            continue
        first, count = (text, 0) if known is None else (known.text, known.count)
        groups[key] = Message(stage, kind, first, count + 1)
    return tuple(groups.values())


def message_kind(text: str) -> MessageKind:
    """What a warning is about."""
    return next((kind for kind, pattern in _MESSAGE_KINDS if pattern.search(text)), "other")


def _outputs(path: StrPath, source: StrPath | None, force: bool) -> tuple[Path, Path]:
    """Where the engine and its record go, if both can be written."""
    if os.fspath(path) == "-":
        raise UsageError(
            "An engine cannot go to stdout.",
            found="the output -",
            fix="give a file name: the record is written beside the engine",
        )
    target = check_output(path, source=source, force=force)
    sidecar = check_output(sidecar_path(target), source=source, force=force)
    if source is not None:
        for output in (target, sidecar):  # with --force, too, the model is never replaced
            if output.exists() and os.path.exists(source) and os.path.samefile(output, source):
                raise UsageError(
                    "The output is the input file.",
                    found=short(str(output), 300),
                    fix="choose another name",
                )
    return target, sidecar


def _timing_cache(name: StrPath | None, others: tuple[StrPath | None, ...]) -> Path | None:
    """The timing cache's path, if it can be written."""
    if name is None:
        return None
    path = check_output(name, force=True)
    for other in others:
        if other is not None and os.path.realpath(other) == os.path.realpath(path):
            raise UsageError(
                "The timing cache has the name of another file of the build.",
                found=short(str(path), 300),
                fix="give it a name of its own",
            )
    return path


def _check_plugin(record: EngineRecord, options: BuildOptions) -> None:
    """``require``: every norm that could, became a plugin layer, as far as the layers tell."""
    if options.plugin != "require" or record.layers_from == "none":
        return
    missed = [n for n in record.norms if n.form == "node" and n.how in ("fused", "unfused")]
    if missed:
        raise RequirementError(
            f"{plural(len(missed), 'norm')} became no plugin layer; nothing was written.",
            found="; ".join(f"{short(norm.name)} is {norm.how}" for norm in missed[:_NAMED])
            + (f"; and {len(missed) - _NAMED} more" if len(missed) > _NAMED else ""),
            fix="see rmsnorm-export plugin check, or use --plugin auto",
        )
