"""``bench`` of an engine, and of a folder of them: times where a GPU is, else what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rmsnorm_export as rx
from rmsnorm_export.tensorrt.engine.backends import gpu_visible
from rmsnorm_export.tensorrt.engine.build import build_engine

from .conftest import SHAPES, N, model_of, needs_rtx, norm

pytestmark = needs_rtx
no_gpu = pytest.mark.skipif(gpu_visible(), reason="a GPU is visible: engines are timed")
on_gpu = pytest.mark.skipif(
    not gpu_visible(), reason="times an engine on a GPU: run scripts/test tests/engine there"
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    build_engine(model_of(norm()), folder / "prefill.engine", shapes=SHAPES)
    for name in ("prefill.engine", "prefill.engine.json"):
        shutil.copy(folder / name, folder / name.replace("prefill", "decode"))
    return folder


@no_gpu
def test_without_a_gpu_an_engine_is_not_timed(engines: Path) -> None:
    with pytest.raises(rx.BackendMissingError, match="only where a GPU is"):
        rx.bench(engines / "decode.engine")
    with pytest.raises(rx.BackendMissingError, match="only where a GPU is"):
        rx.bench(engines)


@on_gpu
def test_an_engine_is_timed_at_its_usual_sizes(engines: Path) -> None:
    found = rx.bench(engines, seconds=0.5)
    assert list(found.results) == ["decode.engine", "prefill.engine"]
    for one in found.results.values():
        assert list(one.cases) == [f"x=4x{N}"]
        assert one.timings[0].rounds >= 20
        assert 0 < one.timings[0].q1_ms <= one.timings[0].median_ms <= one.timings[0].q3_ms
    other = rx.bench(engines / "decode.engine", shapes=f"x=1x{N},128x{N}", seconds=0.5)
    assert [timing.case for timing in other.timings] == [f"x=1x{N}", f"x=128x{N}"]
