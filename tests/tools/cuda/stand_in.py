"""ONNX Runtime's CUDA provider without a GPU: the published library on a stand-in for CUDA.

What the provider decides on the host is real: which nodes it takes, what is copied between devices,
which kernels are launched, when it waits, what a CUDA graph records. Numbers are not computed.
"""

from __future__ import annotations

import pathlib
import re
import subprocess

SOURCE = pathlib.Path(__file__).with_name("runtime.c")
_LIBRARIES = r"NEEDED\)\s+Shared library: \[(lib(?:cu|nv)[^\]]*)\]"
_FUNCTIONS = re.compile(r"_*(cuda|cublas|curand|cudnn|cufft|cu[A-Z]|nvrtc|nvml)")


def make(libraries: list[pathlib.Path], folder: pathlib.Path) -> None:
    """Write, under the names of all CUDA libraries that ``libraries`` need, one that stands in.

    Args:
        libraries: that are linked with CUDA, e.g. ``libonnxruntime_providers_cuda.so``.
        folder: for ``LD_LIBRARY_PATH``.
    """
    needed, functions = {"libcuda.so.1"}, set[str]()
    for library in libraries:
        needed |= set(re.findall(_LIBRARIES, _run("readelf", "-d", "-W", str(library))))
        symbols = _run("nm", "-D", "--undefined-only", str(library)).split()
        functions |= {name.partition("@")[0] for name in symbols if _FUNCTIONS.match(name)}
    written = set(re.findall(r"\b(\w+)[()]", SOURCE.read_text()))
    rest = "".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(functions - written))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rest.c").write_text(rest)
    whole = folder / "stand_in.so"
    sources = (str(SOURCE), str(folder / "rest.c"))
    _run("gcc", "-shared", "-fPIC", "-O1", "-w", *sources, "-o", str(whole))
    for name in needed:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(whole.name)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
