"""Programs in processes of their own that do not import again what another imported for them.

A process imports once and forks each program: with an exit code, signals, streams, a folder and
an environment of its own, as any other process. What is about starting Python itself, or about a
closed stream, needs a process that is started.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

COMMAND = "import sys\nfrom rmsnorm_export.cli.main import main\nsys.exit(main(sys.argv[1:]))"
"""The command line."""

USUAL = (
    "rmsnorm_export.cli.main",
    "rmsnorm_export.deploy.run",
    "rmsnorm_export.proof.prove",
    "rmsnorm_export.rewrite.optimize",
    "rich.progress",
)
"""What nearly every program imports; not ONNX Runtime, which starts a thread as it is imported."""

EXPORT = (
    *USUAL,
    "rmsnorm_export.deploy.source",
    "rmsnorm_export.torch.export.trace",
    "torch.onnx._internal.exporter._core",
    "onnxscript.function_libs.torch_lib.ops",
)
"""What an export imports."""

_ROOT = Path(__file__).resolve().parents[1]

_SERVER = """
import importlib, json, os, socket, sys

channel = socket.socket(fileno=int(sys.argv[1]))
while True:
    request, streams, _, _ = socket.recv_fds(channel, 1 << 20, 3)
    if not request:
        sys.exit()
    modules, program, arguments, folder, environment = json.loads(request)
    for name in modules:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has no thread but its own"
    child = os.fork()
    if child == 0:
        break
    for stream in streams:
        os.close(stream)
    channel.send(str(child).encode())
    channel.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
channel.close()
for number, stream in enumerate(streams):
    os.dup2(stream, number)
    os.close(stream)
sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
os.chdir(folder)
os.environ.clear()
os.environ.update(environment)
sys.argv = ["-c", *arguments]
exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
"""


class Process:
    """A program that runs, or ran."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.pid = int(channel.recv(100))
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """The exit code; a signal's number below zero. Raises TimeoutError."""
        if self.returncode is None:
            self._channel.settimeout(timeout)
            self.returncode = int(self._channel.recv(100))
            self._channel.settimeout(None)
        return self.returncode


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        # A pool of threads would not be there in a fork.
        env=os.environ | {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:  # it waits for a program that nobody ended
            process.kill()

    atexit.register(end)
    return ours


def start(
    program: str,
    *arguments: object,
    streams: Sequence[int],
    folder: Path = _ROOT,
    environment: dict[str, str] | None = None,
    imports: Sequence[str] = USUAL,
) -> Process:
    """A program as text, one at a time, with these three file descriptors as its streams."""
    request = [
        list(imports),
        program,
        list(map(str, arguments)),
        str(folder),
        dict(os.environ if environment is None else environment),
    ]
    channel = _server()
    socket.send_fds(channel, [json.dumps(request).encode()], list(streams))
    return Process(channel)


def run(
    program: str,
    *arguments: object,
    folder: Path = _ROOT,
    environment: dict[str, str] | None = None,
    stdin: int | None = None,
    imports: Sequence[str] = USUAL,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """A program from its start to its end, with what it wrote."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with open(os.devnull) as nothing:
            streams = (nothing.fileno() if stdin is None else stdin, out.fileno(), err.fileno())
            running = start(
                program,
                *arguments,
                streams=streams,
                folder=folder,
                environment=environment,
                imports=imports,
            )
        code = running.wait(timeout)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())
