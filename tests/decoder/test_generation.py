"""Decoders with their caches: exported as users do, run token by token, compared with PyTorch."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import runpy
import shutil
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("transformers.exporters.metadata", reason="pip install 'transformers>=5.23'")

import onnx_ir as ir
import torch
import transformers
from onnxruntime import InferenceSession

import rmsnorm_export as rx
from rmsnorm_export.decoder.components import trace_components
from rmsnorm_export.decoder.generation import verify_generation
from rmsnorm_export.decoder.inputs import sample_inputs
from rmsnorm_export.decoder.options import GenerationOptions
from rmsnorm_export.decoder.source import load_generative
from rmsnorm_export.runtime.session import open_session
from rmsnorm_export.torch.source.load import SourceOptions
from tests.decoder.conftest import Folder, served
from toolbox.corpus.decoders import decoder as decoder_of

pytestmark = [pytest.mark.export, pytest.mark.slow]

NORMS = [
    *(f"model.layers.{i}.{name}_layernorm" for i in (0, 1) for name in ("input", "post_attention")),
    "model.norm",
]


def llama(**changes: Any) -> Any:
    return decoder_of("llama", **changes)


@pytest.fixture
def broken(decoder: Path, tmp_path: Path) -> Path:
    """A copy, to be broken."""
    return Path(shutil.copytree(decoder, tmp_path / "broken"))


def source(decoder: Path) -> Path:
    return decoder.parent / "config.json"


def set_scale(path: Path, value: float) -> None:
    """Change the last norm."""
    model = onnx.load(path, load_external_data=False)
    (scale,) = (one for one in model.graph.initializer if one.name == "model.norm.weight")
    scale.raw_data = np.full(32, value, np.float32).tobytes()
    onnx.save(model, path)


def shapes(values: Any) -> dict[str, list[str | int]]:
    return {
        one.name: [dim.dim_param or dim.dim_value for dim in one.type.tensor_type.shape.dim]
        for one in values
    }


def test_every_norm_is_one_proved_node_named_after_its_module(decoder: Path) -> None:
    report = json.loads((decoder.parent / "r.json").read_text())
    assert list(report["reports"]) == ["prefill", "decode"]
    for one in report["reports"].values():
        assert [site["module"] for site in one["fused"]] == NORMS
        assert all(site["proof"]["passed"] for site in one["fused"])
        assert one["refused"] == []
    assert report["verification"]["passed"]
    assert "64 of 64 greedy tokens are the same" in report["verification"]["notes"]


def test_inputs_and_dimensions_have_the_names_that_users_know(decoder: Path) -> None:
    graph = onnx.load(decoder / "decode.onnx", load_external_data=False).graph
    inputs, outputs = shapes(graph.input), shapes(graph.output)
    assert inputs["input_ids"] == ["batch", 1]
    assert inputs["attention_mask"] == ["batch", "past + 1"]
    # The first word is an argument of transformers' models: past_key_values, then cache.
    (keys,) = (name for name in inputs if name.endswith(".layers.1.keys"))
    assert inputs[keys] == ["batch", 2, "past", 8]
    assert outputs[keys.replace("input.", "output.")] == ["batch", 2, "past + 1", 8]
    assert outputs["logits"] == ["batch", 1, 64]
    prefill = onnx.load(decoder / "prefill.onnx", load_external_data=False).graph
    names = ("input_ids", "attention_mask", "position_ids")
    assert shapes(prefill.input) == {name: ["batch", "sequence"] for name in names}


def test_weights_are_on_disk_once(decoder: Path, broken: Path) -> None:
    parameters = llama().parameters()
    weights = sum(p.numel() * p.element_size() for p in parameters if p.ndim > 1)
    stored = sum(path.stat().st_size for path in decoder.glob("*.data"))
    assert weights <= stored <= 1.05 * weights
    for name in ("prefill", "decode"):  # a copy as an upload would make it: no links
        InferenceSession(broken / f"{name}.onnx", providers=["CPUExecutionProvider"])


def test_checked_graphs_are_run(
    decoder: Path, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands in their files by the time that ONNX Runtime gets them."""
    checked = {path: path.read_bytes() for path in broken.glob("*.onnx")}

    def while_swapped(content: bytes, **options: object) -> object:
        for path in checked:
            path.write_bytes(b"another file")
        try:
            return open_session(content, **options)  # type: ignore[arg-type]
        finally:
            for path, before in checked.items():
                path.write_bytes(before)

    monkeypatch.setattr("rmsnorm_export.decoder.named.open_session", while_swapped)
    assert rx.verify(source(decoder), broken, generate=2).passed


