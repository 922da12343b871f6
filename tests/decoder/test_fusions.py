"""Fusions of ONNX Runtime in every form of a decoder, and what is said where one is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("transformers.exporters.metadata", reason="pip install 'transformers>=5.23'")

import transformers

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.decoder.attention import (
    UNKNOWN,
    WRITTEN,
    attentions,
    cap_of,
    leave_unseen_rows,
)
from rmsnorm_export.decoder.bundle import states_of
from rmsnorm_export.decoder.fusions import ROTARY, fuse, references_of
from rmsnorm_export.decoder.generation import verify_generation
from rmsnorm_export.decoder.tokens import Held
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.proof.comparison import opened
from rmsnorm_export.rewrite.result import Fusions
from rmsnorm_export.runtime.inputs import graph_inputs, make_inputs
from rmsnorm_export.runtime.session import run_session
from rmsnorm_export.runtime.sizes import input_shapes
from tests.decoder.conftest import Folder, model_of
from tests.tools.tables import table
from toolbox.trained import INSTALL, trained_model

pytestmark = [pytest.mark.export, pytest.mark.slow]

GRAPHS = table(__file__)
THOROUGH = pytest.mark.thorough
STEPS = [
    "exporting to ONNX",
    "exporting to ONNX: decode",
    "recognising the norms: decode",
    "running the graph before its fusions",
    "fusing",
    "comparing the fused graph",
]
"""What an export tells while it works: each takes more than some seconds of a real model."""


def exported(kind: str, place: Path, **options: object) -> tuple[object, Fusions]:
    model = model_of(kind)
    made = rx.export_generation(model, place, fusions="cpu", **options)
    (report,) = made.reports.values()
    assert report.fusions is not None
    return model, report.fusions


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {"names": "optimum"}),
        *(
            pytest.param(kind, {"names": "optimum"}, marks=THOROUGH)
            for kind in ("gemma2", "mistral", "qwen3", "gemma3_text", "phi3")
        ),
        pytest.param("llama", {"multi_token": True}, marks=THOROUGH),
    ],
    ids=str,
)
def test_one_graph_is_fused_as_two_are(
    kind: str, options: dict[str, object], tmp_path: Path
) -> None:
    """A row of the two is padded on the left."""
    steps: list[str] = []
    options = {**options, "progress": lambda work, *_: steps.append(work)}
    model, fusions = exported(kind, tmp_path / "made", **options)
    assert [*dict.fromkeys(steps)] == STEPS
    assert fusions.operators["GroupQueryAttention"] == (0, 2)
    assert fusions.operators["Softmax"] == (2, 0)
    assert (fusions.left_out, fusions.apart, fusions.one_row) == (ROTARY, {}, True)
    outcome = verify_generation(model, tmp_path / "made", {}, tokens=8)
    assert outcome.passed
    assert outcome.notes[0] == "16 of 16 greedy tokens are the same"


@pytest.mark.parametrize(
    ("low", "sums", "kept"),
    [("-3.4e38", "rows", False), ("-inf", "rows", True), ("-3.4e38", "others", True)],
)
def test_rows_that_see_nothing_are_not_chosen(low: str, sums: str, kept: bool) -> None:
    """With -inf ONNX Runtime 1.30 and before give nan there, which spreads to other rows."""
    mask = "rows" if sums == "rows" else "other_rows"
    model = ir.from_onnx_text(GRAPHS["unseen"].replace("LOW", low).replace("SUMS", mask))
    by_name = {value.name: value for node in model.graph for value in node.outputs}
    by_name["chosen"].shape = ir.Shape([1, "s", 32])
    leave_unseen_rows(model)
    assert [node.op_type for node in model.graph].count("Where") == 1 + kept
    assert kept or by_name["seen"].shape == [1, "s", 32]  # which quantizing asks for


@pytest.mark.parametrize("form", ["one_graph", "static", "decoder"])
def test_fusions_are_compared_on_the_cache_that_a_text_leaves(
    form: str, request: pytest.FixtureRequest
) -> None:
    """A token after a text has the logits that it has at the end of it."""
    made = request.getfixturevalue(form)
    folder: Path = made if form == "decoder" else made[1]
    graphs = [load_model(file).model for file in sorted(folder.glob("*.onnx"))[::-1]]
    held = Held()
    prompt, token = (one for graph in graphs for one in references_of(graph, seed=0, held=held))
    longer = dict(prompt.feeds)
    for name in ("input_ids", "position_ids"):
        longer[name] = np.concatenate([prompt.feeds[name], token.feeds[name]], axis=1)
    masks = [one.feeds["attention_mask"] for one in (prompt, token)]
    longer["attention_mask"] = masks[1] if masks[0].ndim == 2 else np.concatenate(masks, axis=2)
    with opened(graphs[0]) as session:
        expected = run_session(session, longer)["logits"][:, -1:]
    np.testing.assert_allclose(token.outputs["logits"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "reason"), [("gpt_oss", "a sink"), ("deepseek_v3", "computed from what is cached")]
)
def test_an_attention_that_is_left_says_why(kind: str, reason: str, tmp_path: Path) -> None:
    _, fusions = exported(kind, tmp_path / "made", names="optimum")
    ((words, layers),) = fusions.apart.items()
    assert reason in words
    assert layers == ("0", "1")
    assert not fusions.one_row


def test_a_cache_of_fixed_size_that_was_exported_without_fusions_says_why(static: Folder) -> None:
    reports = rx.optimize(static[1], fusions="cpu").reports
    reasons = {part: report.fusions.apart for part, report in reports.items() if report.fusions}
    assert reasons == {part: {WRITTEN: ("0",)} for part in ("prefill", "decode")}


def test_a_prompt_that_fills_a_cache_of_fixed_size_attends_to_its_own_tokens(
    tmp_path: Path,
) -> None:
    """One node, where it would take the places behind them; a row of the two is padded."""
    model = model_of("llama", num_hidden_layers=1)
    export = rx.export_generation(model, tmp_path / "made", static_cache=16, fusions="cpu")
    operators = [report.fusions.operators for report in export.reports.values() if report.fusions]
    assert [one["GroupQueryAttention"] for one in operators] == [(0, 1), (0, 1)]
    prefill = load_model(tmp_path / "made/prefill.onnx").model.graph
    assert [value.name for value in prefill.outputs if "unfused" in str(value.name)] == []
    assert not any(report.notes for report in export.reports.values())
    outcome = verify_generation(model, tmp_path / "made", {}, tokens=8)
    assert outcome.passed
    assert outcome.notes[0] == "16 of 16 greedy tokens are the same"


def attention(split: str, scores: str = "product") -> ir.Model:
    """One layer; of its queries nothing but ``split`` says how many heads they are."""
    text = GRAPHS["attention"].replace("SPLIT", split).replace("SCORES", scores)
    model = ir.from_onnx_text(text)
    for value in (*model.graph.inputs, *model.graph.outputs):
        name = str(value.name)
        if name[-1] in "kv":
            side = "past_key_values" if name.startswith("past") else "present"
            value.name = f"{side}.7.{'key' if name[-1] == 'k' else 'value'}"
    return model


def test_heads_that_are_not_known_are_refused_before_anything_runs() -> None:
    """As in a graph of TorchScript's exporter: no fusion of transformers takes one."""
    _, fusions = fuse(attention("sizes"), "cpu")
    assert (fusions.left_out, fusions.operators) == ("all of them", {})
    assert fusions.summary().endswith("nothing fused")
    assert UNKNOWN in fusions.problem
    assert not fusions.compared
    _, fusions = fuse(attention("two_heads"), "cpu")
    assert UNKNOWN not in fusions.problem
    assert fusions.compared


