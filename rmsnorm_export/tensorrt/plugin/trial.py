"""Running ``probe`` in a process of its own: whatever happens to it is a finding."""

from __future__ import annotations

import re
from pathlib import Path

from rmsnorm_export.system.process import Child, Ended
from rmsnorm_export.tensorrt.plugin.result import (
    Check,
    Creator,
    RuntimeCheck,
    RuntimeStatus,
    Style,
)

RUNTIMES = ("tensorrt", "tensorrt_lean", "tensorrt_rtx")
"""Python packages that have TensorRT's plugin registry."""

DIRECT = "none"
"""The runtime's name for a library that is used without TensorRT."""

_OTHER_VERSION = re.compile(r"rmsnorm_export: .*built for \D{0,12}(\d+), found \D{0,12}(\d+)")
"""What a library of ours says when it meets another major version of TensorRT."""


def run_probe(
    runtime: str, style: Style, library: Path, *, timeout: float, only_creators: bool = False
) -> RuntimeCheck:
    """Load ``library`` in ``runtime`` and try it, in a new process.

    Args:
        runtime: one of ``RUNTIMES`` that is installed, or ``DIRECT``.
        style: how to load it.
        library: the file.
        timeout: seconds after which the process is ended.
        only_creators: list these and try nothing; with ``DIRECT``.
    """
    request = {
        "runtime": runtime,
        "style": style,
        "library": str(library),
        "only_creators": only_creators,
    }
    ended = Child("rmsnorm_export.tensorrt.plugin.probe:main", request, time_limit=timeout).end()
    checks = tuple(
        Check(event["name"], event["passed"], event["detail"]) for event in ended.all("check")
    )
    creators = tuple(
        Creator(event["name"], event["version"], event["namespace"], tuple(event["fields"]))
        for event in ended.all("creator")
    )
    status, detail = _outcome(ended, checks, timeout)
    version = (ended.first("version") or {}).get("version", "")
    return RuntimeCheck(runtime, version, library.name, style, status, detail, creators, checks)


def _outcome(ended: Ended, checks: tuple[Check, ...], timeout: float) -> tuple[RuntimeStatus, str]:
    """Status and the reason for it."""
    if mismatch := _OTHER_VERSION.search(ended.tail):
        return (
            "incompatible",
            f"the library was built for TensorRT {mismatch[1]}, the runtime is {mismatch[2]}",
        )
    last = ended.last_line() or "no message"
    if not ended.events and ended.code == 1:
        return "broken", f"its import failed: {last}"
    if ended.first("end") is None:
        begun = ended.all("begin")
        doing = begun[-1]["name"] if begun else "importing the runtime"
        if ended.code is None:
            return "timeout", f"no end after {timeout:g} s, at: {doing}"
        return "crashed", f"{ended.how()}, at: {doing}; last message: {last}"
    failed = [check for check in checks if not check.passed]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        if len(checks) == 1 and ended.last_line():  # it was not even loaded
            more = f"; last message: {last}"
        return "failed", f"{failed[0].name}: {failed[0].detail}{more}"
    return "passed", ""
