"""The kernels on their own: built for the GPU at hand, checked, sanitized, timed beside others."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench.gpu.part import Clock, Results, SkippedError
from tests.tools.lib.command import say


def run(arguments: argparse.Namespace, results: Results, clock: Clock) -> None:
    """All steps that are asked for; a failure of one leaves the others.

    Raises:
        SkippedError: there is nothing to build with.
    """
    nvcc = _tool("nvcc")
    if nvcc is None:
        fix = "install CUDA 12.8 or newer, or set CUDA_HOME"
        raise SkippedError("no nvcc in CUDA_HOME or PATH", fix)
    import torch

    from bench.gpu import build
    from bench.gpu.peers import peer_versions

    properties = torch.cuda.get_device_properties(0)
    arch = f"{properties.major}{properties.minor}"
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
    data = results.data
    data["versions"] |= peer_versions()
    data["versions"]["CUDA"] = str(torch.version.cuda)
    data["versions"]["nvcc"] = version.stdout.split("release ")[-1][:4]
    data["kernels"] = f"sm_{arch}, sources {build.source_hash()}"
    earlier = data.pop("earlier", {})
    rows = earlier.get("rows", []) if earlier.get("kernels") == data["kernels"] else []
    data |= {"correctness": [], "copy_bytes_per_second": 0.0, "rows": rows}
    results.save()
    with tempfile.TemporaryDirectory(prefix="rmsnorm_gpu_") as folder:
        say(f"building for sm_{arch} on {properties.name}")
        if {"correct", "sanitize"} & set(arguments.steps):
            with results.piece("correctness"):
                driver = build.driver(nvcc, arch, Path(folder))
                _correct(driver, arguments, results, clock)
        if "speed" in arguments.steps:
            with results.piece("speed"):
                library = build.library(nvcc, arch, Path(folder))
                _speed(library, arguments, results, clock)


def _tool(name: str) -> str | None:
    """A program of the CUDA toolkit."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    candidates = [f"{home}/bin/{name}", name]
    return next((found for c in candidates if (found := shutil.which(c))), None)


def _correct(driver: Path, arguments: argparse.Namespace, results: Results, clock: Clock) -> None:
    from bench.gpu import correct

    data, seed, quick = results.data, arguments.seed, arguments.quick
    half = clock.left() / 2  # the other half is for speed
    if "correct" in arguments.steps:
        problems = arguments.problems or (300 if quick else 3000)
        found = correct.run(
            [str(driver)], problems=problems, seed=seed, tell=say, left=lambda: clock.left() - half
        )
        data["correctness"].append(found.line())
        data["wrong"] += found.wrong
        results.save()
    if "sanitize" in arguments.steps:
        sanitizer = _tool("compute-sanitizer")
        if sanitizer is None:
            results.skip(
                "compute-sanitizer", "not in CUDA_HOME or PATH", "install the CUDA toolkit"
            )
            return
        for tool in ("memcheck", "racecheck"):
            command = [sanitizer, "--tool", tool, "--error-exitcode", "99", str(driver)]
            found = correct.run(
                command,
                problems=40 if quick else 150,
                seed=seed,
                tell=say,
                small=True,
                left=lambda: clock.left() - half,
            )
            data["correctness"].append(f"compute-sanitizer {tool}: {found.line()}")
            data["wrong"] += [f"{tool}: {text}" for text in found.wrong]
            results.save()


def _speed(library: Path, arguments: argparse.Namespace, results: Results, clock: Clock) -> None:
    """The copy rate and the rows of the benchmark."""
    from bench.gpu import bench
    from bench.gpu.library import Library
    from bench.gpu.timing import copy_rate

    ours = Library(library).contenders()
    copy = copy_rate()
    results.data["copy_bytes_per_second"] = copy
    say(f"copy: {copy / 1e9:,.0f} GB/s")
    grid = bench.grid(arguments.dtypes, arguments.ops, quick=arguments.quick)

    def keep(rows: list[dict[str, Any]]) -> None:
        results.data["rows"] = rows
        results.save()

    left_out = bench.run(
        grid,
        ours,
        rounds=arguments.rounds,
        seed=arguments.seed,
        left=clock.left,
        keep=keep,
        before=results.data["rows"],
    )
    if left_out:
        fix = "run it again with --resume"
        results.skip(f"{left_out} of {len(grid)} sizes", "the time was over", fix)
