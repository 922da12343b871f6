"""``check_engine``: whether an engine can run here, before something tries to run it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import one_line, short
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine.backends import (
    BACKENDS,
    BackendInfo,
    backend_of_file,
    cause,
    gpu_visible,
    gpus,
    run_backend,
)
from rmsnorm_export.tensorrt.engine.options import library_or_none
from rmsnorm_export.tensorrt.engine.result import EngineCheck, EngineRecord, Usable, read_record

REBUILD = "build it again here with rmsnorm-export build"

# TensorRT-RTX's EngineInvalidityDiagnostics; TensorRT itself only says so in its log.
_REASONS = {
    1: ("it was built with another version of the backend", REBUILD),
    2: ("it was built for other GPUs", REBUILD),
    4: ("the GPU driver is too old for it", "update the driver"),
    8: ("the CUDA runtime is too old for it", "update CUDA"),
    16: ("it needs more GPU memory than there is", "free memory, or build for smaller shapes"),
    32: ("it is no engine of this backend, or it is damaged", REBUILD),
}

_OTHER_VERSION = re.compile(
    r"created with \S+ version|version tag does not match|expecting library version|"
    r"[Ss]erialization.*version"
)


def check_engine(path: StrPath) -> EngineCheck:
    """Say whether an engine can run on this machine, and what stands against it.

    Its record is compared with the file and with what is installed; then the runtime is asked, in a
    process of its own. Without a GPU a runtime tells a foreign or damaged file and, for
    TensorRT-RTX, another version, but never that an engine is good: ``usable`` is then ``unknown``.

    Args:
        path: of the engine; without ``PATH.json`` beside it, its first bytes tell the backend.

    Raises:
        InputError: there is no such file, or it cannot be read, or the record is damaged.
    """
    engine = Path(os.path.abspath(os.fspath(path)))
    if not engine.is_file():
        raise InputError(
            "The engine does not exist." if not engine.exists() else "The engine is no file.",
            found=short(str(engine), 300),
            fix="check the path",
        )
    record = read_record(engine)
    problems, notes, installed, loaded_by = dict[str, str](), list[str](), "", ""
    if record is None:
        notes.append("no record stands beside it: it was built by another program, or moved")
    else:
        _compare(engine, record, problems)
        if record.plugin.library and not record.plugin.embedded:
            notes.append(f"it needs the plugin library {record.plugin.library} to be loaded")
    info = backend_of_file(engine) if record is None else BACKENDS[record.backend]
    if info is None:
        notes.append("its backend is not known, so no runtime was asked")
    elif not is_installed(info.module):
        problems[f"{info.label}, which it needs, is not installed here"] = info.pip
    else:
        installed, loaded_by = _ask(engine, info, record, problems)
        if not gpu_visible():
            notes.append("no GPU is visible: the engine was not loaded")
    usable: Usable = "no" if problems else "yes" if loaded_by else "unknown"
    return EngineCheck(
        path=engine,
        usable=usable,
        problems=tuple(problems),
        fixes=tuple(problems.values()),
        backend="" if info is None else info.name,
        built_with="" if record is None else record.version,
        installed=installed,
        notes=tuple(notes),
        record=record,
        loaded_by=loaded_by,
    )


def _compare(engine: Path, record: EngineRecord, problems: dict[str, str]) -> None:
    """Compare the record with the file and the machine."""
    if engine.stat().st_size != record.bytes or sha256_of(engine) != record.sha256:
        problem = f"it is not the engine that {engine.name}.json describes: its content differs"
        problems[problem] = f"{REBUILD}, with --force"
    here = f"{platform.system()} {platform.machine()}"
    if record.platform != here:
        problems[f"it was built for {record.platform}, this is {here}"] = REBUILD


def _ask(
    engine: Path, info: BackendInfo, record: EngineRecord | None, problems: dict[str, str]
) -> tuple[str, str]:
    """Ask the runtime; return its version, and what loaded the engine, "" if nothing did."""
    wants = record is not None and record.plugin.library and not record.plugin.embedded
    plugin = library_or_none() if wants else ""
    request = {"engine": str(engine), "plugin": plugin, "load": gpu_visible()}
    answer = run_backend("validate", request, info)
    if answer.result is None:
        problems[f"{info.label} fails when it is asked: {cause(answer)}"] = info.pip
        return "", ""
    result, here = answer.result, str(answer.result["version"])
    for bit, (problem, fix) in _REASONS.items():
        if result["reasons"] & bit:
            problems[problem] = fix
    if any(_OTHER_VERSION.search(text) for text in result["texts"]):
        problems[_REASONS[1][0]] = REBUILD
    compatible = record is not None and record.flags.get("version_compatible") is True
    if record is not None and record.version != here and not compatible:
        problems[f"it was built with {info.label} {record.version}, here is {here}"] = REBUILD
    if result["loaded"] is False and not problems:
        last = one_line(result["texts"][-1], 300) if result["texts"] else "no reason was given"
        problems[f"{info.label} does not load it: {last}"] = REBUILD
    device = next((name.split(", ")[0] for name in gpus()), "a GPU without a name")
    return here, f"{info.label} {here} on {device}" if result["loaded"] else ""
