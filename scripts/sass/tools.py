"""nvcc and cuobjdump: where they are, and what they make of the kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from scripts.gpu import build
from scripts.sass.count import Counts, count
from scripts.sass.launches import Recorder, Work
from scripts.sass.parse import kernels, usages

_ARCHITECTURE = "90"  # whose instructions meanings.py knows
_SASS, _USAGE = "kernels.sass", "kernels.usage"


class ToolMissingError(Exception):
    """What is not there, and how to get it."""


def tool(name: str, package: str) -> str:
    """The path of a program of the CUDA toolkit.

    Raises:
        ToolMissingError: it is neither in CUDA_HOME, on PATH nor in the wheel.
    """
    home = os.environ.get("CUDA_HOME")
    wheel = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin"
    folders = [str(Path(home) / "bin")] if home else []
    found = shutil.which(name, path=os.pathsep.join([*folders, os.environ["PATH"], str(wheel)]))
    if found is None:
        raise ToolMissingError(f"There is no {name} in CUDA_HOME or PATH: pip install {package}.")
    return found


def disassembler() -> tuple[str, dict[str, str]]:
    """cuobjdump, and the environment in which it finds nvdisasm.

    Raises:
        ToolMissingError: one of them is not there.
    """
    cuobjdump = tool("cuobjdump", "nvidia-cuda-cuobjdump")
    nvdisasm = tool("nvdisasm", "nvidia-cuda-nvdisasm")
    return cuobjdump, {**os.environ, "NVDISASM_PATH": str(Path(nvdisasm).parent)}


def built(folder: Path, front: Path | None = None) -> None:
    """Compile the kernels into ``folder`` and write down their machine code.

    ``front``: a file in front of their units, e.g. ``build.COUNTED``.

    Raises:
        ToolMissingError: nvcc, cuobjdump or nvdisasm is not there.
    """
    nvcc = tool("nvcc", "nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl")
    cuobjdump, environment = disassembler()
    library = build.recorded(nvcc, _ARCHITECTURE, folder, front)
    for option, name in (("-sass", _SASS), ("-res-usage", _USAGE)):
        with (folder / name).open("w") as file:
            subprocess.run(
                [cuobjdump, option, str(library)], check=True, stdout=file, env=environment
            )


def counted(works: Iterable[Work], folder: Path) -> dict[Work, Counts]:
    """The counts of the works, from a folder that ``built`` has filled."""
    taken = usages((folder / _USAGE).read_text())
    with (folder / _SASS).open() as lines:
        codes = kernels(lines)
    recorder = Recorder(folder / build.RECORDED, taken)
    return {work: count(work, recorder, codes, taken) for work in works}
