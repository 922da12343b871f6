"""The runtimes that can be installed, each in a folder of its own, and how that is done.

The folder is ``rmsnorm_export/runtimes`` in the user's cache folder (``XDG_CACHE_HOME``), shared by
all checkouts. What is installed there is on the module path of the child that runs it and of no
other process.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import pathlib
import subprocess
import sys

from toolbox.corpus import cache

INSTALL = "scripts/test --thorough"
"""The command that installs these runtimes, and tests them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Installable:
    """One version of a runtime.

    Attributes:
        runtime: as ``rmsnorm_export.runtime.consumers`` calls it; a function of ``child.py`` that
            runs it has that name, underscores for hyphens.
        version: that is installed.
        packages: for pip, with their versions; (): this environment has it.
    """

    runtime: str
    version: str
    packages: tuple[str, ...] = ()

    @property
    def folder(self) -> pathlib.Path:
        """Where it is, or would be."""
        return cache.root().parent / "runtimes" / f"{self.runtime}-{self.version}"

    @property
    def label(self) -> str:
        """As users write it."""
        return f"{self.runtime}@{self.version}"

    def install(self) -> str:
        """Install it unless it is there; what went wrong, or "". pip takes wheels alone."""
        done = self.folder / f".installed-{self.version}"
        if not self.packages or done.is_file():
            return ""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "install", "-q", "--only-binary", ":all:"]
        command += ["--no-deps", "--upgrade", "--target", str(self.folder), *self.packages]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            return process.stderr.strip()[-300:]
        done.touch()
        return ""


def _own(runtime: str, package: str) -> Installable:
    return Installable(runtime, importlib.metadata.version(package))


_NUMPY_1 = "numpy==1.26.4"
"""The last that the extension modules of ONNX Runtime before 1.19 can be loaded with."""

_ONNXRUNTIMES = {
    **dict.fromkeys(("1.15.1", "1.16.3", "1.17.3", "1.18.1"), (_NUMPY_1,)),
    **dict.fromkeys(("1.19.2", "1.20.0", "1.20.1", "1.22.1", "1.23.2", "1.32.0"), ()),
}
CATALOGUE = (
    *(
        Installable("onnxruntime", version, (f"onnxruntime=={version}", *others))
        for version, others in _ONNXRUNTIMES.items()
    ),
    _own("onnxruntime", "onnxruntime"),
    Installable("openvino", "2024.6.0", ("openvino==2024.6.0", "openvino-telemetry==2025.2.0")),
    Installable("openvino", "2025.4.1", ("openvino==2025.4.1", "openvino-telemetry==2025.2.0")),
    Installable("openvino", "2026.4.1", ("openvino==2026.4.1",)),
    Installable("opencv", "5.0.0", ("opencv-python-headless==5.0.0.93",)),
    Installable("tract", "0.23.9", ("tract==0.23.9",)),
    Installable("tvm", "0.27.0", ("apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.15.post2")),
    Installable("iree", "3.13.0", ("iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0")),
    _own("onnx-reference", "onnx"),
)
