"""Running ``probe`` in a process of its own: whatever happens to it is a finding."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rmsnorm_export.tensorrt.plugin.result import Check, Creator, RuntimeCheck, Style

RUNTIMES = ("tensorrt", "tensorrt_lean", "tensorrt_rtx")
"""Python packages that have TensorRT's plugin registry."""

DIRECT = "none"
"""The runtime's name for a library that is used without TensorRT."""

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from rmsnorm_export.tensorrt.plugin.probe import main; main(sys.argv[2:])"
)

_OTHER_VERSION = re.compile(r"rmsnorm_export: .*built for \D{0,12}(\d+), found \D{0,12}(\d+)")
"""What a library of ours says when it meets another major version of TensorRT."""


def is_installed(runtime: str) -> bool:
    """Whether the package is there; it is not imported."""
    try:
        spec = find_spec(runtime)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def run_probe(
    runtime: str, style: Style, library: Path, *, timeout: float, only: Sequence[str] = ()
) -> RuntimeCheck:
    """Load ``library`` in ``runtime`` and try it, in a new process.

    Args:
        runtime: one of ``RUNTIMES`` that is installed, or ``DIRECT``.
        style: how to load it.
        library: the file.
        timeout: seconds after which the process is ended.
        only: ("creators",) lists these and tries nothing; with ``DIRECT``.
    """
    with tempfile.TemporaryDirectory(prefix="rmsnorm-plugin-") as folder:
        found = Path(folder) / "found"
        command = [sys.executable, "-I", "-c", _CODE, json.dumps(sys.path)]
        command += [runtime, style, str(library), str(found), *only]
        output, code = _run(command, timeout)
        text = found.read_text("utf-8", "replace") if found.exists() else ""
    events = _events(text)
    checks = tuple(
        Check(event["name"], event["passed"], event["detail"])
        for event in events
        if event["event"] == "check"
    )
    creators = tuple(
        Creator(event["name"], event["version"], event["namespace"], tuple(event["fields"]))
        for event in events
        if event["event"] == "creator"
    )
    status, detail = _verdict(events, checks, code, output, timeout)
    version = next((event["version"] for event in events if event["event"] == "version"), "")
    return RuntimeCheck(runtime, version, library.name, style, status, detail, creators, checks)


def _run(command: list[str], timeout: float) -> tuple[str, int | None]:
    """What the process printed, and its exit code; None when it had to be ended."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return said.decode("utf-8", "replace") if isinstance(said, bytes) else said, None
    return done.stdout, done.returncode


def _events(text: str) -> list[dict[str, Any]]:
    """The lines of the report; the last may be cut where the process died."""
    events = []
    for line in text.splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events


def _verdict(
    events: list[dict[str, Any]],
    checks: tuple[Check, ...],
    code: int | None,
    output: str,
    timeout: float,
) -> tuple[Any, str]:
    """Status and the reason for it."""
    if mismatch := _OTHER_VERSION.search(output):
        return (
            "incompatible",
            f"the library was built for TensorRT {mismatch[1]}, the runtime is {mismatch[2]}",
        )
    ended = any(event["event"] == "end" for event in events)
    doing = "importing the runtime"
    for event in events:
        if event["event"] == "begin":
            doing = event["name"]
    if not events and code == 1:
        last = (output.strip().splitlines() or ["no message"])[-1]
        return "broken", f"its import failed: {last}"
    if not ended and code is None:
        return "timeout", f"no end after {timeout:g} s, at: {doing}"
    if not ended:
        last = (output.strip().splitlines() or ["no message"])[-1]
        return "crashed", f"{_ended(code)}, at: {doing}; last message: {last}"
    failed = [check for check in checks if not check.passed]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        if len(checks) == 1 and output.strip():  # it was not even loaded
            more = f"; last message: {output.strip().splitlines()[-1]}"
        return "failed", f"{failed[0].name}: {failed[0].detail}{more}"
    return "passed", ""


def _ended(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        try:
            return f"the process ended on {signal.Signals(-code).name}"
        except ValueError:
            return f"the process ended on signal {-code}"
    return f"the process ended with exit code {code}"
