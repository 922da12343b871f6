"""``bench`` of an engine, and of a folder of them: times where a GPU is, else what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmsnorm_export as rx
from rmsnorm_export.benchmark.folder import bench_folder
from rmsnorm_export.tensorrt.engine.backends import gpu_visible
from rmsnorm_export.tensorrt.engine.build import build_engine

from .conftest import SHAPES, N, model_of, needs_rtx, norm

pytestmark = needs_rtx


def test_engines_are_timed_where_a_gpu_is(tmp_path: Path) -> None:
    for name in ("prefill", "decode"):
        build_engine(model_of(norm()), tmp_path / f"{name}.engine", shapes=SHAPES)
    if not gpu_visible():
        for bench in (bench_folder, lambda folder: rx.bench(folder / "decode.engine")):
            with pytest.raises(rx.BackendMissingError, match="only where a GPU is"):
                bench(tmp_path)
        pytest.skip("times an engine on a GPU: run scripts/test tests/engine there")
    results = bench_folder(tmp_path, rounds=30).results
    assert list(results) == ["decode.engine", "prefill.engine"]
    for one in results.values():
        assert [case.label for case in one.cases] == [f"x=4x{N}"]
        (timing,) = one.timings
        assert timing.rounds == 30
        assert 0 < timing.q1_ms <= timing.median_ms <= timing.q3_ms
    other = rx.bench(tmp_path / "decode.engine", shapes=f"x=1x{N},128x{N}", rounds=30)
    assert [timing.case for timing in other.timings] == [f"x=1x{N}", f"x=128x{N}"]
