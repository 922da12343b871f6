"""What ``nvidia-smi`` says, by a program of that name that prints what the real one prints."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rmsnorm_export.system import machine
from rmsnorm_export.system.machine import Gpu, gpus
from rmsnorm_export.tensorrt.engine import backends
from rmsnorm_export.tensorrt.plugin import building

H200 = "NVIDIA H200, 9.0, 570.86.15, 143771 MiB"
B6000 = "NVIDIA RTX PRO 6000, Server Edition, 12.0, 570.86.15, 97887 MiB"


@pytest.mark.parametrize(
    ("body", "listed"),
    [
        (f"echo '{H200}\n{B6000}'",
         (Gpu("NVIDIA H200", "9.0", "570.86.15", "143771 MiB"),
          Gpu("NVIDIA RTX PRO 6000, Server Edition", "12.0", "570.86.15", "97887 MiB"))),
        ("echo 'NVIDIA GB10, 12.1, 580, [N/A]'", (Gpu("NVIDIA GB10", "12.1", "580", "[N/A]"),)),
        ("/usr/bin/printf 'N \\xff, 9.0, 580, 1'", (Gpu("N \ufffd", "9.0", "580", "1"),)),
        ("echo 'No devices were found'; exit 6", ()),
        ("echo 'Driver/library version mismatch, a, b, c'; exit 18", ()),
        ("exec /bin/sleep 20", ()),
        ("/bin/sleep 20; echo late", ()),  # a process of its own keeps the pipe open
    ],
)  # fmt: skip
def test_gpus(
    body: str, listed: tuple[Gpu, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine, "_TIMEOUT", 1)
    start = time.perf_counter()
    assert gpus() == listed
    assert time.perf_counter() - start < 10
    assert len(backends.gpus()) == len(listed)
    if len(listed) == 2:
        settings = building._cmake_settings(
            "onnxruntime-cuda", building._architectures(None), None, None
        )
        assert "-DCMAKE_CUDA_ARCHITECTURES=90;120" in settings
