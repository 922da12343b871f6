"""What a wheel has beside the Python files: the CPU kernels for ONNX Runtime, compiled here.

This is the build backend (pyproject.toml): that of setuptools, which runs this file as its script,
and for a wheel asks for CMake where there is a compiler to use it with. Without a compiler, or with
RMSNORM_EXPORT_PURE=1, the wheel is pure Python, and says so; an editable install compiles nothing.
"""

import datetime
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

from setuptools import build_meta, setup
from setuptools.build_meta import *  # noqa: F403
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_FILE = "librmsnorm_onnxruntime.so"
_PLACE = pathlib.Path("rmsnorm_export", "tensorrt", "plugin", "_built")
"""Where tensorrt/plugin/cache.py looks."""


def _compiler():
    """The C++ compiler that CMake takes; None where there is none, or no kernels are wanted."""
    names = os.environ.get("CXX", "c++").split()[:1]
    wanted = os.environ.get("RMSNORM_EXPORT_PURE", "0") == "0" and platform.system() == "Linux"
    return shutil.which(names[0]) if wanted and names else None


def get_requires_for_build_wheel(config_settings=None):
    tools = ["cmake>=3.24", "ninja"] if _compiler() and not shutil.which("cmake") else []
    return [*build_meta.get_requires_for_build_wheel(config_settings), *tools]


def _left_out(why):
    print(f"rmsnorm_export: no kernels for ONNX Runtime are built: {why}", file=sys.stderr)
    return False


def _compile(folder):
    """The library and its manifest in ``folder``; False, and a line that says so, without one."""
    if not (compiler := _compiler()):
        return _left_out("no C++ compiler")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    build = folder / "build"
    try:
        for command in (
            ["cmake", "-S", "plugins/onnxruntime", "-B", build, *generator],
            ["cmake", "--build", build, "--parallel"],
        ):
            subprocess.run(command, check=True)
        version = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        return _left_out(error)
    shutil.copy(build / _FILE, folder / _FILE)
    shutil.rmtree(build)
    manifest = {
        "schema": 1,
        "key": f"wheel-onnxruntime-{platform.machine()}",
        "tensorrt": "",
        "cuda": "",
        "compiler": version.stdout.splitlines()[0],
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "architectures": [platform.machine()],
        "libraries": {_FILE: hashlib.sha256((folder / _FILE).read_bytes()).hexdigest()},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return True


class _Wheel(bdist_wheel):
    """Of this machine where kernels are in it, for any Python."""

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            self.root_is_pure = not _compile(pathlib.Path(folder))
            _Modules.kernels = None if self.root_is_pure else folder
            super().run()

    def get_tag(self):
        tag = super().get_tag()
        return tag if self.root_is_pure else ("py3", "none", tag[2])


class _Modules(build_py):
    kernels = None

    def run(self):
        super().run()
        place = pathlib.Path(self.build_lib, _PLACE)
        if not self.editable_mode:
            shutil.rmtree(place, ignore_errors=True)  # of an earlier build
            if self.kernels:
                shutil.copytree(self.kernels, place)


if __name__ == "__main__":
    setup(cmdclass={"bdist_wheel": _Wheel, "build_py": _Modules})
