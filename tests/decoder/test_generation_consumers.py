"""Folders for other runtimes: onnxruntime-genai and optimum write the tokens of PyTorch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")

import huggingface_hub
import torch
import transformers
from onnxruntime import InferenceSession

import rmsnorm_export as rx
from bench.consumers import Writer
from rmsnorm_export.cli.main import main
from rmsnorm_export.decoder.consumers import PADDED, genai_config, tokenizer_files
from rmsnorm_export.decoder.generation import verify_generation
from rmsnorm_export.decoder.names import OF_DECODER, name_by_layer
from rmsnorm_export.errors import ExitCode
from tests.decoder.conftest import model_of
from toolbox.corpus.decoders import decoder as decoder_of

pytestmark = [pytest.mark.export, pytest.mark.slow]

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
)


ENCODED, SIDES = ("t5", "bart", "whisper"), ("decoder", "encoder")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as one from a hub: weights, tokenizer, chat template, and files of no use here."""
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    model_of("llama").save_pretrained(folder)
    words = {chr(97 + i % 26) * (1 + i // 26): i for i in range(63)} | {"Ġ": 63}  # a space
    tokenizer = transformers.Qwen2Tokenizer(
        vocab=words, merges=[], unk_token="a", pad_token="a", eos_token="c"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    return folder


def exported(source: Path, place: Path, *options: str) -> Path:
    command = ["export", source, "--task", "generation", "-o", place, *options]
    assert main([str(argument) for argument in command]) == 0
    return place


@pytest.fixture(scope="module")
def folder(source: Path) -> Path:
    """For onnxruntime-genai, with a cache in one buffer."""
    options = ("--names", "genai", "--fusions", "cpu", "--verify")
    return exported(source, source.parent / "genai", *options)


@pytest.fixture(scope="module")
def grown(source: Path) -> Path:
    """For onnxruntime-genai as well; its graph concatenates new tokens to the cache."""
    return exported(source, source.parent / "grown", "--names", "genai")


@pytest.fixture(scope="module")
def later(source: Path, folder: Path) -> dict[str, Path]:
    """One export after another in the same folder, which was for onnxruntime-genai, each kept."""
    place, kept = shutil.copytree(folder, source.parent / "place"), {}
    for names, more in (("transformers", ["--multi-token"]), ("optimum", [])):
        exported(source, place, "--names", names, "--force", *more)
        kept[names] = Path(shutil.copytree(place, source.parent / names))
    return kept


@pytest.fixture
def broken(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "broken"))


@pytest.mark.parametrize(
    ("names", "gone"), [("transformers", "genai_config.json"), ("optimum", "export.json")]
)
def test_tokenizer_and_chat_template_go_with_every_export(
    names: str, gone: str, later: dict[str, Path], source: Path
) -> None:
    """Nothing that disagrees is left of the export before."""
    made = later[names]
    assert not (made / gone).exists()
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    assert tokenizer("b c")["input_ids"] == [1, 63, 2]
    chat = [{"role": "x", "content": "b"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<x>b"
    assert (made / "generation_config.json").exists()
    assert not list(made.glob("*.index.json"))
    assert rx.verify(source, made, generate=3).passed


def test_a_model_of_a_hub_brings_what_this_machine_has_of_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot's files are links to blobs beside it; nothing is looked up on a network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    home = tmp_path / "models--some--tiny"
    (home / "snapshots/0a").mkdir(parents=True)
    (home / "blobs").mkdir()
    (home / "refs").mkdir()
    (home / "refs/main").write_text("0a")
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(source / name, home / "blobs" / name)
        (home / "snapshots/0a" / name).symlink_to(f"../../blobs/{name}")
    model = model_of("llama")
    for known, files in (
        ("some/tiny", {"chat_template.jinja", "tokenizer.json"}),
        ("no/such", set()),
    ):
        model.name_or_path = known
        assert tokenizer_files(model).keys() == files


def test_a_tokenizer_that_is_a_link_out_of_the_folder_is_refused(
    source: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(source, tmp_path / "copy"))
    (copy / "chat_template.jinja").unlink()
    (copy / "chat_template.jinja").symlink_to("/etc/hostname")
    command = ["export", copy, "--task", "generation", "-o", tmp_path / "made"]
    assert main([str(argument) for argument in command]) == ExitCode.INPUT
    assert not (tmp_path / "made").exists()


# onnxruntime-genai.


@pytest.fixture
def genai() -> Any:
    return pytest.importorskip("onnxruntime_genai", reason="pip install onnxruntime-genai")


def assert_same_tokens(
    consumer: str, model: Any, *folders: Path, python: str = sys.executable
) -> None:
    """Each case of the table of decoders, by the consumer and by PyTorch."""
    assert unlike(consumer, model, *folders, python=python) == set()


def unlike(consumer: str, model: Any, *folders: Path, python: str = sys.executable) -> set[str]:
    writer = Writer(consumer, python)
    every = [writer.compare(folder, model) for folder in folders]
    return {name for same in every for name, (equal, of) in same.items() if equal < of}


def fused(folder: Path) -> int:
    """How many attentions of a folder of one graph are one node."""
    nodes = onnx.load(folder / "model.onnx", load_external_data=False).graph.node
    return [node.op_type for node in nodes].count("GroupQueryAttention")


def test_genai_writes_the_tokens_of_pytorch(
    genai: Any, folder: Path, grown: Path, source: Path
) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    assert (fused(folder), fused(grown)) == (model.config.num_hidden_layers, 0)
    assert_same_tokens("genai", model, folder, grown)
    tokenizer = genai.Tokenizer(genai.Model(str(folder)))
    assert list(tokenizer.encode("b c")) == [1, 63, 2]
    assert tokenizer.apply_chat_template('[{"role": "x", "content": "b"}]') == "<x>b"


ARCHITECTURES = [
    *((kind, None) for kind in ("gemma2", "gemma3_text", "gemma4_text", "deepseek_v3")),
    *((kind, "cpu") for kind in ("qwen3", "mistral", "gemma3_text", "phi3")),
]


@pytest.mark.thorough
@pytest.mark.usefixtures("genai")
@pytest.mark.parametrize(("kind", "fusions"), ARCHITECTURES, ids=str)
def test_architectures_in_genai(kind: str, fusions: Any, tmp_path: Path) -> None:
    model = model_of(kind)
    exported = rx.export_generation(model, tmp_path / "made", names="genai", fusions=fusions)
    counts_padding = PADDED in exported.reports["model"].notes
    assert counts_padding == (kind in ("mistral", "gemma2", "gemma3_text", "gemma4_text"))
    config = json.loads((tmp_path / "made/genai_config.json").read_text())
    assert config["search"]["past_present_share_buffer"] == (fusions is not None)
    assert unlike("genai", model, tmp_path / "made") <= ({"padded"} if counts_padding else set())


@pytest.mark.thorough
@pytest.mark.usefixtures("genai")
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int4"])
def test_the_folder_of_the_builder_in_every_command(
    precision: str, source: Path, tmp_path: Path
) -> None:
    """fp16 has norms in its attention, which ONNX Runtime's CPU provider does not run."""
    model = model_of("qwen3", vocab_size=80)  # by which the builder knows the head
    model.save_pretrained(tmp_path / "hf")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, tmp_path / "hf")
    build = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", tmp_path / "hf"]
    build += ["-o", tmp_path / "built", "-p", precision, "-c", tmp_path / "cache"]
    build += ["-e", "cuda" if precision == "fp16" else "cpu"]
    subprocess.run(build, check=True, capture_output=True)
    built, ours = tmp_path / "built", tmp_path / "ours"
    assert main(["inspect", "--require", "all", str(built)]) == 0
    assert main(["optimize", str(built), "-o", str(ours)]) == 0
    assert main(["package", str(ours), "-o", str(tmp_path / "models")]) == 0
    outcome = rx.verify(tmp_path / "hf", ours, generate=8)
    same = {"fp32": "agree", "fp16": "not run", "int4": "differ"}
    assert outcome.verdict == same[precision]
    if precision == "fp32":
        assert_same_tokens("genai", model, ours)


# Disagreements.


def _rename(folder: Path, before: str, after: str) -> None:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    for value in (*model.graph.input, *model.graph.output):
        value.name = value.name.replace(before, after)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace(before, after) for name in names]
    onnx.save(model, folder / "model.onnx")


def _say(folder: Path, name: str, value: str) -> None:
    config = json.loads((path := folder / "genai_config.json").read_text())
    config["model"]["decoder"]["outputs"][name] = value
    path.write_text(json.dumps(config))


DISAGREEMENTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no such graph": (lambda f: (f / "model.onnx").rename(f / "other.onnx"), "no file"),
    "another cache": (lambda f: _rename(f, "past_key_values.", "cache."), "layers none"),
    "a layer is not given": (lambda f: _rename(f, "present.1.key", "grown"), "it gives 0"),
    "values follow keys": (
        lambda f: _say(f, "present_key_names", "present.%d.value"),
        "is to follow",
    ),
    "logits are a cache": (lambda f: _say(f, "logits", "present.0.key"), "no logits"),
    "no JSON": (lambda f: (f / "genai_config.json").write_text("{"), "genai_config"),
    "a path": (
        lambda f: (f / "genai_config.json").write_text(
            '{"model": {"decoder": {"filename": "../model.onnx"}}}'
        ),
        "lies outside",
    ),
}


@pytest.mark.parametrize("case", DISAGREEMENTS)
def test_names_files_and_graphs_that_disagree_are_refused(
    case: str, broken: Path, tmp_path: Path
) -> None:
    change, message = DISAGREEMENTS[case]
    change(broken)
    with pytest.raises(rx.InputError, match=message):
        rx.optimize(broken)
    for command in ("inspect", "optimize", "package"):
        place = [] if command == "inspect" else ["-o", str(tmp_path / "out")]
        assert main([command, str(broken), *place]) == ExitCode.INPUT
    assert not (tmp_path / "out").exists()


def test_one_buffer_of_a_graph_that_makes_two_is_refused(
    grown: Path, source: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(grown, tmp_path / "copy"))
    config = json.loads((copy / "genai_config.json").read_text())
    config["search"]["past_present_share_buffer"] = True
    (copy / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(rx.InputError, match="in the buffer of"):
        rx.verify(source, copy, generate=3)


@pytest.mark.parametrize("names", ["optimum", "genai"])
@pytest.mark.parametrize(
    "case", ["a fixed size", pytest.param("mamba2", marks=pytest.mark.thorough)]
)
def test_a_cache_that_a_consumer_cannot_hold_is_refused(
    names: str, case: str, tmp_path: Path
) -> None:
    model = decoder_of("llama" if case == "a fixed size" else case)
    static = 16 if case == "a fixed size" else None
    what = r"held by|cannot hold|no decode of several|no graph is both|cannot be exported"
    with pytest.raises(rx.Error, match=what):
        rx.export_generation(model, tmp_path / "made", names=names, static_cache=static)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("option", ["--verify", "--fusions"])
def test_without_onnxruntime_nothing_is_written(
    option: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    command = ["export", source, "--task", "generation", "-o", tmp_path / "made", option]
    command += ["cpu"] * (option == "--fusions") + ["--names", "genai"]
    assert main([str(argument) for argument in command]) == ExitCode.BACKEND
    assert "pip install" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_keys_and_values_of_unlike_width_are_refused_for_genai() -> None:
    """As those of DeepSeek, which are computed from what is cached."""
    graph = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
        g (float[batch, 1, past, 16] key, float[batch, 1, past, 8] value)
        => (float[batch, 1, past, 24] y) { y = Concat <axis = 3> (key, value) }""").graph
    for value in graph.inputs:
        value.name = f"past_key_values.0.{value.name}"
    with pytest.raises(rx.UsageError, match=r"held by genai") as caught:
        genai_config(decoder_of("llama"), graph)
    assert "past_key_values.0.value [batch,1,past,8]" in caught.value.found


def test_a_wrong_graph_of_one_decoder_differs(broken: Path, source: Path) -> None:
    model = onnx.load(broken / "model.onnx", load_external_data=False)
    (scale,) = (one for one in model.graph.initializer if one.name.endswith("norm.weight"))
    scale.raw_data = np.full(64, 1.1, np.float32).tobytes()
    onnx.save(model, broken / "model.onnx")
    assert rx.verify(source, broken, generate=3).verdict == "differ"


# optimum.


@pytest.fixture(scope="session")
def optimum(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with optimum-onnx, which needs transformers before 5."""
    place = os.environ.get("RMSNORM_EXPORT_OPTIMUM") or str(tmp_path_factory.mktemp("optimum"))
    needed = ["optimum-onnx", "optimum==2.1.*", "transformers==4.57.*", "huggingface_hub<1"]
    needed += ["tokenizers<0.23", "requests", "urllib3", "charset_normalizer", "idna", "certifi"]
    if not os.listdir(place):
        pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", place, *needed]
        if (done := subprocess.run(pip, capture_output=True, text=True)).returncode:
            pytest.skip(f"{' '.join(pip)}: {done.stderr[-200:]}")
    return place


IN_OPTIMUM = ["qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "deepseek_v3", *ENCODED]


def test_optimum_writes_the_tokens_of_pytorch(
    optimum: str, later: dict[str, Path], source: Path, tmp_path: Path
) -> None:
    """Greedily, with beams, and at random with a seed; a row is padded on the left."""
    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    made = rx.optimize(later["optimum"], fusions="cpu").save(tmp_path / "fused").path
    assert (fused(made), fused(later["optimum"])) == (model.config.num_hidden_layers, 0)
    assert_same_tokens("optimum", model, made, later["optimum"], python=python_with(optimum))


def python_with(folder: str) -> str:
    return f"env PYTHONPATH={folder} {sys.executable}"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", IN_OPTIMUM)
def test_architectures_in_optimum(kind: str, optimum: str, tmp_path: Path) -> None:
    model = model_of(kind)
    rx.export_generation(model, tmp_path / "made", names="optimum")
    assert_same_tokens("optimum", model, tmp_path / "made", python=python_with(optimum))


@pytest.mark.parametrize("kind", [pytest.param("gemma3_text", marks=pytest.mark.thorough), "phi3"])
def test_one_graph_holds_all_tokens_behind_a_window(kind: str, tmp_path: Path) -> None:
    """Phi-3's empty cache comes with other heads from optimum: they are left open."""
    model = model_of(kind, num_hidden_layers=1, sliding_window=8)
    fusions: Any = "cpu" if kind == "phi3" else None
    rx.export_generation(model, tmp_path / "made", names="optimum", fusions=fusions)
    session = InferenceSession(tmp_path / "made/model.onnx")
    heads = {value.shape[1] for value in session.get_inputs() if ".key" in value.name}
    assert heads == {"heads" if kind == "phi3" else 2}
    assert verify_generation(model, tmp_path / "made", {}, tokens=24).passed
    ids, logits = np.array([[1, 5, 9]]), []
    for count in (2, 4):
        past = np.zeros((1, count if kind == "phi3" else 2, 0, 16), np.float32)
        feeds = dict.fromkeys((v.name for v in session.get_inputs()), past)
        feeds |= {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        feeds["position_ids"] = np.arange(3)[None]
        logits.append(session.run(["logits"], feeds)[0])
    assert np.array_equal(*logits)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved T5, and beside it its export for optimum."""
    folder = tmp_path_factory.mktemp("encoded")
    decoder_of("t5").save_pretrained(folder / "saved")
    exported(folder / "saved", folder / "made", "--names", "optimum", "--verify")
    return folder


def test_an_encoder_and_its_decoder_are_named_as_optimum_reads_them(encoded: Path) -> None:
    """It gives the cache by the order of the inputs; the states of the encoder are given once."""
    sessions = {path.stem: InferenceSession(path) for path in encoded.glob("made/*.onnx")}
    inputs = {name: [value.name for value in one.get_inputs()] for name, one in sessions.items()}
    outputs = {name: [value.name for value in one.get_outputs()] for name, one in sessions.items()}
    layers = [f"{n}.{side}.{k}" for n in (0, 1) for side in SIDES for k in ("key", "value")]
    own = [f"present.{layer}" for layer in layers if "decoder" in layer]
    assert {name: set(some) for name, some in inputs.items() if "past" not in name} == {
        "encoder_model": {"input_ids", "attention_mask"},
        "decoder_model": {"input_ids", "encoder_hidden_states", "encoder_attention_mask"},
    }
    ids, mask, *past = inputs["decoder_with_past_model"]
    assert {ids, mask} == {"input_ids", "encoder_attention_mask"}
    assert past == [f"past_key_values.{layer}" for layer in layers]
    assert outputs == {
        "encoder_model": ["last_hidden_state"],
        "decoder_model": ["logits", *(f"present.{layer}" for layer in layers)],
        "decoder_with_past_model": ["logits", *own],
    }


def test_weights_of_an_encoder_and_two_decoders_are_stored_once(encoded: Path) -> None:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(encoded / "saved")
    stored = sum(path.stat().st_size for path in encoded.glob("made/*.data"))
    assert stored <= sum(weight.nbytes for weight in model.parameters())


@pytest.mark.parametrize("graph", ["encoder_model", "decoder_model", "decoder_with_past_model"])
def test_a_wrong_graph_beside_others_differs(graph: str, encoded: Path, tmp_path: Path) -> None:
    """As one of a folder that another program has written."""
    broken = Path(shutil.copytree(encoded / "made", tmp_path / "broken"))
    assert rx.verify(encoded / "saved", broken, generate=3).passed
    model = onnx.load(broken / f"{graph}.onnx", load_external_data=False)
    scale = next(one for one in model.graph.initializer if one.name.endswith("norm.weight"))
    scale.raw_data = np.full(32, 1.5, np.float32).tobytes()
    onnx.save(model, broken / f"{graph}.onnx")
    assert rx.verify(encoded / "saved", broken, generate=3).verdict == "differ"


def test_a_folder_with_a_graph_too_many_is_not_put_together(encoded: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(encoded / "made", tmp_path / "folder"))
    shutil.copy(folder / "decoder_model.onnx", folder / "decoder_model_merged.onnx")
    with pytest.raises(rx.Error, match="not put together") as caught:
        rx.verify(encoded / "saved", folder, generate=3)
    assert "decoder_model_merged" in caught.value.found


def test_an_input_that_optimum_does_not_give_is_refused(tmp_path: Path) -> None:
    """Moonshine reads sound as samples, which is seen before its graphs are traced."""
    with torch.device("meta"):
        model = transformers.MoonshineForConditionalGeneration(transformers.MoonshineConfig())
    with pytest.raises(rx.UsageError, match="all that it reads") as caught:
        rx.export_generation(model, tmp_path / "made", names="optimum")
    assert "input_values" in caught.value.found
    assert not (tmp_path / "made").exists()
    decode = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
        g (float[batch] speaker) => (float[batch] logits) { logits = Neg (speaker) }""")
    with pytest.raises(rx.UsageError, match="all that it reads"):
        name_by_layer(decode, {}, "optimum", OF_DECODER)
