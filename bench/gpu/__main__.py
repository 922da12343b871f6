"""The CUDA kernels on a GPU: built for the one at hand, then in the steps

  first     what may fail early, each part in a process with a time limit: the device, a problem of
            each kernel and cluster, sanitizers, capture, a chain of launches, a few times
  correct   random problems of every kind, type and length with fresh inputs and poisoned outputs,
            each against the operator with every declared rounding
  sanitize  some of them under compute-sanitizer: memcheck, racecheck and synccheck
  speed     time and memory rate, beside PyTorch's fused norm, torch.compile, Liger, quack and
            flashinfer where they are installed, and the unfused chain

``python -m bench.gpu onnxruntime`` measures ONNX Runtime's provider instead (see its --help).

gpu_kernels.json and .md are written after each step, logs of other programs beside them. Nothing
is fetched from a network: a machine without one needs PyTorch, Triton, ml_dtypes and onnx_ir, and a
folder for --built.

Exit code 1 when a result is wrong or the sanitizer finds something; 6 when there is no GPU, no
CMake or no nvcc. Speed decides nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from toolbox.command import RESULTS, ROOT, parser, say

try:
    from bench.gpu import correct, first, runtime, sanitize, speed
    from bench.gpu.machine import Built, Machine
    from bench.gpu.report import Report
except ImportError as error:
    say(f"error: the kernels cannot run here\nfound: {error}")
    say("fix: pip install torch ml_dtypes onnx_ir")
    raise SystemExit(6) from error

STEPS = ("first", "correct", "sanitize", "speed")


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    options = parser("bench.gpu", __doc__)
    add = options.add_argument
    add("steps", nargs="*", metavar="STEP", help="some of these; all of them  [default]")
    add("--minutes", type=float, default=10, help="for each step  [default: 10]")
    add("--problems", type=int, default=3000, help="of the step correct  [default: 3000]")
    add("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"), help="of all inputs")
    peers = ", ".join(speed.PEERS)
    text = f"others that are timed: all, none, or names with a comma between ({peers})"
    add("--peers", default="all", help=f"{text}  [default: all]")
    text = (
        "folder with librmsnorm_torch.so and rmsnorm_gpu_driver, built before; nothing is compiled"
    )
    add("--built", type=Path, help=text)
    add("--out", type=Path, default=RESULTS, help="folder of the results")
    add(
        "--resume",
        action="store_true",
        help="leave out the steps and sizes of the results in --out",
    )
    arguments = options.parse_args(words)
    if unknown := set(arguments.steps) - set(STEPS):
        options.error(f"there is no step {min(unknown)}: {', '.join(STEPS)}")
    names = {"all": [*speed.PEERS], "none": []}.get(arguments.peers, arguments.peers.split(","))
    if unknown := set(names) - speed.PEERS.keys():
        options.error(f"there is no peer {min(unknown)!r}: {peers}")
    arguments.peers = names
    return arguments


def build(folder: Path) -> None:
    """Compile for this GPU.

    Raises:
        FileNotFoundError, CalledProcessError: there is no CMake, or it failed.
    """
    if shutil.which("cmake") is None:
        raise FileNotFoundError(
            "no cmake on PATH: pip install cmake, or name a folder with --built"
        )
    options = ["-DCMAKE_CUDA_ARCHITECTURES=native", "-DRMSNORM_TESTS=ON"]
    targets = ["--target", "rmsnorm_torch", "rmsnorm_gpu_driver"]
    subprocess.run(["cmake", "-S", ROOT / "plugins", "-B", folder, *options], check=True)
    subprocess.run(["cmake", "--build", folder, "--parallel", *targets], check=True)


def _step(
    step: str, machine: Machine, built: Built, report: Report, options: argparse.Namespace
) -> None:
    seed, end = options.seed, time.monotonic() + options.minutes * 60
    if step == "first":
        first.run(machine, built, report, minutes=options.minutes)
    elif step == "correct":
        problems = correct.drawn(seed, options.problems)
        report.add(step, correct.run([built.driver], problems, tell=say, end=end))
    elif step == "sanitize":
        for tool in sanitize.TOOLS:
            problems = correct.drawn(seed, machine.sanitized, few=True)
            judged = sanitize.run(machine, tool, built.driver, problems, tell=say, end=end)
            report.add(tool, judged)
    else:
        report.facts["copy_bytes_per_second"] = machine.copy_rate()
        what = {"works": speed.grid(machine.largest), "peers": options.peers, "seed": seed}
        before = report.facts["rows"]
        report.facts["rows"] = speed.run(
            built.library, machine, **what, before=before, tell=say, end=end
        )


def check(options: argparse.Namespace, machine: Machine) -> int:
    """Do the steps on a machine; return the exit code."""
    options.out.mkdir(parents=True, exist_ok=True)
    machine = dataclasses.replace(machine, logs=options.out)
    with contextlib.ExitStack() as stack:
        try:
            folder = options.built
            if folder is None:
                scratch = tempfile.TemporaryDirectory(prefix="rmsnorm_gpu_")
                folder = Path(stack.enter_context(scratch))
                build(folder)
            built = Built.of(folder)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            say(f"error: the kernels are not built\nfound: {error}")
            return 6
        path, resume = options.out / "gpu_kernels.json", options.resume
        report = Report.begun(path, device=machine.name(), seed=options.seed, resume=resume)
        for step in options.steps or STEPS:
            if step not in report.facts["steps"] or step == "speed":
                _step(step, machine, built, report, options)
                say(report.done(step))
    print(report.outcome())
    return int(bool(report.facts["wrong"]))


def main(words: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    asked = sys.argv[1:] if words is None else words
    if asked[:1] == ["onnxruntime"]:
        return runtime.main(asked[1:])
    options, machine = _arguments(words), machine or Machine()
    if problem := machine.missing():
        say(f"error: the kernels cannot run here\nfound: {problem}")
        say("fix: a machine with an NVIDIA GPU, its driver, PyTorch for CUDA, nvcc and CMake")
        return 6
    return check(options, machine)


if __name__ == "__main__":
    raise SystemExit(main())
