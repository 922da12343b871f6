"""The runtimes that can be installed, each in a folder of its own, and how that is done.

The folder is ``rmsnorm_export/runtimes`` in the user's cache folder (``XDG_CACHE_HOME``), shared by
all checkouts. What is installed there is on the module path of the child that runs it and of no
other process.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys

_NPM = ("node", "web", "webgpu")
"""Kinds whose packages are npm's."""

INSTALL = "python -m tests.tools.runtimes --install"
"""The command that enables the tests of these runtimes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Installable:
    """One version of a runtime.

    Attributes:
        runtime: as ``rmsnorm_export.runtime.consumers`` calls it.
        version: that is installed.
        kind: the function of ``child.py`` that runs it; ``node`` and ``web``: see ``measure.py``.
        packages: for pip or npm, with their versions; (): this environment has it.
    """

    runtime: str
    version: str
    kind: str
    packages: tuple[str, ...] = ()

    @property
    def folder(self) -> pathlib.Path:
        """Where it is, or would be."""
        name = "npm" if self.kind in _NPM else f"{self.runtime}-{self.version}"
        return home() / name

    @property
    def label(self) -> str:
        """As users write it."""
        return f"{self.runtime}@{self.version}"

    def missing(self) -> str:
        """What is not there to run it; "" when it can be run."""
        if self.packages and not (self.folder / _DONE.format(self.version)).is_file():
            return "not installed"
        programs = {"node": ("node",), "web": ("chromium",), "webgpu": ("chromium",)}.get(
            self.kind, ()
        )
        absent = [name for name in programs if shutil.which(name) is None]
        return f"the program {absent[0]} is missing" if absent else ""

    def install(self) -> str:
        """Install it unless it is there; what went wrong, or "".

        pip takes wheels alone, and neither it nor npm runs a package's own code.
        """
        if not self.packages or (self.folder / _DONE.format(self.version)).is_file():
            return ""
        self.folder.mkdir(parents=True, exist_ok=True)
        npm = self.kind in _NPM
        command = [sys.executable, "-m", "pip", "install", "-q", "--only-binary", ":all:"]
        command += ["--no-deps", "--upgrade", "--target", str(self.folder)]
        if npm:
            if shutil.which("npm") is None:
                return "npm is not installed"
            (self.folder / "package.json").touch()
            if not (self.folder / "package.json").stat().st_size:
                (self.folder / "package.json").write_text("{}\n", encoding="utf-8")
            command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(
            [*command, *self.packages],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return done.stderr.strip()[-300:]
        (self.folder / _DONE.format(self.version)).touch()
        return ""


_DONE = ".installed-{}"


def home() -> pathlib.Path:
    """The folder of the runtimes; it need not exist."""
    caches = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(caches) / "rmsnorm_export" / "runtimes"


def _here(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


_NUMPY = "numpy==1.26.4"
"""The last that the extension modules of ONNX Runtime before 1.19 can be loaded with."""

CATALOGUE = (
    *(
        Installable("onnxruntime", version, "onnxruntime", (f"onnxruntime=={version}", *others))
        for version, *others in (
            ("1.15.1", _NUMPY),
            ("1.16.3", _NUMPY),
            ("1.17.3", _NUMPY),
            ("1.18.1", _NUMPY),
            ("1.19.2",),
            ("1.20.1",),
            ("1.22.1",),
            ("1.23.2",),
            ("1.32.0",),
        )
    ),
    Installable("onnxruntime", _here("onnxruntime"), "onnxruntime"),
    Installable("onnxruntime-node", "1.30.0", "node", ("onnxruntime-node@1.30.0",)),
    Installable("onnxruntime-web", "1.30.0", "web", ("onnxruntime-web@1.30.0",)),
    Installable("openvino", "2026.4.1", "openvino", ("openvino==2026.4.1",)),
    Installable("opencv", "5.0.0", "opencv", ("opencv-python-headless==5.0.0.93",)),
    Installable("tract", "0.23.9", "tract", ("tract==0.23.9",)),
    Installable(
        "tvm", "0.27.0", "tvm", ("apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.15.post2")
    ),
    Installable(
        "iree", "3.13.0", "iree", ("iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0")
    ),
    Installable("onnx-reference", _here("onnx"), "reference"),
)
