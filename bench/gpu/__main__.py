"""The CUDA kernels on a GPU: built for the one at hand, then in the --steps

  correct   random problems of every kind, type and length with fresh inputs and poisoned outputs,
            each against the operator with every declared rounding
  sanitize  some of them under compute-sanitizer: memcheck, then racecheck
  speed     rows x n x type in CUDA graphs, L2 cold and warm, beside PyTorch's fused norm,
            torch.compile, Liger, quack and flashinfer where they are installed, and the unfused
            chain; --resume goes on where the run of before ended, with the same kernels

gpu_kernels.json, .md and .png are written as it goes on, so that what it found survives its end.
What is not installed, or would take more than --minutes, is left out, with the reason. Whole models
and engines are measured by ``rmsnorm-export bench`` on the GPU's provider.

NOT RUN YET: this was written without a GPU.

Exit code 1 when a result is wrong, the sanitizer finds something, or a step fails; 6 when nothing
can be done here. Speed decides nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from bench.gpu import kernels
from bench.gpu.part import Clock, Results, SkippedError, facts
from tests.tools.lib.command import RESULTS, parser, say

STEPS = ("correct", "sanitize", "speed")


def _arguments() -> argparse.Namespace:
    options = parser("bench.gpu", __doc__)
    add = options.add_argument
    add("--steps", nargs="+", choices=STEPS, default=STEPS, metavar="STEP")
    add("--minutes", type=float, default=10, help="for all steps together  [default: 10]")
    add("--quick", action="store_true", help="fewer problems, sizes and shapes")
    add("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"), help="of all inputs")
    add("--out", type=Path, default=RESULTS, help="folder of the results")
    add("--problems", type=int, help="of the step correct  [default: 3000]")
    add("--rounds", type=int, default=21, help="samples of each timing")
    add("--ops", nargs="+", default=["norm", "skip", "fp8", "rotary"])
    add("--dtypes", nargs="+", default=["bfloat16", "float16"])
    add("--resume", action="store_true", help="keep the times of --out, and measure the rest")
    return options.parse_args()


def _gpu_missing() -> str:
    """Why the GPU cannot be used, or ""."""
    try:
        import torch
    except ImportError as error:
        return f"no PyTorch: {error}"
    return "" if torch.cuda.is_available() else f"PyTorch {torch.__version__} sees none"


def main() -> int:
    arguments = _arguments()
    if problem := _gpu_missing():
        say(
            "error: there is no GPU to check on\n"
            f"found: {problem}\n"
            "fix: run this on a machine with an NVIDIA GPU, its driver and PyTorch for CUDA"
        )
        return 6
    start = time.monotonic()
    head = facts() | {"seed": arguments.seed}
    if arguments.resume:
        head["earlier"] = Results.read(arguments.out).data
    results = Results(arguments.out, head)
    data = results.data
    try:
        kernels.run(arguments, results, Clock(arguments.minutes * 60))
    except SkippedError as skipped:
        results.skip("kernels", skipped.reason, skipped.fix)
        results.end("skipped", skipped.reason)
        return 6
    data["seconds"] = round(time.monotonic() - start, 1)
    results.end("done", f"{len(data['failures'])} steps failed" if data["failures"] else "")
    for line in results.summary():
        print(line)
    return int(bool(data["wrong"] or data["failures"]))


if __name__ == "__main__":
    raise SystemExit(main())