def test_transformers_generates_with_the_folder(decoder: Path) -> None:
    """Its own loader reads the manifest, and its runners take and give its caches."""
    exported = pytest.importorskip("transformers.exporters.base").ExportedModel
    runners = exported.from_pretrained(decoder, device="cpu").runners
    ids = torch.tensor([[5, 9, 11, 7]])

    def text(start: int, end: int) -> dict[str, torch.Tensor]:
        mask, places = torch.ones((1, end), dtype=torch.int64), torch.arange(start, end)[None]
        return {"input_ids": ids[:, start:end], "attention_mask": mask, "position_ids": places}

    model, _, _ = load_generative(str(source(decoder)), SourceOptions(), seed=0)
    begun = runners["prefill"](**text(0, 3))
    (cache,) = {"cache", "past_key_values"} & begun.keys()
    ended = runners["decode"](**text(3, 4), **{cache: begun[cache]})
    with torch.no_grad():
        expected = model(ids).logits
    torch.testing.assert_close(torch.cat([begun.logits, ended.logits], dim=1), expected)


def test_nothing_that_a_manifest_names_is_run(decoder: Path, broken: Path) -> None:
    """transformers' own loader calls the classes by which a manifest describes its outputs."""
    call = {"_t": "seq", "p": "os:system", "v": [f"touch {broken}/ran"]}
    cache = "transformers.cache_utils:DynamicCache"
    node = {"type": cache, "context": json.dumps(call), "children_spec": []}
    manifest = json.loads((broken / "export.json").read_text())
    for entry in manifest["components"].values():
        entry["metadata"] |= {"in_spec": json.dumps([1, node]), "out_spec": json.dumps([1, node])}
    (broken / "export.json").write_text(json.dumps(manifest))
    assert rx.verify(source(decoder), broken, generate=2).passed
    rx.optimize(broken, target="plain").save(broken, force=True)
    assert not (broken / "ran").exists()


def test_verify_compares_tokens_and_says_which_differ(decoder: Path, broken: Path) -> None:
    same = rx.verify(source(decoder), decoder, generate=4)
    assert same.passed
    assert len(same.outputs) == 4
    set_scale(broken / "decode.onnx", 1.01)
    other = rx.verify(source(decoder), broken, generate=4)
    assert other.verdict == "differ"
    assert [output.passed for output in other.outputs] == [True, False, False, False]
    assert "logits of token 2" in other.reason
    folders = rx.verify(decoder, broken)  # each graph by itself, on random inputs
    assert {one.name.partition(":")[0] for one in folders.outputs if not one.passed} == {"decode"}
    site = folders.first_difference and folders.first_difference.site
    assert site is not None
    assert (site.module, site.place) == ("model.norm", "at")


def test_an_export_without_a_finite_logit_is_no_pass(decoder: Path, broken: Path) -> None:
    set_scale(broken / "prefill.onnx", np.nan)
    assert not rx.verify(source(decoder), broken, generate=2).passed


def test_half_precision_has_its_own_bound(decoder: Path) -> None:
    """The weights in half precision, and an export that is float32."""
    model, _, _ = load_generative(str(source(decoder)), SourceOptions(dtype="f16"), seed=0)
    feeds = sample_inputs(model, {})
    assert verify_generation(model, decoder, feeds, tokens=3).passed
    outcome = verify_generation(model, decoder, feeds, tokens=3, rtol=1e-6)
    assert outcome.verdict == "differ"


