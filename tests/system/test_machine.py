"""What ``nvidia-smi`` says, by a program of that name that prints what the real one prints."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

import rmsnorm_export as rx
from rmsnorm_export import diagnosis
from rmsnorm_export.deploy.settings import TABLES
from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.system import machine, packages
from rmsnorm_export.system.machine import Gpu, gpus
from rmsnorm_export.system.packages import pip_install, require_package
from rmsnorm_export.system.provenance import FileState, piped_in, provenance
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


# What pip is told, and what reports say of their making.

REQUIRES = [
    "onnx>=1.18", 'tomli>=2; python_version < "3.11"', "onnxruntime>=1.22; extra == 'ort'",
    'torch>=2.9; extra == "torch"', 'onnxscript>=0.5; extra == "torch"',
    'rmsnorm-export[ort,torch]; extra == "decoder"', 'transformers<6; extra == "decoder"',
    'tensorrt_rtx>=1.7; extra == "tensorrt-rtx"', 'onnxscript>=0.7; extra == "bench"',
]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "command"),
    [
        (["[torch]"], "'torch>=2.9' 'onnxscript>=0.5'"),
        (["[tensorrt-rtx]", "onnx"], "'tensorrt_rtx>=1.7' 'onnx>=1.18'"),
        (["onnxscript", "safetensors"], "'onnxscript>=0.5' safetensors"),
        (["[decoder]"], "'onnxruntime>=1.22' 'torch>=2.9' 'onnxscript>=0.5' 'transformers<6'"),
        (["[none]"], "'rmsnorm-export[none]'"),
        (["tensorrt-rtx"], "'tensorrt_rtx>=1.7'"),
    ],
)
def test_packages_are_named_with_the_versions_that_are_declared(
    names: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages.metadata, "requires", lambda _: REQUIRES)
    assert pip_install(*names) == f"pip install {command}"


def test_a_missing_package_is_an_error_with_the_command_that_brings_it() -> None:
    require_package("json", "This", "json")
    with pytest.raises(BackendMissingError, match="no package no_such") as caught:
        require_package("no_such", "This", "no-such")
    assert caught.value.fix == "pip install no-such"


def test_what_the_core_needs_is_what_is_declared() -> None:
    needed = packages.required_packages()
    assert {"click", "filelock", "ml_dtypes", "msgspec", "numpy", "onnx", "onnx_ir"} <= {*needed}
    assert not {"onnxruntime", "torch", "transformers", *diagnosis._OPTIONAL} & {*needed}
    assert all(map(packages.is_installed, needed))


def test_every_extra_that_is_named_in_the_sources_exists() -> None:
    package, tables = Path(packages.__file__).parents[1], {f"[{name}]" for name in TABLES}
    texts = [path.read_text("utf-8") for path in package.rglob("*.py")]
    named = {one for text in texts for one in re.findall(r"\"(\[[a-z][a-z-]*\])\"", text)} - tables
    declared = metadata.metadata("rmsnorm-export").get_all("Provides-Extra") or []
    assert named
    assert named <= {f"[{extra}]" for extra in declared}


def test_a_report_names_everything_that_an_audit_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    (tmp_path / "out").write_bytes(b"two")
    record = provenance([piped_in(b"two")], [tmp_path / "out", tmp_path / "gone"], "a command")
    assert record.date == "1970-01-02T00:00:00+00:00"
    assert record.versions["rmsnorm-export"] == rx.__version__
    assert {"onnx", "onnx-ir", "numpy", "python"} <= set(record.versions)
    state = FileState("-", 3, hashlib.sha256(b"two").hexdigest())
    assert (*record.inputs, *record.outputs) == (state, replace(state, path=f"{tmp_path}/out"))
