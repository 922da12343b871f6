"""What ``nvidia-smi`` says, by a program of that name that prints what the real one prints."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rmsnorm_export import diagnosis as _doctor
from rmsnorm_export.system import machine
from rmsnorm_export.system.machine import Gpu, gpus
from rmsnorm_export.tensorrt.engine import backends
from rmsnorm_export.tensorrt.plugin import building

TWO = """\
NVIDIA H200, 9.0, 570.86.15, 143771 MiB
NVIDIA RTX PRO 6000 Blackwell Server Edition, 12.0, 570.86.15, 97887 MiB
"""
H200 = Gpu("NVIDIA H200", "9.0", "570.86.15", "143771 MiB")

MISMATCH = (
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183"
)
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running."
)
LOST = (
    "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to "
    "recover this GPU"
)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a shell script on the PATH as ``nvidia-smi``, and nothing else."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(body: str) -> Path:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    return make


def prints(text: str, code: int = 0) -> str:
    """A script that prints ``text`` on stdout, where nvidia-smi writes its errors too."""
    return f"/bin/cat <<'END'\n{text}\nEND\nexit {code}"


def test_gpus_in_their_order(tool) -> None:
    tool(prints(TWO))
    first, second = gpus()
    assert first == H200
    assert (second.capability, second.memory) == ("12.0", "97887 MiB")


def test_its_callers_say_it_as_before(tool) -> None:
    tool(prints(TWO))
    assert _doctor._gpus()[0] == "NVIDIA H200, 570.86.15, 143771 MiB"
    assert backends.gpus()[0] == "NVIDIA H200, 9.0, 570.86.15"
    settings = building._cmake_settings("torch", None, None, None)
    assert "-DCMAKE_CUDA_ARCHITECTURES=90;120" in settings


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("No devices were found", 6),
        ("No devices were found", 0),  # older ones
        (MISMATCH, 18),
        (NO_DRIVER, 9),
        (LOST, 15),
        ("", 0),
        ("", 255),
    ],
)
def test_no_gpu_or_no_working_driver(tool, text: str, code: int) -> None:
    tool(prints(text, code))
    assert gpus() == ()
    assert (_doctor._gpus(), backends.gpus()) == ((), ())


def test_values_that_it_does_not_know(tool) -> None:
    tool(prints("NVIDIA GB10, 12.1, 580.95.05, [N/A]\nGraphics, a, [N/A], [N/A], [N/A]"))
    assert gpus() == (
        Gpu("NVIDIA GB10", "12.1", "580.95.05", "[N/A]"),
        Gpu("Graphics, a", "[N/A]", "[N/A]", "[N/A]"),
    )
    settings = building._cmake_settings("torch", None, None, None)
    assert "-DCMAKE_CUDA_ARCHITECTURES=121" in settings


def test_one_that_knows_no_capability(tool) -> None:
    """Before 510 it refuses the whole query for one unknown field."""
    refusal = prints('Field "compute_cap" is not a valid field to query.\n', 2)
    answer = prints("Tesla V100-SXM2-16GB, 470.256.02, 16160 MiB")
    tool(f'case "$*" in *compute_cap*)\n{refusal};; esac\n{answer}')
    assert gpus() == (Gpu("Tesla V100-SXM2-16GB", "", "470.256.02", "16160 MiB"),)
    assert _doctor._gpus() == ("Tesla V100-SXM2-16GB, 470.256.02, 16160 MiB",)
    assert backends.gpus() == ()


@pytest.mark.parametrize("sleep", ["exec /bin/sleep 20", "/bin/sleep 20; echo late"])
def test_one_that_hangs(tool, monkeypatch: pytest.MonkeyPatch, sleep: str) -> None:
    """Also when what hangs is a process of its own that keeps the pipe open."""
    tool(sleep)
    monkeypatch.setattr(machine, "TIMEOUT", 0.5)
    start = time.perf_counter()
    assert gpus() == ()
    assert 0.4 < time.perf_counter() - start < 10


def test_bytes_that_are_no_text(tool) -> None:
    path = tool("")
    path.write_bytes(b"#!/bin/sh\necho 'NVIDIA \xff, 9.0, 580.65.06, 1 MiB'\n")
    (found,) = gpus()
    assert found.capability == "9.0"
    assert os.fsencode(found.name)
