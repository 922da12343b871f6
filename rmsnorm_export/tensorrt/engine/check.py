"""``check_engine``: whether an engine can run here, before something tries to run it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import one_line, short
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath, missing_fix
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.system.process import Ended
from rmsnorm_export.tensorrt.engine.backends import (
    BACKENDS,
    BackendInfo,
    backend_of_file,
    gpu_visible,
    gpus,
    run_backend,
)
from rmsnorm_export.tensorrt.engine.failure import cause
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
_NO_RECORD = "no record stands beside it: it was built by another program, or moved"

# The numbers come as characters of that code, and a 0 ends the message (seen on 1.7.1).
_OTHER_VERSION = re.compile(
    r"created with \S+ version (?P<built>[^,]*)(, but|\Z)|"
    r"(version tag does not match|expecting library version|[Ss]erialization.*version)",
    re.DOTALL,
)


def check_engine(path: StrPath) -> EngineCheck:
    """Say whether an engine can run on this machine, and what stands against it.

    Its record is compared with the file and with what is installed; then the runtime is asked, in a
    process of its own. Without a GPU a runtime tells a foreign or damaged file and, for
    TensorRT-RTX, another version, but never that an engine is good: ``usable`` is then ``unknown``.

    Args:
        path: of the engine; without ``PATH.json`` beside it, the backend is found by asking.

    Raises:
        InputError: there is no such file, or it cannot be read, or the record is damaged.
    """
    engine = Path(os.path.abspath(os.fspath(path)))
    if not engine.is_file():
        raise InputError(
            "The engine does not exist." if not engine.exists() else "The engine is no file.",
            found=short(str(engine), 300),
            fix=missing_fix(engine),
        )
    record = read_record(engine)
    findings = _Findings()
    if record is None:
        findings.notes.append(_NO_RECORD)
    else:
        _compare(engine, record, findings)
    info = backend_of_file(engine) if record is None else BACKENDS[record.backend]
    if info is None:
        findings.notes.append("its backend is not known, so no runtime was asked")
    elif not is_installed(info.module):
        findings.add(f"{info.label}, which it needs, is not installed here", info.pip)
    else:
        _ask(engine, info, record, findings)
    usable: Usable = "no" if findings.problems else "yes" if findings.loaded_by else "unknown"
    return EngineCheck(
        path=engine,
        usable=usable,
        problems=tuple(findings.problems),
        fixes=tuple(findings.problems.values()),
        backend="" if info is None else info.name,
        built_with=findings.built_with or ("" if record is None else record.version),
        installed=findings.installed,
        notes=tuple(findings.notes),
        record=record,
        loaded_by=findings.loaded_by,
    )


class _Findings:
    """What was found so far: problems with their fixes, and the rest of an ``EngineCheck``."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self.notes: list[str] = []
        self.installed = self.built_with = self.loaded_by = ""

    def add(self, problem: str, fix: str) -> None:
        self.problems.setdefault(problem, fix)


def _compare(engine: Path, record: EngineRecord, findings: _Findings) -> None:
    """The record against the file and the machine."""
    if engine.stat().st_size != record.bytes or sha256_of(engine) != record.sha256:
        findings.add(
            f"it is not the engine that {engine.name}.json describes: its content differs",
            f"{REBUILD}, with --force",
        )
    here = f"{platform.system()} {platform.machine()}"
    if record.platform != here:
        findings.add(f"it was built for {record.platform}, this is {here}", REBUILD)
    now = gpus()
    portable = record.flags.get("hardware_compatible") or record.backend == "tensorrt-rtx"
    if now and record.gpus and not portable:
        built, have = (  # compute capabilities of ``name, compute capability, driver``
            {part for name in names for part in name.split(", ")[1:2]}
            for names in (record.gpus, now)
        )
        if not built & have:
            findings.add(
                f"it was built on {record.gpus[0]}, here is {now[0]}",
                f"{REBUILD}, or once with --hardware-compatible",
            )
    if record.plugin.library and not record.plugin.embedded:
        findings.notes.append(f"it needs the plugin library {record.plugin.library} to be loaded")


def _ask(engine: Path, info: BackendInfo, record: EngineRecord | None, findings: _Findings) -> None:
    """The runtime's own opinion."""
    gpu = gpu_visible()
    plugin = ""
    if record is not None and record.plugin.library and not record.plugin.embedded:
        from rmsnorm_export.tensorrt.engine.plugins import library_or_none

        plugin = library_or_none()
    ended = run_backend(
        {"command": "validate", "engine": str(engine), "plugin": plugin, "load": gpu}, info
    )
    findings.installed = str((ended.first("version") or {}).get("version", ""))
    answer = ended.first("validity")
    if answer is None:
        findings.add(f"{info.label} fails when it is asked: {_failure_words(ended)}", info.pip)
        return
    for bit, (problem, fix) in _REASONS.items():
        if answer["reasons"] & bit:
            findings.add(problem, fix)
    for text in answer["texts"]:
        if other := _OTHER_VERSION.search(text):
            findings.built_with = _decoded_version(other["built"] or "") or findings.built_with
            findings.add(_REASONS[1][0], REBUILD)
    here = findings.installed
    compatible = record is not None and record.flags.get("version_compatible") is True
    if record is not None and here and record.version != here and not compatible:
        problem = f"it was built with {info.label} {record.version}, here is {here}"
        findings.add(problem, REBUILD)
    if answer["loaded"] is True:
        device = next((name.split(", ")[0] for name in gpus()), "a GPU without a name")
        findings.loaded_by = f"{info.label} {here} on {device}"
    if gpu and answer["loaded"] is False and not findings.problems:
        last = one_line(answer["texts"][-1], 300) if answer["texts"] else "no reason was given"
        findings.add(f"{info.label} does not load it: {last}", REBUILD)
    if not gpu:
        findings.notes.append("no GPU is visible: the engine was not loaded")


def _decoded_version(text: str) -> str:
    """``1.6.0`` for the characters of code 1, 6 and 0."""
    parts = text.split(".") if "." in text else []
    return ".".join(p if p.isdigit() else str(ord(p)) if len(p) == 1 else "0" for p in parts)


def _failure_words(ended: Ended) -> str:
    error = ended.first("error")
    return one_line(str(error.get("text", "")), 300) if error else cause(ended)
