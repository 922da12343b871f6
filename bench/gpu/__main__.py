"""What has to be seen on a GPU, in steps of a process and a limit of time each:

  python -m bench.gpu kernels       the CUDA kernels: right, and how fast beside others  [default]
  python -m bench.gpu tune          variants of the row kernel, of which launch_table.h may choose
  python -m bench.gpu onnxruntime   ONNX Runtime's provider, and our nodes in it

Results are written as they come, gpu_kernels.json and .md, or gpu_tune, or gpu_onnxruntime. Nothing
is fetched from a network. The first two run what was compiled, here or on another machine, and lies
in build/gpu or where --built says:

  cmake -S plugins -B build/gpu -DRMSNORM_TESTS=ON -DCMAKE_CUDA_ARCHITECTURES=90
  cmake --build build/gpu --parallel --target rmsnorm_torch rmsnorm_gpu_driver rmsnorm_tune

Exit code 1 when a result is wrong or a sanitizer finds something; 6 when there is no GPU, nothing
that was compiled or no provider. Speed decides nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.steps import Report, run
from toolbox.command import RESULTS, ROOT, parser, say

CHECKS = ("kernels", "tune", "onnxruntime")


class UnavailableError(Exception):
    """What is missing on this machine, and what would help."""


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    options = parser("bench.gpu", __doc__)
    add = options.add_argument
    add("check", nargs="?", choices=CHECKS, default=CHECKS[0])
    add("steps", nargs="*", metavar="STEP", help="some of its steps; all of them  [default]")
    add("--minutes", type=float, default=12, help="for all of them  [default: 12]")
    add("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"), help="of all inputs")
    add("--built", type=Path, default=ROOT / "build" / "gpu", help="folder of what is compiled")
    add("--kernels", type=Path, help="library of plugin build --runtime onnxruntime --cuda")
    text = "of the sessions of ONNX Runtime; cpu to see that everything runs"
    add("--provider", choices=("cuda", "cpu"), default="cuda", help=f"{text}  [default: cuda]")
    add("--out", type=Path, default=RESULTS, help="folder of the results")
    return options.parse_args(words)


def check(options: argparse.Namespace, machine: Any = None) -> int:
    """Do the steps; return the exit code. A machine is given by tests.

    Raises:
        UnavailableError, ImportError, FileNotFoundError: something is missing here.
    """
    module = importlib.import_module(f"bench.gpu.{options.check}")
    if options.check == "onnxruntime":
        every, device = module.steps(options.provider, options.kernels), options.provider
    else:
        from bench.gpu.machine import Built, Machine

        machine = dataclasses.replace(machine or Machine(), logs=options.out, seed=options.seed)
        if problem := machine.missing():
            raise UnavailableError(problem)
        every, device = module.steps(machine, Built.of(options.built)), machine.name()
    if unknown := set(options.steps) - {step.name for step in every}:
        names = ", ".join(step.name for step in every)
        raise UnavailableError(f"there is no step {min(unknown)}: {names}")
    options.out.mkdir(parents=True, exist_ok=True)
    asked = [step for step in every if not options.steps or step.name in options.steps]
    report = Report(options.out, f"gpu_{options.check}", device, module.tables)
    run(asked, report, minutes=options.minutes)
    print(report.write())
    return int(bool(report.facts["wrong"]))


def main(words: Sequence[str] | None = None, machine: Any = None) -> int:
    options = _arguments(sys.argv[1:] if words is None else words)
    try:
        return check(options, machine)
    except (UnavailableError, ImportError, FileNotFoundError) as error:
        say(f"error: bench.gpu {options.check} cannot run here\nfound: {error}")
        say("fix: see --help, on a machine with an NVIDIA GPU, its driver and PyTorch for CUDA")
        return 6


if __name__ == "__main__":
    raise SystemExit(main())