FOREIGN: dict[str, tuple[str, str, type[rx.Error], str]] = {
    "a graph": ("config.json", "made/decode.onnx", rx.UsageError, "folder of an export"),
    "no source": ("made", "broken", rx.UsageError, "folder of an export"),
    "export.json": ("config.json", "broken", rx.InputError, "manifest"),
    "decode.onnx": ("config.json", "broken", rx.InputError, r"decode\.onnx"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_is_no_folder_of_an_export_is_refused(case: str, decoder: Path, broken: Path) -> None:
    *names, kind, message = FOREIGN[case]
    if (broken / case).exists():
        (broken / case).write_text("{")
    a, b = (broken if name == "broken" else decoder.parent / name for name in names)
    with pytest.raises(kind, match=message):
        rx.verify(a, b, generate=2)


CLIENT = Path(__file__).resolve().parents[2] / "docs/examples/triton_decoder.py"


def assert_generates(
    model: Any, ids: np.ndarray, mask: np.ndarray, sessions: dict[str, InferenceSession]
) -> None:
    """Twelve tokens that the client of the examples takes from prefill and decode are PyTorch's."""
    batch = {"attention_mask": torch.tensor(mask), "pad_token_id": 0, "eos_token_id": []}
    how = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    expected = model.generate(torch.tensor(ids), **batch, **how)
    tokens = runpy.run_path(str(CLIENT))["generate"](*served(sessions), ids, mask, 12)
    np.testing.assert_array_equal(tokens, expected[:, ids.shape[1] :])


def test_the_client_of_the_examples_generates(decoder: Path, tmp_path: Path) -> None:
    """After a padded batch, and after a longer one, by sessions for a server."""
    packaged = rx.package_model(decoder, tmp_path / "models", name="llm", kind="cpu").models
    assert [model.name for model in packaged] == ["llm_prefill", "llm_decode"]
    paths = {model.name: tmp_path / "models" / model.name / "1/model.onnx" for model in packaged}
    sessions = {name: InferenceSession(path) for name, path in paths.items()}
    model, _, _ = load_generative(str(source(decoder)), SourceOptions(), seed=0)
    for length in (3, 10):
        ids = np.random.default_rng(length).integers(2, 64, (2, length))
        mask = np.ones_like(ids)
        mask[0, 0] = 0
        assert_generates(model, ids, mask, sessions)


def test_one_graph_with_the_names_of_optimum(one_graph: Folder) -> None:
    """From an empty cache, as a server that knows nothing of transformers would run it."""
    model, place = one_graph
    assert (place / "notes.txt").read_text() == "mine"
    assert not (place / "export.json").exists()
    session = InferenceSession(place / "model.onnx")
    sizes = {value.name: value.shape for value in session.get_inputs()}
    assert sizes["past_key_values.0.key"] == ["batch", 2, "past", 16]
    assert sizes["attention_mask"] == ["batch", "past + sequence"]
    ids, mask = np.array([[5, 9, 11], [7, 8, 1]]), np.array([[0, 1, 1], [1, 1, 1]])
    assert_generates(model, ids, mask, {"prefill": session, "decode": session})


@pytest.mark.parametrize("names", ["transformers", "optimum"])
def test_states_need_no_names_of_the_exporter(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was not tried may call them otherwise: what they are is read in the cache."""
    tried = importlib.import_module("rmsnorm_export.decoder.export")
    monkeypatch.setattr(tried, "TRANSFORMERS", "transformers<5")
    utils = importlib.import_module("transformers.exporters.utils")
    leaves = utils.get_leaf_tensors

    def renamed(values: Any) -> dict[str, Any]:
        cut = ((*path.partition(".layers."), tensor) for path, tensor in leaves(values).items())
        return {f"memory.{tail[::-1]}" if at else path: tensor for path, at, tail, tensor in cut}

    monkeypatch.setattr(utils, "get_leaf_tensors", renamed)
    model, place = llama(num_hidden_layers=1), tmp_path / "made"
    reports = rx.export_generation(model, place, names=names, multi_token=True).reports
    sentence = f"transformers {transformers.__version__} was not tried, transformers<5 was"
    assert all(sentence in report.notes for report in reports.values())
    file = place / ("model.onnx" if names == "optimum" else "decode.onnx")
    inputs = shapes(onnx.load(file, load_external_data=False).graph.input)
    start = "past_key_values." if names == "optimum" else "input.memory."
    sizes = [size for name, size in inputs.items() if name.startswith(start)]
    assert sizes == [["batch", 2, "past", 8]] * 2
    if names == "transformers":
        assert verify_generation(
            model, place, {"input_ids": torch.tensor([[5, 9, 11]])}, tokens=4
        ).passed


def sizeless() -> Any:
    model = decoder_of("llava")
    model.config.vision_config.image_size = None
    return model


TEXT = {"input_ids": torch.tensor([[5, 6]])}
BOTH = {"names": "optimum", "multi_token": True}
REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], type[rx.Error], str]] = {
    "no head": (lambda: llama().model, {}, rx.InputError, "that generates"),
    "a name": (lambda: "a folder", {}, rx.InputError, "give a model of from_pretrained"),
    "no image": (lambda: decoder_of("llava"), {"inputs": TEXT}, rx.InputError, "--part language-m"),
    "unknown images": (sizeless, {}, rx.InputError, "--part language-model"),
    "one graph": (lambda: decoder_of("llava"), {"multi_token": True}, rx.UsageError, "omit it"),
    "a long cache": (llama, {"static_cache": 65}, rx.UsageError, "7 to 64"),
    "t5": (lambda: decoder_of("t5"), {"names": "genai"}, rx.UsageError, "encoder, prefill"),
    "t5 as one graph": (lambda: decoder_of("t5"), BOTH, rx.UsageError, "encoder, prefill"),
    "a folder in use": (llama, {"path": "."}, rx.UsageError, "not empty"),
    "a file": (llama, {"path": "notes.txt"}, rx.InputError, "is no folder"),
    "no folder": (llama, {"path": "a/b"}, rx.InputError, "No such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exported_is_refused(case: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    model, options, kind, message = REFUSED[case]
    place = tmp_path / options.get("path", "made")
    with pytest.raises(kind, match=message):
        rx.export_generation(model(), place, **{k: v for k, v in options.items() if k != "path"})
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("taken", "given", "understood"),
    [("input.{}", "output.{}", True), ("in.{}", "out.{}", False), ("{}", "{}.next", False)],
)
def test_a_structure_that_is_not_understood_is_refused(
    taken: str, given: str, understood: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a later release of transformers may call what a graph takes and gives."""
    exporter = importlib.import_module("transformers.exporters.exporter_onnx")
    utils = importlib.import_module("transformers.exporters.utils")

    def unchanged(_: Any, __: Any, feeds: dict[str, Any], **___: Any) -> tuple[ir.Model, Any]:
        """A graph that gives its inputs back."""
        values, kind = [], ir.TensorType(ir.DataType.FLOAT)
        for path, tensor in utils.get_leaf_tensors(feeds).items():
            shape = ir.Shape([*tensor.shape])
            values.append(ir.Value(name=taken.format(path), shape=shape, type=kind))
        nodes = [ir.node("Identity", [value]) for value in values]
        for node, path in zip(nodes, utils.get_leaf_tensors(feeds), strict=True):
            node.outputs[0].name = given.format(path)
        outputs = [node.outputs[0] for node in nodes]
        graph = ir.Graph(values, outputs, nodes=nodes, opset_imports={"": 18})
        return ir.Model(graph, ir_version=10), types.SimpleNamespace()

    monkeypatch.setattr(exporter.OnnxExporter, "export_program", unchanged)
    model, options = llama(num_hidden_layers=1), GenerationOptions(multi_token=True)
    refused = pytest.raises(rx.InputError, match="is not understood")
    with contextlib.nullcontext() if understood else refused:
        trace_components(model, sample_inputs(model, {}), options)


def test_a_model_that_branches_on_values_is_refused(tmp_path: Path) -> None:
    """BART clamps what its encoder gives where it overflows, in half precision alone."""
    with pytest.raises(rx.InputError, match="--dtype f32"):
        rx.export_generation(decoder_of("bart", torch.float16), tmp_path / "made")


def test_a_graph_of_some_lengths_says_so(
    static: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those for which its trace is right: test_generation_guards.py reads them off one."""
    export = importlib.import_module("rmsnorm_export.decoder.export")
    trace = export.trace_components

    def limited(*arguments: Any) -> Any:
        components, log = trace(*arguments)
        lengths = {"prefill": (5, 8), "decode": None}
        return [dataclasses.replace(one, lengths=lengths[one.name]) for one in components], log

    monkeypatch.setattr(export, "trace_components", limited)
    made = rx.export_generation(static[0], tmp_path / "made", static_cache=16)
    notes = {name: " ".join(report.notes) for name, report in made.reports.items()}
    assert "takes prompts of 5 to 8 tokens alone" in notes["prefill"]
    assert notes["decode"] == ""


def test_more_tokens_than_there_are_places_are_refused(decoder: Path, static: Folder) -> None:
    with pytest.raises(rx.UsageError, match="5 and 61 tokens, in 64 positions") as caught:
        rx.verify(source(decoder), decoder, generate=61)
    assert caught.value.fix == "compare 60 at most"
    model, made = static
    assert verify_generation(model, made, {}, tokens=12).passed
    with pytest.raises(rx.UsageError, match="5 and 13 tokens, in a cache for 16"):
        verify_generation(model, made, {}, tokens=13)


def test_fusions_follow_and_the_folder_still_generates(decoder: Path, tmp_path: Path) -> None:
    """The attention takes its cache in; as many norms are one node as without."""
    fused = rx.optimize(decoder, fusions="cpu")
    for report in fused.reports.values():
        assert (report.target, report.unfused, len(report.fused)) == ("ort", (), 5)
        fusions = report.fusions
        assert fusions is not None
        assert fusions.left_out == fusions.problem == fusions.not_compared == ""
        assert fusions.compared.startswith("5 outputs differ by at most")
        assert fusions.operators["GroupQueryAttention"] == (0, 2)
    written = fused.save(tmp_path / "fused")
    sizes = [sum(p.stat().st_size for p in f.glob("*.data")) for f in (decoder, written.path)]
    assert sizes[1] <= 1.05 * sizes[0]
    manifest = json.loads((written.path / "export.json").read_text())
    config = manifest["components"]["decode"]["metadata"]["export_config"]
    assert config["ort_fusions"] == "cpu"
    outcome = rx.verify(source(decoder), written.path, generate=4)
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
def test_where_a_fusion_is_wrong_there_is_none(
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
    counts = (Counter(n.op_type for n in one.model.graph) for one in (result, without))
    left, before = counts
    assert not left - before
    words = f"constants folded: {before.total()} to {left.total()} nodes"
    assert fusions.summary() == f"fusions for cpu: nothing fused, and {words}"
