"""Fill the cache with several processes."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import sys
import time
from collections.abc import Sequence
from typing import Any


def export_norm(key: str, dtype: str, exporter: str) -> str:
    """One norm export by the key of its class; what failed, or ""."""
    import torch

    from tests.tools.corpus import exporters, norm_classes

    torch.set_num_threads(1)
    norm = next(n for n in norm_classes.norm_classes() if n.key == key)
    return exporters.export_norm(norm, dtype, exporter).reason


def export_architecture(name: str, dtype: str) -> str:
    """One architecture by name; what failed, or ""."""
    import torch

    from tests.tools.corpus import architectures

    torch.set_num_threads(1)
    return architectures.export_architecture(architectures.architecture(name), dtype).reason


def run(jobs: Sequence[tuple[Any, ...]], processes: int) -> None:
    """Run ``(function, *arguments)`` jobs in ``processes`` processes; progress on stderr."""
    started = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [pool.submit(*job) for job in jobs]
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            future.result()
            if done % 20 == 0 or done == len(futures):
                seconds = time.perf_counter() - started
                print(f"  {done}/{len(futures)} in {seconds:.0f} s", file=sys.stderr, flush=True)
