"""The parts ``models`` and ``engines`` of tests/tools/gpu_check, on the CPU: the same code, ONNX
Runtime's CPU provider, and engines of TensorRT-RTX that are built and not run.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import rmsnorm_export as rx
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine.backends import RTX, TENSORRT, gpu_visible
from tests.tools.corpus import cache
from tests.tools.lib.command import module_command, module_environment

needs_rtx = pytest.mark.skipif(
    not (is_installed("tensorrt_rtx") and is_installed("polygraphy")),
    reason=f"builds engines with TensorRT-RTX and Polygraphy: {RTX.pip}",
)
pytestmark = [
    pytest.mark.export,
    pytest.mark.skipif(
        not all(map(is_installed, ("torch", "onnxscript", "transformers", "onnxruntime"))),
        reason="exports and runs a decoder: pip install 'rmsnorm-export[ort,torch]' transformers",
    ),
]


def gpu(name: str) -> ModuleType:
    """A module of tests/tools/gpu, which may need what is not installed."""
    return importlib.import_module(f"tests.tools.gpu.{name}")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with the exported tiny decoder, which is made once and kept."""
    decoder = gpu("decoder")
    packages = [metadata.version(name) for name in ("torch", "transformers", "onnx-ir")]
    source = Path(decoder.__file__).read_bytes()
    key = hashlib.sha256(source + " ".join(packages).encode()).hexdigest()
    made = cache.entry(
        "decoder", "tiny", key, lambda f: decoder.raw_files(decoder.DECODERS["tiny"], f) and None
    )
    return Path(shutil.copytree(made, tmp_path / "work"))


