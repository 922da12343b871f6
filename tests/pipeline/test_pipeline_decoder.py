"""A decoder's whole way: prefill and decode with their cache, from a config.json to a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")

import rmsnorm_export as rx
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine.backends import RTX
from tests.pipeline.pipelines import assert_consistent, ran, states

pytestmark = [pytest.mark.export, pytest.mark.slow]

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def written(folder: Path, text: str) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    path = folder / "pipeline.toml"
    path.write_text(f'[pipeline]\nname = "tiny"\nfolder = "out"\n{text}\n')
    return path


def test_every_step_takes_the_folder(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '[export]\nsource = "config.json"\ntask = "generation"\n[optimize]\nrequire = "all"\n'
        "[prove]\n[verify]\ngenerate = 8\n[package]\n",
    )
    first = rx.run_pipeline(path)
    assert ran(first) == ["export", "optimize", "prove", "verify", "package"]
    out = tmp_path / "out"
    assert (out / "optimize" / "tiny" / "decode.onnx").is_file()
    verified = json.loads((out / "verify" / "pytorch-optimized.json").read_text())
    assert verified["notes"][0] == "16 of 16 greedy tokens are the same"
    reports = json.loads((out / "prove" / "report.json").read_text())["reports"]
    assert [len(one["fused"]) for one in reports.values()] == [3, 3]
    assert {path.name for path in (out / "repository").iterdir()} == {"tiny_prefill", "tiny_decode"}
    assert_consistent(out)
    again = rx.run_pipeline(path)
    assert set(states(again).values()) == {"skipped"}
    graph = out / "optimize" / "tiny" / "decode.onnx"
    graph.write_bytes(graph.read_bytes() + b"\0")
    assert ran(rx.run_pipeline(path))[0] == "optimize"  # what was touched is made again

    folder = out / "export" / "tiny"
    onward = tmp_path / "onward"
    onward.mkdir()
    second = onward / "second.toml"
    second.write_text(
        f'[pipeline]\nname = "two"\n[model]\npath = "{folder}"\n[optimize]\n[verify]\n'
        '[bench]\nrounds = 6\ntargets = ["ort"]\nthreads = 1\ndims = "batch=1 sequence=4 past=4"\n'
    )
    assert ran(rx.run_pipeline(second)) == ["optimize", "verify", "bench"]
    compared = json.loads((onward / "two" / "verify" / "raw-optimized.json").read_text())
    assert compared["passed"]


@pytest.mark.thorough
@pytest.mark.skipif(
    not (is_installed("tensorrt_rtx") and is_installed("polygraphy")),
    reason=f"builds engines with TensorRT-RTX and Polygraphy: {RTX.pip}",
)
def test_engines_of_prefill_and_decode_are_built(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '[export]\nsource = "config.json"\ntask = "generation"\n[optimize]\ntarget = "onnx"\n'
        'require = "all"\n[build]\nbackend = "tensorrt-rtx"\n'
        'dims = "batch=1,2,4 sequence=1,8,32 past=1,8,32"\n',
    )
    assert ran(rx.run_pipeline(path)) == ["export", "optimize", "build"]
    built = tmp_path / "out" / "build"
    assert sorted(one.name for one in built.rglob("*.engine")) == [
        "decode.engine", "prefill.engine",
    ]  # fmt: skip
    found = [rx.check_engine(one) for one in built.rglob("*.engine")]
    assert [one.problems for one in found] == [(), ()]
    assert set(states(rx.run_pipeline(path)).values()) == {"skipped"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[export]\nsource = "config.json"\nstatic_cache = 8\n', "static_cache"),
        ('[export]\nsource = "config.json"\ntask = "generation"\nweights = "embed"\n', "weights"),
        ('[export]\nsource = "config.json"\n[optimize]\n[verify]\ngenerate = 8\n', "generate"),
        ('[export]\nsource = "config.json"\ntask = "generation"\n[bench]\npng = true\n', "png"),
        ('[model]\npath = "."\n[optimize]\n', "path"),
    ],
)
def test_what_does_not_go_together_is_named(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(rx.UsageError, match=rf"\b{found}\b"):
        rx.run_pipeline(written(tmp_path, text))
    assert not (tmp_path / "out").exists()