def test_a_cache_that_leaves_its_sizes_open_is_fused_and_stays_open(one_graph: Folder) -> None:
    """As an export does for optimum, which begins with an empty one of other sizes."""
    model = load_model(one_graph[1] / "model.onnx").model
    for value in model.graph.inputs:
        if value.shape is not None and len(value.shape) == 4:
            value.shape = ir.Shape([value.shape[0], "heads", value.shape[2], "width"])
    fused, fusions = fuse(model, "cpu")
    assert fusions.operators["GroupQueryAttention"] == (0, 2)
    declared = graph_inputs(fused)
    assert (declared[cache := next(iter(states_of(fused.graph)))].shape or ())[1::2] == (2, 16)
    assert next(v.shape for v in fused.graph.inputs if v.name == cache)[1] == "heads"
    shapes = input_shapes(declared, sizes=(1,)) | dict.fromkeys(
        states_of(fused.graph), (1, 7, 0, 3)
    )
    shapes["attention_mask"] = shapes["input_ids"]
    with opened(fused) as session:
        logits = run_session(session, make_inputs(declared, {}, shapes, seed=0))["logits"]
    assert np.isfinite(logits).all()


def test_why_nothing_was_fused_is_said_with_the_verdict_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ir.save(attention("sizes"), tmp_path / "in.onnx")
    command = ["optimize", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "-q"]
    assert main([*command, "--fusions", "cpu"]) == 0
    assert UNKNOWN in capsys.readouterr().out


@pytest.mark.parametrize(("scores", "cap"), [("product", None), ("capped", 3.0), ("bent", None)])
def test_a_cap_of_scores_is_known(scores: str, cap: float | None) -> None:
    graph = attention("two_heads", scores).graph
    assert cap_of(graph) == cap
    assert [one.layer for one in attentions(graph)] == ["7"]


@pytest.mark.thorough
def test_a_trained_model_is_fused_and_writes_the_tokens_of_pytorch(tmp_path: Path) -> None:
    if (source := trained_model()) is None:
        pytest.skip(INSTALL)
    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    made = rx.export_generation(model, tmp_path / "made", names="optimum", fusions="cpu")
    report = made.reports["model"]
    assert report.fusions is not None
    assert len(report.fused) == 61
    assert report.fusions.operators["GroupQueryAttention"] == (0, 30)
    words = transformers.AutoTokenizer.from_pretrained(source, padding_side="left")
    texts = ["The capital of France is", "Once upon a time there was a small dog who"]
    feeds = words(texts, return_tensors="pt", padding=True)
    inputs = {name: feeds[name] for name in ("input_ids", "attention_mask")}
    outcome = verify_generation(model, tmp_path / "made", inputs, tokens=32)
    assert outcome.passed
    assert outcome.notes[0] == "64 of 64 greedy tokens are the same"