@pytest.fixture
def options(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Of a short run on the CPU, where no library of kernels was built before."""
    monkeypatch.setenv("RMSNORM_EXPORT_CACHE", str(cache.root()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["--device", "cpu", "--quick", "--seed", "5", "--lengths", "7", "33"]
    words += ["--timing-seconds", "0.05", "--work", str(work), "--out", str(tmp_path / "out")]
    found = gpu("__main__")._arguments(words)
    found.words = words
    return found


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """tests/tools/gpu_check as a process."""
    return subprocess.run(
        module_command("tests.tools.gpu", *words),
        env=module_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def results(options: argparse.Namespace, part: str):
    part_ = gpu("part")
    return part_.Results(part, options.out, part_.facts("cpu"))


@pytest.mark.slow
@needs_rtx
def test_the_whole_of_it_on_a_cpu(options: argparse.Namespace) -> None:
    done = run(*options.words)
    assert done.returncode == 0, done.stderr
    assert "kernels: skipped: the kernels run on a GPU only" in done.stdout
    found = {
        part: json.loads((options.out / f"gpu_{part}.json").read_text())
        for part in ("kernels", "models", "engines")
    }
    assert [data["status"] for data in found.values()] == ["skipped", "done", "done"]
    for data in found.values():
        assert (data["failures"], data["wrong"]) == ([], [])
        assert (data["device"], data["driver"]) == ("no GPU", "no GPU")
        assert data["versions"]["rmsnorm-export"]
    rows = found["models"]["rows"]
    variants = ["raw", "raw again", "portable", "onnx", "ort"]
    assert [row["variant"] for row in rows] == variants * 4
    assert {(row["kind"], row["length"]) for row in rows} == {
        (kind, length) for kind in ("decode", "prefill") for length in (7, 33)
    }
    assert all(row["status"] == "ok" and row["max_abs"] <= row["allowed"] for row in rows)
    assert all(row["timing"]["median_ms"] > 0 for row in rows)
    files = found["models"]["files"]
    assert {(f["kind"], f["fused"], f["refused"]) for f in files} == {
        ("decode", 5, 0),
        ("prefill", 5, 0),
    }
    engines = found["engines"]["engines"]
    names = [f"TensorRT-RTX {form}" for form in ("raw", "onnx", "portable")]
    assert [row["name"] for row in engines if row["name"] in names] == names * 2
    assert all(row["norms"] == 5 for row in engines if row["status"] == "built")
    skipped = [(s["what"], s["reason"], s["fix"]) for s in found["engines"]["skipped"]]
    here = ("there is no GPU", "run it where a GPU is")
    assert ("decode: running 3 engines of TensorRT-RTX", *here) in skipped
    if not is_installed("tensorrt"):
        assert ("TensorRT", "not installed: tensorrt", TENSORRT.pip) in skipped
    page = (options.out / "gpu_models.md").read_text()
    assert page.count("| 1 x 33 | portable |") == 2
    assert "| decode | TensorRT-RTX raw | built |" in (options.out / "gpu_engines.md").read_text()
    assert (options.out / "gpu_models.png").stat().st_size > 10_000
    assert not (options.out / "gpu_engines.png").exists()  # nothing was timed


@pytest.mark.thorough
def test_portable_with_our_kernels(options: argparse.Namespace) -> None:
    """They are tried on norms of every kind, and their outputs compared, before they are timed."""
    built = rx.plugin.build(runtime="onnxruntime", cache=cache.root() / "native")
    options.kernels = built.path("register")
    found = results(options, "models")
    gpu("models").run(options, found, gpu("part").Clock(100))
    assert (found.data["failures"], found.data["wrong"]) == ([], [])
    assert found.data["native"]["checks"] > 50
    rows = [row for row in found.data["rows"] if row["variant"] == gpu("models").NATIVE]
    assert {row["status"] for row in rows} == {"ok"}
    assert len(rows) == 4


def test_without_the_kernels_it_says_what_brings_them(
    options: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    models = gpu("models")
    with pytest.raises(gpu("part").SkippedError, match="CUDA kernels for ONNX Runtime") as caught:
        models.tried_kernels(None, "cuda", results(options, "models"))
    assert caught.value.fix == "rmsnorm-export plugin build --runtime onnxruntime --cuda"


def test_a_broken_file_ends_one_kind_only(options: argparse.Namespace) -> None:
    (options.work / "decode.raw.onnx").write_bytes(b"no model")
    found = results(options, "models")
    gpu("models").run(options, found, gpu("part").Clock(100))
    saved = json.loads(found.path.read_text())
    assert {failure["what"] for failure in saved["failures"]} >= {"decode"}
    assert {row["kind"] for row in saved["rows"]} == {"prefill"}
    assert "- decode: " in found.path.with_suffix(".md").read_text()


@needs_rtx
def test_an_engine_that_cannot_be_built_ends_itself_only(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (options.work / "decode.tensorrt-rtx.raw.engine").mkdir()
    engines = gpu("engines")
    plans = [plan for plan in engines.PLANS if plan.form != "portable"]
    monkeypatch.setattr(engines, "PLANS", plans)
    found = results(options, "engines")
    engines.run(options, found, gpu("part").Clock(100))
    saved = json.loads(found.path.read_text())
    assert [failure["what"] for failure in saved["failures"]] == [
        "decode: building TensorRT-RTX raw"
    ]
    built = [row for row in saved["engines"] if row["status"] == "built"]
    assert len([row for row in built if "RTX" in row["name"]]) == 3
    assert list((options.work / "decode.tensorrt-rtx.raw.engine").iterdir()) == []


@pytest.mark.skipif(is_installed("tensorrt"), reason="TensorRT is installed: it would build")
@needs_rtx
def test_an_engine_without_the_plugin_says_how_to_get_it(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend of that plan is not installed; that is told like a library that is not built."""
    engines = gpu("engines")
    monkeypatch.setattr(engines, "is_installed", lambda _: True)
    plans = [plan for plan in engines.PLANS if plan.backend is TENSORRT]
    monkeypatch.setattr(engines, "PLANS", plans)
    found = results(options, "engines")
    engines.run(options, found, gpu("part").Clock(100))
    whats = {s["what"]: s["fix"] for s in found.data["skipped"]}
    assert whats["decode: TensorRT portable + plugin"] == TENSORRT.pip
    assert found.data["failures"] == []


def test_when_the_time_is_over_the_rest_is_left_out(options: argparse.Namespace) -> None:
    found = results(options, "models")
    gpu("models").run(options, found, gpu("part").Clock(-1))
    assert found.data["rows"] == []
    assert [s["what"] for s in found.data["skipped"]] == [
        gpu("models").NATIVE,
        *(f"{kind} 1 x {length}" for kind in ("decode", "prefill") for length in (7, 33)),
    ]
    assert {s["reason"] for s in found.data["skipped"]} == {"the time was over"}


@pytest.mark.skipif(gpu_visible(), reason="there is a GPU: run tests/tools/gpu_check")
def test_without_the_cuda_provider_it_says_what_brings_it(options: argparse.Namespace) -> None:
    options.device = "cuda"
    with pytest.raises(gpu("part").SkippedError, match="no CUDA provider") as caught:
        gpu("models").run(options, results(options, "models"), None)
    assert "pip install 'onnxruntime-gpu>=1.22'" in caught.value.fix


def test_a_part_that_takes_too_long_is_ended(options: argparse.Namespace) -> None:
    """Its results say so; those of an earlier run are gone."""
    options.out.mkdir()
    (options.out / "gpu_models.json").write_text('{"status": "done", "rows": [1, 2, 3]}')
    (options.out / "gpu_models.png").write_bytes(b"old")
    assert gpu("__main__")._run_part("models", options.words, options, 1.0) == 1
    saved = json.loads((options.out / "gpu_models.json").read_text())
    assert saved["status"] == "failed"
    assert "the time was over" in saved["detail"]
    assert saved.get("rows", []) == []
    assert not (options.out / "gpu_models.png").exists()


def test_a_part_whose_process_ends_early(options: argparse.Namespace) -> None:
    blocked = options.out.parent / "blocked"
    blocked.write_text("a file where a folder is wanted")
    options.work = blocked
    assert gpu("__main__")._run_part("models", options.words, options, 100.0) == 1
    saved = json.loads((options.out / "gpu_models.json").read_text())
    assert saved["status"] == "failed"
    assert "exit code 1" in saved["detail"]


def trial(options: argparse.Namespace, *more: Any) -> list[dict[str, Any]]:
    """Rows of raw, raw again, and of what ``more`` makes of the buffers."""
    decoder, trial, models = (gpu(name) for name in ("decoder", "trial", "models"))
    tiny, case = decoder.DECODERS["tiny"], decoder.Case("decode", 2, 9)
    raw = options.work / "decode.raw.onnx"
    expected = models.references(raw, tiny, [case], options)[case]
    buffers = trial.Buffers(tiny, case, "cpu", options.seed)
    session = models.session_of(raw, "cpu")
    runs: dict[str, Any] = {name: trial.bound(session, buffers) for name in ("raw", "raw again")}
    for i, make in enumerate(more):
        runs[f"other {i}"] = make(buffers, trial.bound(session, buffers))
    return trial.trial(case, runs, buffers, expected, provider="cpu", seconds=0.02, seed=0)


def test_what_is_wrong_is_not_timed(options: argparse.Namespace) -> None:
    def nothing(_buffers, _raw):
        return lambda: None

    def one_off(buffers, raw):
        def run() -> None:
            raw()
            buffers.outputs["present.1.value"][-1, -1, -1, -1] += 1

        return run

    def raising(_buffers, _raw):
        def run() -> None:
            raise RuntimeError("no kernel")

        return run

    def right(_buffers, raw):
        return raw

    rows = trial(options, nothing, one_off, raising, right)
    told = {row["variant"]: (row["status"], "timing" in row) for row in rows}
    assert told == {
        "raw": ("ok", True),
        "raw again": ("ok", True),
        "other 0": ("wrong outputs", False),
        "other 1": ("wrong outputs", False),
        "other 2": ("failed", False),
        "other 3": ("ok", True),
    }
    by_name = {row["variant"]: row for row in rows}
    assert "NaN" in by_name["other 0"]["detail"]
    assert by_name["other 1"]["detail"].startswith("present.1.value: ")
    assert "no kernel" in by_name["other 2"]["detail"]
    found = results(options, "models")
    found.data |= {"rows": [], "baseline": "raw"}
    found.add(rows)
    assert len(found.data["wrong"]) == 3
    assert "wrong outputs: " in found.path.with_suffix(".md").read_text()


def test_outputs_that_are_not_finite_prove_nothing(options: argparse.Namespace) -> None:
    decoder = gpu("decoder")
    weights = options.work / "decode.raw.onnx.data"
    weights.write_bytes(np.full(weights.stat().st_size // 2, np.inf, np.float16).tobytes())
    case = decoder.Case("decode", 1, 7)
    with pytest.raises(RuntimeError, match="not finite"):
        gpu("models").references(
            options.work / "decode.raw.onnx", decoder.DECODERS["tiny"], [case], options
        )


@pytest.mark.slow
def test_the_decoder_computes_what_pytorch_does(options: argparse.Namespace) -> None:
    """A prompt, then one token more on what it left: as the prompt with that token at once."""
    import torch

    decoder, models = gpu("decoder"), gpu("models")
    tiny = decoder.DECODERS["tiny"]
    model = decoder.random_llama(tiny)
    tokens = torch.randint(tiny.vocab, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(tokens).logits
    prefill = models.session_of(options.work / "prefill.raw.onnx", "cpu", optimize=False)
    first, *cache_ = prefill.run(None, {"input_ids": tokens[:, :11].numpy()})
    np.testing.assert_allclose(first[:, 0], expected[:, 10], atol=0.02)
    decode = models.session_of(options.work / "decode.raw.onnx", "cpu", optimize=False)
    feeds = dict(zip(tiny.cache_names("past"), cache_, strict=True))
    second, *longer = decode.run(None, {"input_ids": tokens[:, 11:].numpy()} | feeds)
    np.testing.assert_allclose(second[:, 0], expected[:, 11], atol=0.02)
    assert float(expected.abs().max()) > 1  # 0.02 is a small part of it
    case = decoder.Case("decode", 2, 11)
    assert [array.shape for array in (second, *longer)] == list(case.outputs(tiny).values())


def test_the_weights_are_all_different() -> None:
    """A runtime would store equal ones once, and read them from its caches."""
    decoder = gpu("decoder")
    model = decoder.random_llama(decoder.DECODERS["tiny"])
    weights = [p.detach().numpy().tobytes() for p in model.parameters()]
    assert len(set(weights)) == len(weights)


@needs_rtx
def test_a_file_that_is_no_engine_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "e.engine").write_bytes(b"vtrt" + bytes(2000))
    with pytest.raises(gpu("part").SkippedError, match=r"does not load e\.engine"):
        gpu("loaded_engine").Engine(tmp_path / "e.engine", "tensorrt_rtx")


def test_help_says_what_was_not_run() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "NOT RUN YET" in done.stdout
    assert "--only" in done.stdout
