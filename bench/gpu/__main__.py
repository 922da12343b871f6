"""The CUDA kernels on a GPU: built for the one at hand, then in the --steps

  correct   random problems of every kind, type and length with fresh inputs and poisoned outputs,
            each against the operator with every declared rounding
  sanitize  some of them under compute-sanitizer: memcheck, then racecheck
  speed     time and memory rate, beside PyTorch's fused norm, torch.compile, Liger, quack and
            flashinfer where they are installed, and the unfused chain

gpu_kernels.json and .md are written after each step. Whole models and engines are measured by
``rmsnorm-export bench`` on the GPU's provider.

NOT RUN YET: this was written without a GPU.

Exit code 1 when a result is wrong or the sanitizer finds something; 6 when there is no GPU, no
CMake or no nvcc. Speed decides nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.gpu import correct
from rmsnorm_export.system.machine import gpus
from tests.tools.lib.command import RESULTS, ROOT, parser, say
from tests.tools.lib.results import Start, about, bullets, write_results

STEPS = ("correct", "sanitize", "speed")
PACKAGES = ("torch", "triton", "liger-kernel", "quack-kernels", "flashinfer-python")


def _arguments() -> argparse.Namespace:
    options = parser("bench.gpu", __doc__)
    add = options.add_argument
    add("--steps", nargs="+", choices=STEPS, default=STEPS, metavar="STEP")
    add("--minutes", type=float, default=10, help="for each step  [default: 10]")
    add("--problems", type=int, default=3000, help="of the step correct  [default: 3000]")
    add("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"), help="of all inputs")
    add("--out", type=Path, default=RESULTS, help="folder of the results")
    return options.parse_args()


def _missing() -> str:
    """Return what keeps the kernels from being built and run here, or ""."""
    try:
        import torch
    except ImportError as error:
        return f"no PyTorch: {error}"
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} sees none"
    return "" if shutil.which("cmake") else "no cmake on PATH"


def build(folder: Path) -> tuple[Path, Path]:
    """Return the library of C functions and the program that runs jobs, for this GPU."""
    options = ["-DCMAKE_CUDA_ARCHITECTURES=native", "-DRMSNORM_TESTS=ON"]
    targets = ["--target", "rmsnorm_torch", "rmsnorm_gpu_driver"]
    subprocess.run(["cmake", "-S", ROOT / "plugins", "-B", folder, *options], check=True)
    subprocess.run(["cmake", "--build", folder, "--parallel", *targets], check=True)
    return folder / "librmsnorm_torch.so", folder / "tests" / "kernels" / "rmsnorm_gpu_driver"


def page(report: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    lines = ["# The kernels on a GPU", "", *bullets([report["device"], *about(report)])]
    for title in ("checked", "wrong", "not run"):
        if report[title]:
            lines += ["", f"## {title.capitalize()}", "", *bullets(report[title])]
    if report["rows"]:
        from bench.gpu.speed import table

        lines += ["", "## Speed", "", *table(report["rows"], report["copy_bytes_per_second"])]
    return "\n".join(lines) + "\n"


def _check(report: dict[str, Any], name: str, driver: list[str], **options: Any) -> None:
    outcome = correct.run(driver, tell=say, **options)
    report["checked"].append(f"{name}: {outcome.line()}")
    report["wrong"] += [f"{name}: {text}" for text in outcome.wrong]


def _sanitize(report: dict[str, Any], driver: Path, **options: Any) -> None:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    sanitizer = shutil.which(f"{home}/bin/compute-sanitizer") or shutil.which("compute-sanitizer")
    if sanitizer is None:
        report["not run"].append("compute-sanitizer is not in CUDA_HOME or PATH")
        return
    for tool in ("memcheck", "racecheck"):
        command = [sanitizer, "--tool", tool, "--error-exitcode", "99", str(driver)]
        _check(report, tool, command, problems=150, small=True, **options)


def main() -> int:
    arguments = _arguments()
    if problem := _missing():
        say(f"error: the kernels cannot run here\nfound: {problem}")
        say("fix: a machine with an NVIDIA GPU, its driver, PyTorch for CUDA, nvcc and CMake")
        return 6
    start = Start()
    device = ", ".join(f"{gpu.name}, driver {gpu.driver}" for gpu in gpus())
    empty: dict[str, Any] = {"checked": [], "wrong": [], "not run": [], "rows": []}
    report = {"device": device, "seed": arguments.seed, "copy_bytes_per_second": 0.0, **empty}
    with tempfile.TemporaryDirectory(prefix="rmsnorm_gpu_") as folder:
        try:
            library, driver = build(Path(folder))
        except subprocess.CalledProcessError as error:
            say(f"error: the kernels cannot be built\nfound: {error}")
            return 6
        for step in arguments.steps:
            options = {"seed": arguments.seed, "end": time.monotonic() + arguments.minutes * 60}
            if step == "correct":
                _check(report, step, [str(driver)], problems=arguments.problems, **options)
            elif step == "sanitize":
                _sanitize(report, driver, **options)
            else:
                from bench.gpu import speed

                report |= speed.run(library, tell=say, **options)
            report |= start.facts(*PACKAGES)
            say(write_results(report, page(report), arguments.out / "gpu_kernels.json"))
    print("\n".join([*report["checked"], *(f"WRONG: {text}" for text in report["wrong"])]))
    return int(bool(report["wrong"]))


if __name__ == "__main__":
    raise SystemExit(main())
