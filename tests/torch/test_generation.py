"""Decoders with their caches: exported as users do, run token by token, compared with PyTorch."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")

import onnx_ir as ir
import onnxruntime
import torch
import transformers

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.compare.generation import verify_generation
from rmsnorm_export.runtime.session import open_session
from rmsnorm_export.torch.generation.components import sample_inputs, whole_static_caches
from rmsnorm_export.torch.generation.source import load_generative
from tests.tools.corpus.decoders import decoder as decoder_of

pytestmark = [pytest.mark.export, pytest.mark.slow]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def llama(**changes: object) -> transformers.PreTrainedModel:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**{**CONFIG, **changes})
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the command makes of a config.json; its report and page are beside it."""
    folder = tmp_path_factory.mktemp("decoder")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    arguments = ["export", folder / "config.json", "--task", "generation", "-o", folder / "made"]
    arguments += ["--prove", "--verify", "--require", "all"]
    arguments += ["--report", folder / "r.json", "--report", folder / "r.html"]
    assert main([str(argument) for argument in arguments]) == 0
    return folder / "made"


def dims(value: onnx.ValueInfoProto) -> list[str | int]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_every_norm_is_one_proved_node_named_after_its_module(decoder: Path) -> None:
    report = json.loads((decoder.parent / "r.json").read_text())
    assert list(report["reports"]) == ["prefill", "decode"]
    for one in report["reports"].values():
        assert [site["module"] for site in one["fused"]] == [
            "model.layers.0.input_layernorm",
            "model.layers.0.post_attention_layernorm",
            "model.layers.1.input_layernorm",
            "model.layers.1.post_attention_layernorm",
            "model.norm",
        ]
        assert all(site["proof"]["passed"] for site in one["fused"])
        assert one["refused"] == []
    assert report["verification"]["passed"]
    assert len(report["verification"]["outputs"]) == 32
    assert "64 of 64 greedy tokens are the same" in report["verification"]["notes"]
    written = {Path(made["path"]).name for made in report["provenance"]["outputs"]}
    assert {"prefill.onnx", "prefill.onnx.data", "decode.onnx", "export.json"} <= written
    page = (decoder.parent / "r.html").read_text()
    assert "10 of 10 RMSNorms are one node, in 2 graphs" in page


def test_inputs_and_dimensions_have_the_names_that_users_know(decoder: Path) -> None:
    graph = onnx.load(decoder / "decode.onnx", load_external_data=False).graph
    inputs = {value.name: dims(value) for value in graph.input}
    outputs = {value.name: dims(value) for value in graph.output}
    assert inputs["input_ids"] == ["batch", 1]
    assert inputs["attention_mask"] == ["batch", "past + 1"]
    assert inputs["input.past_key_values.layers.1.keys"] == ["batch", 2, "past", 8]
    assert outputs["output.past_key_values.layers.1.keys"] == ["batch", 2, "past + 1", 8]
    assert outputs["logits"] == ["batch", 1, 64]
    prefill = onnx.load(decoder / "prefill.onnx", load_external_data=False).graph
    assert {value.name: dims(value) for value in prefill.input} == {
        "input_ids": ["batch", "sequence"],
        "attention_mask": ["batch", "sequence"],
        "position_ids": ["batch", "sequence"],
    }


def test_weights_are_on_disk_once(decoder: Path, tmp_path: Path) -> None:
    weights = sum(p.numel() * p.element_size() for p in llama().parameters() if p.ndim > 1)
    stored = sum(path.stat().st_size for path in decoder.glob("*.data"))
    assert weights <= stored <= 1.05 * weights
    copy = tmp_path / "copy"  # as an upload would make it: no links
    shutil.copytree(decoder, copy)
    for name in ("prefill", "decode"):
        onnxruntime.InferenceSession(copy / f"{name}.onnx", providers=["CPUExecutionProvider"])


