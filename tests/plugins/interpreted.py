"""A machine for bench.gpu without a GPU: its kernels are interpreted, its clock is made up."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

from bench.gpu.machine import Built, Machine, Replay
from tests.plugins import kernel_build

_STAND_IN = """#!{python}
import itertools, subprocess, sys
options, command = sys.argv[1:-1], sys.argv[-1:]
value = dict(itertools.pairwise(options))
log = open(value["--log-file"], "w") if "--log-file" in value else sys.stdout
print("========= COMPUTE-SANITIZER", file=log, flush=True)
code = subprocess.run(command).returncode
found = {found!r} in options
print("========= Error: found", file=log) if found else None
print(f"========= ERROR SUMMARY: {{int(found)}} errors", file=log, flush=True)
sys.exit(int(value["--error-exitcode"]) if found else code)
"""
"""Prints as compute-sanitizer does: what it says goes to stdout where it has no file for it."""


@dataclasses.dataclass(frozen=True)
class Interpreted(Machine):
    device: str = "cpu"
    largest: int = 1 << 13
    checked: int = 1 << 20
    chain: int = 10
    sanitized: int = 3
    problems: int = 10
    peers: tuple[str, ...] = ("torch fused",)
    lengths: tuple[int, ...] = (128, 4096, 16384)
    variants: int = 12
    tools: Path = Path()
    """The folder of the stand-ins."""

    def missing(self) -> str:
        return ""

    def name(self) -> str:
        return "kernels interpreted on a CPU, with a clock that is made up"

    def program(self, name: str) -> str | None:
        return str(self.tools / name)

    def stream(self) -> None:
        return None

    def other_stream(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def captured(self, run: Replay) -> Replay:
        run()
        return run

    def wait(self) -> None:
        pass

    def seconds(self, run: Replay, **how: Any) -> list[float]:  # noqa: ARG002
        run()
        return [1e-5, 2e-5, 4e-5]


def machine(folder: Path, *, found: str = "nothing") -> Interpreted:
    """Return one with stand-ins in a folder; the tool that ``found`` names finds something."""
    for name in ("compute-sanitizer", "ncu"):
        program = folder / name
        program.write_text(_STAND_IN.format(python=sys.executable, found=found))
        program.chmod(0o755)
    return Interpreted(tools=folder)


def built(folder: Path) -> Built:
    """Put links to the interpreted programs into a folder, under the names of those for a GPU."""
    for path in (kernel_build.library(), kernel_build.driver(), kernel_build.tune_library()):
        name = "rmsnorm_gpu_driver" if path.name == "driver" else path.name
        (folder / name).symlink_to(path)
    return Built.of(folder)
