"""Build the kernels for the GPU at hand, check them, and time them beside other people's.

Steps, each of which can be chosen with --steps:

  correct   random problems of every kind, type and length with fresh inputs and poisoned outputs,
            each against the operator with every declared rounding step
  sanitize  some of them under compute-sanitizer: memcheck, then racecheck
  speed     the device's copy rate, then rows x n x type in CUDA graphs, L2 cold and warm, beside
            PyTorch's fused norm, torch.compile, Liger, quack and flashinfer where they are
            installed, and the unfused chain

Exit code 1 when a result is wrong or the sanitizer finds something; speed decides nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("correct", "sanitize", "speed")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, metavar="STEP")
    parser.add_argument("--quick", action="store_true", help="fewer problems and sizes")
    parser.add_argument("--problems", type=int, help="of the step correct  [default: 3000]")
    parser.add_argument("--rounds", type=int, default=21, help="samples of each timing")
    parser.add_argument("--ops", nargs="+", default=["norm", "skip", "fp8"])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"])
    parser.add_argument("--seed", type=int, help="of all inputs  [default: a new one]")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "scripts" / "results", help="folder of the results"
    )
    return parser.parse_args()


def _tool(name: str) -> str | None:
    """A program of the CUDA toolkit."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    candidates = [f"{home}/bin/{name}", name]
    return next((found for c in candidates if (found := shutil.which(c))), None)


def _driver_version() -> str:
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip().split("\n")[0] or "unknown"


def _correct(
    driver: Path, arguments: argparse.Namespace, seed: int, steps: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Lines for the report, and what was wrong."""
    import gpu_correct

    lines, wrong = [], []
    if "correct" in steps:
        problems = arguments.problems or (300 if arguments.quick else 3000)
        outcome = gpu_correct.run([str(driver)], problems=problems, seed=seed, tell=_say)
        lines.append(outcome.line())
        wrong += outcome.wrong
    if "sanitize" in steps:
        sanitizer = _tool("compute-sanitizer")
        if sanitizer is None:
            lines.append("compute-sanitizer: not run, not found in CUDA_HOME or PATH")
            return lines, wrong
        for tool in ("memcheck", "racecheck"):
            command = [sanitizer, "--tool", tool, "--error-exitcode", "99", str(driver)]
            found = gpu_correct.run(
                command, problems=40 if arguments.quick else 150, seed=seed, tell=_say, small=True
            )
            lines.append(f"compute-sanitizer {tool}: {found.line()}")
            wrong += [f"{tool}: {text}" for text in found.wrong]
    return lines, wrong


def _speed(library: Path, arguments: argparse.Namespace, seed: int) -> tuple[float, list[Any]]:
    """The copy rate and the rows of the benchmark."""
    import gpu_bench
    import gpu_library
    import gpu_time

    ours = gpu_library.Library(library).contenders()
    copy = gpu_time.copy_rate()
    _say(f"copy: {copy / 1e9:,.0f} GB/s")
    options = {"quick": arguments.quick}
    large = gpu_bench.throughput_grid(arguments.dtypes, arguments.ops, **options)
    small = gpu_bench.latency_grid(arguments.dtypes[:1], arguments.ops, **options)
    grid = [(work, "cold") for work in large]
    grid += [(work, cache) for work in small for cache in ("warm", "cold")]
    rows = gpu_bench.run(grid, ours, rounds=arguments.rounds, seed=seed)
    return copy, [row.as_dict() for row in rows]


def main() -> int:
    arguments = _arguments()
    import torch

    if not torch.cuda.is_available():
        _say(
            "error: there is no GPU to check on\n"
            f"found: PyTorch {torch.__version__}, torch.cuda.is_available() is False\n"
            "fix: run this on a machine with an NVIDIA GPU and its driver"
        )
        return 6
    nvcc = _tool("nvcc")
    if nvcc is None:
        _say(
            "error: the kernels cannot be built\n"
            "found: no nvcc in CUDA_HOME or PATH\n"
            "fix: install CUDA 12.8 or newer, or set CUDA_HOME"
        )
        return 6
    import gpu_build
    import gpu_peers
    import gpu_report

    seed = arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(4), "big")
    properties = torch.cuda.get_device_properties(0)
    arch = f"{properties.major}{properties.minor}"
    nvcc_version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
    report: dict[str, Any] = {
        "schema_version": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "device": properties.name,
        "driver": _driver_version(),
        "versions": gpu_peers.versions()
        | {"CUDA": str(torch.version.cuda), "nvcc": nvcc_version.stdout.split("release ")[-1][:4]},
        "kernels": f"sm_{arch}, sources {gpu_build.source_hash()}",
        "seed": seed,
        "correctness": ["not run"],
        "copy_bytes_per_second": float("nan"),
        "rows": [],
    }
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rmsnorm_gpu_") as folder:
        _say(f"building for sm_{arch} on {properties.name}")
        if {"correct", "sanitize"} & set(arguments.steps):
            driver = gpu_build.driver(nvcc, arch, Path(folder))
            steps = tuple(arguments.steps)
            report["correctness"], wrong = _correct(driver, arguments, seed, steps)
        if "speed" in arguments.steps:
            library = gpu_build.library(nvcc, arch, Path(folder))
            report["copy_bytes_per_second"], report["rows"] = _speed(library, arguments, seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    output = arguments.out / "gpu_check.json"
    output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    page = gpu_report.markdown(report)
    output.with_suffix(".md").write_text(page, encoding="utf-8")
    try:
        gpu_report.picture(report, output.with_suffix(".png"))
    except ImportError:
        _say("no picture: pip install matplotlib")
    print("\n".join(report["correctness"]))
    print("\n".join(gpu_report.verdicts(report)))
    print(f"written: {output} and what is beside it")
    for text in wrong:
        print(f"WRONG: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
