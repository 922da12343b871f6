"""``build_engine``: from an ONNX file to an engine and the record of the fate of its norms."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from rmsnorm_export.errors import RequirementError, UsageError
from rmsnorm_export.graph.load import Source
from rmsnorm_export.graph.save import check_output
from rmsnorm_export.printable import one_line, plural, short
from rmsnorm_export.records import to_dict, to_json
from rmsnorm_export.system.files import StrPath, Transaction, refusals_as
from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.system.provenance import utc_now
from rmsnorm_export.system.reading import sha256_of
from rmsnorm_export.tensorrt.engine import backends
from rmsnorm_export.tensorrt.engine.layers import by_profile, layers_of
from rmsnorm_export.tensorrt.engine.model import make_profiles, open_model
from rmsnorm_export.tensorrt.engine.options import BuildOptions, plan_plugin
from rmsnorm_export.tensorrt.engine.result import EngineRecord, EngineResult, sidecar_path
from rmsnorm_export.tensorrt.engine.sites import find_norms

_PLACE = re.compile(r"^[\w.]+\.[ch]pp:\d+: ")
"""Source file and line in front of a message."""

_NAMED = 5
"""Norms that an error names."""


def build_model(model: Source, path: StrPath, options: BuildOptions) -> EngineResult:
    """Build the engine of one model; arguments and errors as for ``build_engine``."""
    target, sidecar = _outputs(model, path, options)
    info, why = backends.choose(options.backend)
    options.check(info)
    fix = "check the folder, its permissions and its free space; nothing was changed"
    with (
        open_model(model) as ready,
        refusals_as("The engine cannot be written.", target, fix=fix),
        Transaction() as files,
    ):
        profiles = make_profiles(ready.inputs, options.shapes, options.dims)
        library, reason = plan_plugin(options.plugin, info, own=ready.own)
        temporary = files.temp(target)
        request = options.flags() | {
            "model": str(ready.path),
            "engine": str(temporary),
            "profiles": [to_dict(profile.inputs) for profile in profiles],
            "plugin": str(library or ""),
            "inspect": backends.gpu_visible(),
        }
        answer = backends.run_backend("build", request, info)
        if answer.result is None:
            raise backends.failure(answer, info, ready.path.name, "cannot build the engine.")
        built = answer.result
        if "refused" in built:
            raise backends.refused(built["refused"], answer, info)
        layers, layers_from = layers_of(built["inspected"], built["layers"])
        layers = by_profile(layers, len(profiles))
        record = EngineRecord(
            engine=target.name,
            bytes=temporary.stat().st_size,
            sha256=sha256_of(temporary),
            model=ready.path.name,
            model_sha256=sha256_of(ready.path),
            backend=info.name,
            version=built["version"],
            versions=versions_of(("rmsnorm-export", "onnx", "onnx-ir", "polygraphy")),
            gpus=backends.gpus(),
            built=utc_now(),
            seconds=round(answer.seconds, 3),
            inputs=ready.inputs,
            outputs=ready.outputs,
            profiles=profiles,
            flags=options.flags(),
            plugin="" if library is None else library.name,
            plugin_reason=reason,
            norms=find_norms(ready.sites, layers),
            layers=layers,
            layers_from=layers_from,
            messages=_messages(built["warnings"]),
            notes=(f"backend {info.name}: {why}", *ready.notes),
        )
        if options.plugin == "require":
            require_plugin(record)
        beside = files.temp(sidecar, to_json(record).encode())
        files.publish(beside, sidecar, replace=options.force)
        files.publish(temporary, target, replace=options.force, last=True)
    return EngineResult(target, sidecar, record)


def _outputs(model: Source, path: StrPath, options: BuildOptions) -> tuple[Path, Path]:
    """Return the paths of engine and record, of which neither is the model, with force or not."""
    origin = model if isinstance(model, str | os.PathLike) else None
    target = check_output(path, force=options.force)
    sidecar = check_output(sidecar_path(target), force=options.force)
    for one in (target, sidecar):
        if origin and one.exists() and os.path.samefile(origin, one):
            what, fix = "The output is the input file.", "choose another"
            raise UsageError(what, found=short(str(one), 300), fix=fix)
    return target, sidecar


def _messages(warnings: Iterable[str]) -> tuple[str, ...]:
    """Return the first warnings without their place in the source, each once."""
    texts = (one_line(_PLACE.sub("", text.strip()), 600) for text in warnings)
    return tuple(dict.fromkeys(texts))[:50]


def require_plugin(record: EngineRecord) -> None:
    """Raise ``RequirementError`` where a norm that could be a plugin layer is known to be none."""
    missed = [n for n in record.norms if n.form == "node" and n.how in ("fused", "unfused")]
    if missed:
        what = f"{plural(len(missed), 'norm')} became no plugin layer; nothing was written."
        found = "; ".join(f"{short(norm.name)} is {norm.how}" for norm in missed[:_NAMED])
        fix = "see rmsnorm-export plugin check, or use --plugin auto"
        raise RequirementError(what, found=found, fix=fix)
