"""One entry shows every kind of result: its lines, its text and, where it has one, its page."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from pathlib import Path

import pytest
from html_pages import HOSTILE, Page, report, verification

from rmsnorm_export.deploy.packaged import Packaged, PackagedModel, ServedTensor
from rmsnorm_export.rewrite.result import GenerationExport
from rmsnorm_export.show import _HOMES, show_lines, to_html, to_text
from rmsnorm_export.show.page import About
from rmsnorm_export.tensorrt.engine.result import EngineNorm, EngineResult
from rmsnorm_export.tensorrt.plugin.result import CommandLines
from tests.benchmark.results import benchmark
from tests.engine.records import engine_record, profile


def engine(name: str = "layers.0.norm") -> EngineResult:
    """Two norms, one of which takes two kernels; every text of the model is ``name``."""
    norms = (
        EngineNorm(name, "RMSNorm", "node", "fused", 1, (name,)),
        EngineNorm(name, "SkipRMSNorm", "chain", "unfused", 2, (name, "kernel")),
    )
    record = engine_record(
        model=name,
        backend="tensorrt-rtx",
        gpus=(),
        profiles=(profile((1, 1), (4, 128), (8, 2048), name=name),),
        norms=norms,
        messages=(name,),
        notes=(name,),
    )
    return EngineResult(Path("out/model.engine"), Path("out/model.engine.json"), record)


def packaged(name: str = "ids") -> Packaged:
    """A model of one input and one output with one file, every text of which is ``name``."""
    tensor = ServedTensor(name, "TYPE_INT64", (-1, 16))
    model = PackagedModel(
        "net", 2, "onnxruntime", 8, (tensor,), (tensor,), "m.onnx", "", "", "2026", "tool",
        name, name, (name,), {name: "ab" * 32},
    )  # fmt: skip
    return Packaged(Path("models"), (model,))


def generation(name: str = "decode") -> GenerationExport:
    """Two graphs, of which one has the sites and refusals of a hostile report."""
    reports = {"prefill": report(), name: report()}
    return GenerationExport(Path("decoder"), reports, (Path("decoder/export.json"),), name, 2.5)


RESULTS = {
    "generation": generation(),
    "report": report(),
    "verification": verification(),
    "engine": engine(),
    "benchmark": benchmark(),
    "package": packaged(),
}


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_a_result_is_a_verdict_a_text_and_a_page(name: str) -> None:
    result = RESULTS[name]
    assert len(show_lines(result, verbose=-1)) == 1
    text, verbose = to_text(result), to_text(result, verbose=1)
    assert len(text.splitlines()) > 1
    assert text.splitlines()[0] == verbose.splitlines()[0]
    page = Page(to_html(result, about=About([("Date", "2026-01-31")], ("what", "found", "fix"))))
    assert "2026-01-31" in page.text
    assert "fix" in page.text
    assert page.all("section")[0]["id"] == "summary"


@pytest.mark.parametrize("result", [engine, packaged, generation])
def test_names_of_a_model_are_neither_tags_nor_control_characters(result: object) -> None:
    assert callable(result)
    for name in HOSTILE:
        html = to_html(result(name))
        assert {tag for tag, _ in Page(html).elements} <= {
            tag for tag, _ in Page(to_html(result())).elements
        } | {"wbr"}
        text = to_text(result(name), verbose=1)
        assert all(c.isprintable() or c == "\n" for c in text), repr(text)


def test_what_an_engine_and_a_package_say_as_text_is_on_their_pages() -> None:
    page = Page(to_html(engine())).text
    verdict = to_text(engine(), verbose=-1).strip()
    assert verdict == "engine built: 1 of 2 RMSNorms in one kernel each: 1 fused, 1 unfused"
    for words in (verdict, "layers.0.norm int64 1x1 / 4x128 / 8x2048", "TensorRT-RTX 11.4.0"):
        assert words in page
    page = Page(to_html(packaged())).text
    for words in ("packaged net, version 2, for onnxruntime", "INT64", "[-1, 16]"):
        assert words in page


def test_every_home_has_the_function_that_the_table_names() -> None:
    for module, prefix in _HOMES.values():
        home = importlib.import_module(f"rmsnorm_export.show.{module}")
        assert "verbose" in inspect.signature(getattr(home, f"{prefix}_lines")).parameters


def test_what_has_no_page_of_its_own_is_its_text_and_what_is_no_result_is_an_error() -> None:
    page = Page(to_html(CommandLines("m.onnx", ()), about=About([("Date", "2026-01-31")]))).text
    assert "Command lines" in page
    assert all(line.strip() in page for line in to_text(CommandLines("m.onnx", ())).splitlines())
    with pytest.raises(TypeError, match="dict has no lines to show"):
        to_text({})
    with pytest.raises(TypeError, match="dict has no lines to show"):
        to_html({})


def test_a_report_of_one_output_counts_it_in_the_singular() -> None:
    one = verification(("logits",))
    assert to_text(one).startswith("the models DIFFER: 0 of 1 output within bounds\n")
    agree = dataclasses.replace(verification(), passed=True, first_difference=None)
    assert to_text(agree, verbose=-1) == "the models agree: 1 of 2 outputs within bounds\n"