def test_the_graphs_that_were_checked_are_those_that_run(
    decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands in their files by the time that ONNX Runtime gets them."""
    folder = shutil.copytree(decoder, tmp_path / "decoder")
    checked = {path: path.read_bytes() for path in folder.glob("*.onnx")}

    def while_swapped(content: bytes, **options: object) -> object:
        for path in checked:
            path.write_bytes(b"another file")
        try:
            return open_session(content, **options)  # type: ignore[arg-type]
        finally:
            for path, before in checked.items():
                path.write_bytes(before)

    monkeypatch.setattr("rmsnorm_export.compare.generation.open_session", while_swapped)
    assert rx.verify(decoder.parent / "config.json", folder, generate=2).passed


def test_verify_compares_tokens_and_says_which_differ(decoder: Path, tmp_path: Path) -> None:
    config = decoder.parent / "config.json"
    same = rx.verify(config, decoder, generate=4)
    assert same.passed
    assert len(same.outputs) == 4
    broken = tmp_path / "broken"
    shutil.copytree(decoder, broken)
    model = onnx.load(broken / "decode.onnx", load_external_data=False)
    (scale,) = (one for one in model.graph.initializer if one.name == "model.norm.weight")
    scale.raw_data = np.full(32, 1.01, np.float32).tobytes()
    onnx.save(model, broken / "decode.onnx")
    other = rx.verify(config, broken, generate=4)
    assert other.verdict == "differ"
    assert [output.passed for output in other.outputs] == [True, False, False, False]
    assert "logits of token 2" in other.reason
    folders = rx.verify(decoder, broken)  # each graph by itself, on random inputs
    assert {one.name.partition(":")[0] for one in folders.outputs if not one.passed} == {"decode"}
    assert folders.first_difference is not None
    assert folders.first_difference.site is not None
    assert folders.first_difference.site.module == "model.norm"
    assert folders.first_difference.site.place == "at"


def test_half_precision_has_its_own_bound(decoder: Path) -> None:
    """The weights in half precision, and an export that is float32."""
    config = str(decoder.parent / "config.json")
    given = {"arguments": {}, "dtype": "f16", "shapes": None, "dims": None, "seed": 0}
    model, _, _ = load_generative(config, **given)
    feeds = sample_inputs(model, {})
    assert verify_generation(model, decoder, feeds, tokens=3).passed
    outcome = verify_generation(model, decoder, feeds, tokens=3, rtol=1e-6)
    assert outcome.verdict == "differ"


@pytest.mark.thorough
def test_bfloat16_is_not_compared_without_kernels(tmp_path: Path) -> None:
    """ONNX Runtime has none for it on the CPU."""
    model = llama().to(torch.bfloat16)
    made = rx.export_generation(model, tmp_path / "made")
    assert rx.verify(model, made.path, generate=8).verdict == "not run"


def test_an_export_without_a_finite_logit_is_no_pass(decoder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(decoder, broken)
    model = onnx.load(broken / "prefill.onnx", load_external_data=False)
    for one in model.graph.initializer:
        if one.name == "model.norm.weight":
            one.raw_data = np.full(32, np.nan, np.float32).tobytes()
    onnx.save(model, broken / "prefill.onnx")
    config = decoder.parent / "config.json"
    assert not rx.verify(config, broken, generate=2).passed


def test_what_is_no_folder_of_an_export_is_refused(decoder: Path, tmp_path: Path) -> None:
    config = decoder.parent / "config.json"
    with pytest.raises(rx.UsageError, match="folder of an export"):
        rx.verify(config, decoder / "decode.onnx", generate=2)
    copy = tmp_path / "copy"
    shutil.copytree(decoder, copy)
    (copy / "export.json").write_text("{")
    with pytest.raises(rx.InputError, match="manifest"):
        rx.verify(config, copy, generate=2)
    shutil.copy(decoder / "export.json", copy)
    (copy / "decode.onnx").unlink()
    with pytest.raises(rx.InputError, match=r"decode\.onnx"):
        rx.verify(config, copy, generate=2)
    shutil.copy(decoder / "decode.onnx", copy)
    with pytest.raises(rx.UsageError, match="folder of an export"):
        rx.verify(copy, decoder, generate=2)
    with pytest.raises(rx.UsageError, match="random inputs"):
        rx.verify(config, copy, generate=2, dims={"batch": 1})


def client_of(folder: Path, repository: Path) -> Callable[..., np.ndarray]:
    """``generate`` of docs/examples, with the calls of sessions in the place of the server's."""
    made = rx.package_model(folder, repository, name="llm", kind="cpu")
    names = [model.name for model in made.models]
    assert names == ["llm_prefill", "llm_decode"]
    place = Path(__file__).resolve().parents[2] / "docs/examples/triton_decoder.py"
    client = runpy.run_path(str(place))
    sessions = {
        name: onnxruntime.InferenceSession(repository / name / "1/model.onnx") for name in names
    }
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    inputs = {
        name: {
            one.name: (kinds[one.type], [s if isinstance(s, int) else -1 for s in one.shape])
            for one in session.get_inputs()
        }
        for name, session in sessions.items()
    }

    def infer(model: str, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        session = sessions[model]
        names = [value.name for value in session.get_outputs()]
        return dict(zip(names, session.run(names, given), strict=True))

    return lambda *given: client["generate"](infer, inputs, *given)


def check_client(model: transformers.PreTrainedModel, generate: Callable[..., np.ndarray]) -> None:
    """Twelve tokens after a padded batch, and after a longer one, are PyTorch's."""
    for length in (3, 10):
        ids = np.random.default_rng(length).integers(2, 64, (2, length))
        mask = np.ones_like(ids)
        mask[0, 0] = 0
        expected = model.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            max_new_tokens=12,
            min_new_tokens=12,
            do_sample=False,
            eos_token_id=[],
            pad_token_id=0,
        )
        np.testing.assert_array_equal(generate(ids, mask, 12), expected[:, length:])


def test_the_client_of_the_examples_generates_what_pytorch_does(
    decoder: Path, tmp_path: Path
) -> None:
    config = str(decoder.parent / "config.json")
    given = {"arguments": {}, "dtype": None, "shapes": None, "dims": None, "seed": 0}
    model, _, _ = load_generative(config, **given)
    check_client(model, client_of(decoder, tmp_path / "models"))


def test_an_existing_folder_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(rx.UsageError, match="not empty"):
        rx.export_generation(llama(), tmp_path)
    with pytest.raises(rx.InputError, match="is no folder"):
        rx.export_generation(llama(), tmp_path / "notes.txt")
    with pytest.raises(rx.InputError, match="does not exist"):
        rx.export_generation(llama(), tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_one_graph_with_the_names_of_optimum(tmp_path: Path) -> None:
    """From an empty cache, as a server that knows nothing of transformers would run it."""
    model = llama()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "notes.txt").write_text("mine")
    made = rx.export_generation(model, tmp_path / "made", names="optimum", target="ort", force=True)
    assert (made.path / "notes.txt").read_text() == "mine"
    assert not (made.path / "export.json").exists()
    session = onnxruntime.InferenceSession(made.path / "model.onnx")
    shapes = {value.name: value.shape for value in session.get_inputs()}
    assert shapes["past_key_values.0.key"] == ["batch", 2, "past", 8]
    assert shapes["attention_mask"] == ["batch", "past + sequence"]
    ids = np.array([[5, 9, 11], [7, 8, 1]])
    mask = np.array([[0, 1, 1], [1, 1, 1]])
    expected = model.generate(
        torch.tensor(ids), attention_mask=torch.tensor(mask), max_new_tokens=12, min_new_tokens=12
    )
    cache = {name: np.zeros((2, 2, 0, 8), np.float32) for name in shapes if "past" in name}
    fed, tokens, outputs = ids, [], session.get_outputs()
    for _ in range(12):
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -fed.shape[1] :]
        feeds = {"input_ids": fed, "attention_mask": mask, "position_ids": positions, **cache}
        logits, *present = session.run(None, feeds)
        logits[:, -1, model.generation_config.eos_token_id] = -np.inf  # min_new_tokens
        fed = logits[:, -1:].argmax(-1)
        mask = np.concatenate([mask, np.ones_like(fed)], axis=1)
        names = [value.name.replace("present", "past_key_values") for value in outputs]
        cache = dict(zip(names[1:], present, strict=True))
        tokens.append(fed)
    np.testing.assert_array_equal(np.concatenate(tokens, axis=1), expected[:, 3:])


