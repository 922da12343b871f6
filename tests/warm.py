"""Programs in processes of their own that do not import again what another imported for them.

A process imports once and forks each program. What is about starting Python itself, or about a
closed stream, needs a process that is started.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

COMMAND = "import sys\nfrom rmsnorm_export.cli.main import main\nsys.exit(main())"
"""The command line."""

_IMPORTS = [
    "rmsnorm_export.cli.main",
    "rmsnorm_export.deploy.run",
    "rmsnorm_export.proof.prove",
    "rmsnorm_export.rewrite.optimize",
    "rmsnorm_export.torch.export.convert",
    "torch.onnx._internal.exporter._core",
    "onnxscript.function_libs.torch_lib.ops",
    "transformers.exporters.exporter_onnx",
    "transformers.models.llama.modeling_llama",
]
"""What programs import; not ONNX Runtime, which starts a thread as it is imported."""

_ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def server() -> multiprocessing.context.ForkServerContext:
    """Start the process that imports once; all of this process that fork have it, too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    # A pool of threads would not be there in a fork.
    with mock.patch.dict(os.environ, {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}):
        forkserver.ensure_running()
    return context


def _become(
    program: str, arguments: list[str], folder: Path, environment: dict[str, str], output: Path
) -> None:
    """Run a program in this process; ``output`` is a folder for its ``stdout`` and ``stderr``."""
    for number, path in enumerate((Path(os.devnull), output / "stdout", output / "stderr")):
        with path.open("a+") as stream:
            os.dup2(stream.fileno(), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


def start(
    program: str,
    *arguments: object,
    output: Path,
    folder: Path = _ROOT,
    environment: dict[str, str] | None = None,
) -> multiprocessing.process.BaseProcess:
    """Start a program, given as text, that writes to the files ``stdout`` and ``stderr``."""
    environment = dict(os.environ if environment is None else environment)
    words = [str(argument) for argument in arguments]
    settings = (program, words, folder, environment, output)
    process = server().Process(target=_become, args=settings, daemon=True)
    process.start()
    return process


def run(program: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return what it wrote; options as for ``start``."""
    with tempfile.TemporaryDirectory() as output:
        process = start(program, *arguments, output=Path(output), **options)
        process.join(300)
        out, err = ((Path(output) / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(arguments, process.exitcode, out, err)
