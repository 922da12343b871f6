"""The machine that the kernels are checked on: its GPU, its clock and CUDA's programs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rmsnorm_export.system.machine import gpus

Replay = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Machine:
    """The GPU at hand. Tests have one whose kernels are interpreted and whose clock is made up."""

    device: str = "cuda"
    largest: int = 256 << 20
    """Elements of x, at most, that are timed."""
    checked: int = 1 << 22
    """Elements of x, at most, of problems that are chosen."""
    chain: int = 100
    """Launches in a row."""
    sanitized: int = 200
    """Random problems, at most, under each sanitizer."""
    problems: int = 10**9
    """Random problems, at most, without one."""
    peers: tuple[str, ...] = ("torch fused", "Liger", "quack")
    """Others that are timed."""
    lengths: tuple[int, ...] = (4096, 128, 1024, 8192, 16384, 256, 65536, 512, 2048, 32768)
    """Of the rows that are tuned."""
    variants: int = 10**9
    """For each length, at most."""
    seed: int = 1
    """Of what is drawn."""
    logs: Path = Path()
    """The folder for what other programs write."""

    def missing(self) -> str:
        """Return what keeps the kernels from being run here, or ""."""
        if torch.cuda.is_available():
            return ""
        return f"PyTorch {torch.__version__} sees no GPU"

    def name(self) -> str:
        return ", ".join(f"{gpu.name}, driver {gpu.driver}" for gpu in gpus())

    def program(self, name: str) -> str | None:
        """Return the path of a program of CUDA's, in CUDA_HOME or on PATH."""
        home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        return shutil.which(f"{home}/bin/{name}") or shutil.which(name)

    def stream(self) -> int | None:
        """Return the stream that PyTorch launches on."""
        return torch.cuda.current_stream().cuda_stream

    def other_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which ``stream`` is another one."""
        return torch.cuda.stream(torch.cuda.Stream())

    def captured(self, run: Replay) -> Replay:
        """Return the replay of a CUDA graph of ``run``."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay

    def wait(self) -> None:
        torch.cuda.synchronize()

    def seconds(self, run: Replay, *, warm: bool = False, spent: float = 0.1) -> list[float]:
        """Return lower quartile, median and upper quartile of calls that take ``spent`` in all.

        The L2 cache is flushed before each call; when ``warm`` the calls are in a CUDA graph and
        find there what fits.
        """
        from triton.testing import do_bench, do_bench_cudagraph

        options = {"rep": 1e3 * spent, "quantiles": [0.25, 0.5, 0.75]}
        if warm:
            return [ms / 1e3 for ms in do_bench_cudagraph(run, **options)]
        return [ms / 1e3 for ms in do_bench(run, warmup=250 * spent, **options)]

    def copy_rate(self) -> float:
        """Return bytes read and written per second by a copy: the ceiling of a norm."""
        source = torch.zeros(4 * self.largest, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.seconds(lambda: target.copy_(source))[1]


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """The library of C functions, the program that runs jobs, and the library of variants."""

    library: Path
    driver: Path
    tune: Path

    @classmethod
    def of(cls, folder: Path) -> Built:
        """Return those that lie in a folder, wherever the build has put them.

        Raises:
            FileNotFoundError: one of them is not there.
        """
        names = ("librmsnorm_torch.so", "rmsnorm_gpu_driver", "librmsnorm_tune.so")
        paths = [next(iter(sorted(folder.rglob(name))), folder / name) for name in names]
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"there is no {path.name} in {folder}")
        return cls(*paths)
