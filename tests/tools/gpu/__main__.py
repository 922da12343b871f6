"""Everything that needs a GPU, in three parts: kernels, whole models, engines.

  kernels  the CUDA kernels, built for the GPU at hand, in the --steps
             correct   random problems of every kind, type and length with fresh inputs and
                       poisoned outputs, each against the operator with every declared rounding
             sanitize  some of them under compute-sanitizer: memcheck, then racecheck
             speed     rows x n x type in CUDA graphs, L2 cold and warm, beside PyTorch's fused
                       norm, torch.compile, Liger, quack and flashinfer where they are
                       installed, and the unfused chain; --resume goes on where the run of
                       before ended, with the same kernels
  models   a LLaMA of 1.5e9 float16 weights in ONNX Runtime on CUDA: the exported file against
           each target, prefill and decode with the past as inputs and outputs; portable once
           more with our kernels, of --kernels LIBRARY or the newest build of rmsnorm-export plugin
           build --runtime onnxruntime --cuda, which first has to compute norms of every kind
  engines  the same files as TensorRT-RTX engines, and as TensorRT engines with and without the
           plugin where TensorRT is installed, against ONNX Runtime on CUDA

Outputs are compared before anything is timed. Each part is a process of its own and writes
gpu_PART.json, .md and .png as it goes on, so that what it found survives its end and that of the
others. What is not installed, or would take more than --minutes, is left out, and the reason is in
the results.

NOT RUN YET: this was written without a GPU. With --device cpu the parts models and engines do the
same on ONNX Runtime's CPU provider, and build the TensorRT-RTX engines without running them; that
much is tested. The kernels and the runs of engines are not.

Exit code 1 when a result is wrong, the sanitizer finds something, or a part fails; 6 when nothing
can be done here. Speed decides nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_export.system.packages import pip_install
from tests.tools.gpu.part import Clock, Results, SkippedError, facts
from tests.tools.lib.command import RESULTS, module_command, module_environment, parser, say

PARTS = {"kernels": 5, "models": 3, "engines": 3}
"""Part -> its share of the time; what one leaves, the next ones have."""

STEPS = ("correct", "sanitize", "speed")
_SOFT = 0.9
"""Of its time, after which a part begins nothing new; at the end of it the part is ended."""


def _arguments(words: list[str]) -> argparse.Namespace:
    options = parser("tests.tools.gpu", __doc__)
    add = options.add_argument
    add("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="[default: cuda]")
    add("--minutes", type=float, default=10, help="for all parts together  [default: 10]")
    add("--quick", action="store_true", help="fewer problems, sizes and shapes")
    add("--seed", type=int, help="of all inputs  [default: a new one]")
    add("--out", type=Path, default=RESULTS, help="folder of the results")
    add("--work", type=Path, help="folder of models and engines, which stay there")
    kernels = options.add_argument_group("kernels").add_argument
    kernels("--steps", nargs="+", choices=STEPS, default=STEPS, metavar="STEP")
    kernels("--problems", type=int, help="of the step correct  [default: 3000]")
    kernels("--rounds", type=int, default=21, help="samples of each timing")
    kernels("--ops", nargs="+", default=["norm", "skip", "fp8", "rotary"])
    kernels("--resume", action="store_true", help="keep the times of --out, and measure the rest")
    kernels("--dtypes", nargs="+", default=["bfloat16", "float16"])
    models = options.add_argument_group("models and engines").add_argument
    models("--kernels", type=Path, help="a library of kernels for ONNX Runtime")
    models("--decoder", choices=("1b", "tiny"), help="[default: 1b; on the CPU: tiny]")
    models("--vocab", type=int, help="[default: 128256 of 1b, 1000 of tiny]")
    models("--batches", nargs="+", type=int, help="[default: 1 8]")
    models("--lengths", nargs="+", type=int, help="prompts and pasts  [default: 512 2048]")
    models("--timing-seconds", type=float, help="for each shape  [default: 4; on the CPU: 0.5]")
    add("--child", action="store_true", help=argparse.SUPPRESS)
    return _complete(options.parse_args(words))


def _complete(arguments: argparse.Namespace) -> argparse.Namespace:
    """Defaults that depend on others."""
    cpu, quick = arguments.device == "cpu", arguments.quick
    defaults = {
        "decoder": "tiny" if cpu else "1b",
        "batches": [1] if quick else [1, 8],
        "lengths": [16, 64] if cpu else [512] if quick else [512, 2048],
        "timing_seconds": 0.5 if cpu else 1.0 if quick else 4.0,
        "seed": int.from_bytes(os.urandom(3), "big"),
    }
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def _gpu_missing() -> str:
    """Why the GPU cannot be used, or ""."""
    try:
        import torch
    except ImportError as error:
        return f"no PyTorch: {error}"
    return "" if torch.cuda.is_available() else f"PyTorch {torch.__version__} sees none"


def _child(arguments: argparse.Namespace) -> int:
    """One part, in this process."""
    (part,) = arguments.only
    results = Results.read(part, arguments.out)
    start = time.monotonic()
    try:
        module = importlib.import_module(f"tests.tools.gpu.{part}")
        module.run(arguments, results, Clock(arguments.minutes * 60))
    except (SkippedError, ModuleNotFoundError) as error:
        skipped = error if isinstance(error, SkippedError) else _missing(error)
        results.skip(part, skipped.reason, skipped.fix)
        results.end("skipped", skipped.reason)
        return 6
    data = results.data
    data["seconds"] = round(time.monotonic() - start, 1)
    bad = bool(data["wrong"] or data["failures"])
    results.end("done", f"{len(data['failures'])} pieces failed" if data["failures"] else "")
    return int(bad)


def _missing(error: ModuleNotFoundError) -> SkippedError:
    """A package of others as a reason to skip."""
    name = (error.name or "").split(".")[0]
    if not name or name in ("scripts", "rmsnorm_export"):
        raise error
    return SkippedError(f"no package {name}", pip_install("[torch]", "transformers"))


def _run_part(part: str, words: list[str], arguments: argparse.Namespace, seconds: float) -> int:
    """One part as a process; what it wrote is completed when it did not end by itself."""
    say(f"== {part}: up to {seconds:.0f} s")
    # Written here, so that a process that never comes so far does not leave an older run's result.
    known = facts(arguments.device) | {"seed": arguments.seed}
    if arguments.resume:
        known["earlier"] = Results.read(part, arguments.out).data
    Results(part, arguments.out, known).save()
    mine = ["--child", "--only", part, "--minutes", f"{_SOFT * seconds / 60:.4f}"]
    mine += ["--seed", str(arguments.seed), "--work", str(arguments.work)]
    command = module_command("tests.tools.gpu", *words, *mine)
    child = subprocess.Popen(command, env=module_environment(), start_new_session=True)
    why = ""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        why = f"ended after {seconds:.0f} s: the time was over"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # it, and what it started
        child.wait()
    results = Results.read(part, arguments.out)
    if not why and child.returncode in (0, 1, 6) and results.data["status"] != "running":
        return child.returncode
    code = child.returncode
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    why = why or f"its process ended with {name}"
    results.data["failures"].append({"what": part, "error": why})
    results.end("failed", why)
    return 1


@contextlib.contextmanager
def _preparing(arguments: argparse.Namespace) -> Iterator[subprocess.Popen[bytes] | None]:
    """The models are exported while the kernels have the GPU: that takes a minute or two."""
    if arguments.only[0] != "kernels" or len(arguments.only) == 1:
        yield None
        return
    words = [str(arguments.work), arguments.decoder, str(arguments.vocab or 0)]
    made = subprocess.Popen(
        module_command("tests.tools.gpu.decoder", *words), env=module_environment()
    )
    try:
        yield made
    finally:
        made.kill()
        made.wait()


def main() -> int:
    words = sys.argv[1:]
    arguments = _arguments(words)
    arguments.only = [part for part in PARTS if part in arguments.only]
    if arguments.device == "cuda" and (found := _gpu_missing()):
        say(
            "error: there is no GPU to check on\n"
            f"found: {found}\n"
            "fix: run this on a machine with an NVIDIA GPU, its driver and PyTorch for CUDA, or "
            "see what can be tried with --device cpu"
        )
        return 6
    if arguments.child:
        return _child(arguments)
    end = time.monotonic() + arguments.minutes * 60
    codes = {}
    with tempfile.TemporaryDirectory(prefix="rmsnorm_gpu_") as folder:
        arguments.work = (arguments.work or Path(folder)).resolve()
        with _preparing(arguments) as prepared:
            for i, part in enumerate(arguments.only):
                if part != "kernels" and prepared is not None:
                    prepared.wait()  # when it failed, the part tries again, and says why
                shares = [PARTS[name] for name in arguments.only[i:]]
                seconds = max(1.0, end - time.monotonic()) * shares[0] / sum(shares)
                codes[part] = _run_part(part, words, arguments, seconds)
    for part in arguments.only:
        results = Results.read(part, arguments.out)
        data = results.data
        print(f"{part}: {data['status']}" + (f": {data['detail']}" if data["detail"] else ""))
        for line in results.headlines():
            print(f"  {line}")
        for one in data["skipped"]:
            print(f"  not run: {one['what']}: {one['reason']} ({one['fix']})")
        for text in data["wrong"]:
            print(f"  WRONG: {text}")
        for failure in data["failures"]:
            print(f"  FAILED: {failure['what']}: {failure['error']}")
    print(f"written: {arguments.out}/gpu_*.json and what is beside them")
    done = set(codes.values())
    return 1 if 1 in done else 6 if done == {6} else 0


if __name__ == "__main__":
    raise SystemExit(main())