def test_what_cannot_generate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rx.InputError, match="cannot generate"):
        rx.export_generation(llama().model, tmp_path / "made")
    with pytest.raises(rx.InputError, match="give the model that from_pretrained makes"):
        rx.export_generation("a folder", tmp_path / "made")
    with pytest.raises(rx.UsageError, match="max_position_embeddings is 64"):
        rx.export_generation(llama(), tmp_path / "made", static_cache=65)
    with pytest.raises(rx.UsageError, match="6 tokens, of 7 that are needed"):
        rx.export_generation(llama(), tmp_path / "made", static_cache=6)
    with pytest.raises(rx.UsageError, match="encoder, prefill and decode"):
        rx.export_generation(decoder_of("t5"), tmp_path / "made", names="optimum")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("window", [8, 40])
def test_a_static_cache_holds_more_than_the_window(window: int) -> None:
    """As transformers' own caches write, whichever is shorter: prompt, window or cache."""
    model = decoder_of("mistral", sliding_window=window)
    feeds = sample_inputs(model, {})
    how = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False}
    expected = model.generate(**feeds, **how)
    with whole_static_caches():
        written = model.generate(
            **feeds, **how, cache_implementation="static", return_dict_in_generate=True
        )
    assert {layer.keys.shape[2] for layer in written.past_key_values.layers} == {20}
    np.testing.assert_array_equal(written.sequences, expected)


