"""``build_engine``: from an ONNX file to an engine and the record of what became of its norms."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rmsnorm_export.errors import RequirementError, UsageError
from rmsnorm_export.graph.load import Source
from rmsnorm_export.graph.save import check_output
from rmsnorm_export.options import takes
from rmsnorm_export.printable import short
from rmsnorm_export.records import to_dict, to_json
from rmsnorm_export.system.files import StrPath, Transaction, refusals_as
from rmsnorm_export.tensorrt.engine.backends import choose, gpu_visible, run_backend
from rmsnorm_export.tensorrt.engine.failure import failure
from rmsnorm_export.tensorrt.engine.model import open_model
from rmsnorm_export.tensorrt.engine.options import BuildOptions
from rmsnorm_export.tensorrt.engine.plugins import plan_plugin
from rmsnorm_export.tensorrt.engine.record import Build, make_record
from rmsnorm_export.tensorrt.engine.result import (
    EngineRecord,
    EngineResult,
    sidecar_path,
)
from rmsnorm_export.tensorrt.engine.shapes import make_profiles


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
        plan = plan_plugin(options.plugin, info, own=ready.own)
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
                        "plugin": "" if plan.library is None else str(plan.library),
                        "timing_cache": str(cache) if cache and info.timing_cache else "",
                        "inspect": gpu_visible(),
                    }
                    start = time.perf_counter()
                    ended = run_backend(request, info, options.progress)
                    seconds = time.perf_counter() - start
                    if ended.first("done") is None:
                        raise failure(ended, info, library=str(plan.library or ""))
                    done = Build(info, why, ready, profiles, plan, options, cache, ended, seconds)
                    record = make_record(done, target.name, temporary)
                    _check_plugin(record, options)
                    beside = files.write_temp(sidecar, to_json(record).encode())
                    files.publish(beside, sidecar, replace=options.force)
                    files.publish(temporary, target, replace=options.force, last=True)
            except FileExistsError as error:
                raise UsageError(
                    "A file of that name appeared during the build.",
                    found=short(str(error.filename or target), 300),
                    fix="choose another name, or use --force to replace it",
                ) from error
    return EngineResult(target, sidecar, record)


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
            f"{len(missed)} norms did not become plugin layers; nothing was written.",
            found=f"the first is {short(missed[0].name)}: {missed[0].how}",
            fix="see rmsnorm-export plugin check, or use --plugin auto",
        )
