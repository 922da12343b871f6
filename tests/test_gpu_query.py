"""What ``nvidia-smi`` says, by a program of that name that prints what the real one prints."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rmsnorm_export import diagnosis
from rmsnorm_export.system import machine
from rmsnorm_export.system.machine import Gpu, gpus
from rmsnorm_export.tensorrt.engine import backends
from rmsnorm_export.tensorrt.plugin import building

Tool = Callable[[bytes], None]

H200 = "NVIDIA H200, 9.0, 570.86.15, 143771 MiB"
BLACKWELL = "NVIDIA RTX PRO 6000 Blackwell Server Edition, 12.0, 570.86.15, 97887 MiB"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535"
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
LOST = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Put a shell script on the PATH as ``nvidia-smi``, and nothing else."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(body: bytes) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_bytes(b"#!/bin/sh\n" + body)
        path.chmod(0o755)

    return make


def prints(text: str, code: int = 0) -> bytes:
    """Return a script that prints on stdout, where nvidia-smi writes its errors too."""
    return f"/bin/cat <<'END'\n{text}\nEND\nexit {code}\n".encode()


REFUSED = prints('Field "compute_cap" is not a valid field to query.\n', 2).decode()
OLD = f'case "$*" in *compute_cap*)\n{REFUSED};; esac\necho "Tesla V100, 470.256.02, 16160 MiB"'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (prints(f"{H200}\n{BLACKWELL}"), [Gpu(*H200.split(", ")), Gpu(*BLACKWELL.split(", "))]),
        (prints("No devices were found", 6), []),
        (prints("No devices were found"), []),  # older ones
        (prints(MISMATCH, 18), []),
        (prints(NO_DRIVER, 9), []),
        (prints(LOST, 15), []),
        (prints(""), []),
        (prints("GB10, 12.1, 580.95, [N/A]"), [Gpu("GB10", "12.1", "580.95", "[N/A]")]),
        (prints("A, a, [N/A], 1, 2"), [Gpu("A, a", "[N/A]", "1", "2")]),
        # Before 510 it refuses the whole query for one unknown field.
        (OLD.encode(), [Gpu("Tesla V100", "", "470.256.02", "16160 MiB")]),
        (b"echo 'A \xff, 9.0, 580, 1 MiB'", [Gpu("A \ufffd", "9.0", "580", "1 MiB")]),
    ],
)
def test_gpus_as_far_as_they_are_known(tool: Tool, body: bytes, expected: list[Gpu]) -> None:
    tool(body)
    assert [*gpus()] == expected


def test_its_callers(tool: Tool) -> None:
    tool(prints(f"{H200}\n{BLACKWELL}"))
    assert diagnosis._gpus()[0] == "NVIDIA H200, 570.86.15, 143771 MiB"
    assert backends.gpus()[0] == "NVIDIA H200, 9.0, 570.86.15"
    settings = building._cmake_settings("torch", None, None, None)
    assert "-DCMAKE_CUDA_ARCHITECTURES=90;120" in settings


def test_one_that_hangs(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs is a process of its own that keeps the pipe open."""
    tool(b"/bin/sleep 20; echo late")
    monkeypatch.setattr(machine, "TIMEOUT", 0.5)
    start = time.perf_counter()
    assert gpus() == ()
    assert time.perf_counter() - start < 10