def test_fusions_follow_and_the_folder_still_generates(decoder: Path, tmp_path: Path) -> None:
    """The attention takes its cache in; as many norms are one node as without."""
    fused = rx.optimize(decoder, fusions="cpu")
    for report in fused.reports.values():
        assert report.target == "ort"
        assert report.unfused == ()
        made = report.fusions
        assert made is not None
        assert made.left_out == made.problem == made.not_compared == ""
        assert made.compared.startswith("5 outputs differ by at most")
        assert made.operators["GroupQueryAttention"] == (0, 2)
        assert made.operators["MatMul"] == (19, 9)
        assert made.nodes_after < made.nodes_before - 40
    written = fused.save(tmp_path / "fused")
    sizes = [sum(p.stat().st_size for p in f.glob("*.data")) for f in (decoder, written.path)]
    assert sizes[1] <= 1.05 * sizes[0]
    graph = onnx.load(written.path / "decode.onnx", load_external_data=False).graph
    packed = [one for one in graph.initializer if "packed" in one.name and len(one.dims) == 2]
    assert len(packed) == 4  # q, k, v and gate, up of two layers: for both graphs once
    assert {one.external_data[0].value for one in packed} == {"prefill.onnx.data"}
    norms = [node for node in graph.node if node.op_type.endswith("SimplifiedLayerNormalization")]
    assert len(norms) == 5
    outputs = {value.name: dims(value) for value in graph.output}
    assert outputs["output.past_key_values.layers.1.keys"] == ["batch", 2, "past + 1", 8]
    manifest = json.loads((written.path / "export.json").read_text())
    config = manifest["components"]["decode"]["metadata"]["export_config"]
    assert config["ort_fusions"] == "cpu"
    outcome = rx.verify(decoder.parent / "config.json", written.path, generate=4)
    assert outcome.passed
    assert outcome.notes[0] == "8 of 8 greedy tokens are the same"


def _halved(model: ir.Model) -> None:
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            scale = node.attributes.get_float("scale", 8**-0.5)
            node.attributes["scale"] = ir.AttrFloat32("scale", scale / 2)


def _raising(_: ir.Model) -> None:
    raise RuntimeError("no such pattern")


@pytest.mark.parametrize("defect", [_halved, _raising])
def test_where_a_fusion_is_wrong_the_graph_is_as_before(
    decoder: Path, monkeypatch: pytest.MonkeyPatch, defect: Callable[[ir.Model], None]
) -> None:
    from transformers.exporters import onnxruntime_fusions

    steps = (*onnxruntime_fusions._STEPS, (defect, ("cpu",)))
    monkeypatch.setattr(onnxruntime_fusions, "_STEPS", steps)
    result = rx.optimize(decoder / "decode.onnx", fusions="cpu")
    fusions = result.report.fusions
    assert fusions is not None
    assert fusions.left_out == "all of them"
    assert ("fails: RuntimeError" if defect is _raising else "is off by") in fusions.problem
    without = rx.optimize(decoder / "decode.onnx", target="ort")
    assert result.to_bytes(weights="embed") == without.to_bytes(weights="embed")
