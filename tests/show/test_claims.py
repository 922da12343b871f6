"""Every claim of a report is computed: for each there is a model for which it is not printed."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.parser
import pytest
from onnx import TensorProto

import rmsnorm_export as rx
from rmsnorm_export.decoder.result import GenerationExport
from rmsnorm_export.show import to_text
from tests.tools.runtimes.models import block
from tests.tools.tables import table

TABLE: dict[str, Any] = table(__file__)
CLAIMS: dict[str, list[dict[str, Any]]] = TABLE["claims"]


def _model(name: str) -> Any:
    if name in ("block", "half"):
        return block(TensorProto.FLOAT if name == "block" else TensorProto.FLOAT16)
    if name.startswith("written"):
        return rx.optimize(_model("gain"), target=name.split()[1]).model
    text = TABLE["models"][name].replace("HEAD", TABLE["HEAD"]).replace("ROOT", TABLE["ROOT"])
    return onnx.parser.parse_model(text)


def _report(of: str, *, inspect: bool = False, **options: Any) -> rx.Report:
    return (
        rx.inspect(_model(of), **options) if inspect else rx.optimize(_model(of), **options).report
    )


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_is_made_where_it_holds(claim: str) -> None:
    reports = (_report(**options) for options in CLAIMS[claim])
    holds, fails = (to_text(report) + to_text(report, verbose=1) for report in reports)
    assert claim in holds
    assert claim not in fails


def test_what_optimize_has_done_is_listed_where_it_is_asked_for() -> None:
    """Of ``inspect``, whose result the list is, always."""
    done = _report("gain")
    assert "fused (1)" in to_text(done, verbose=1)
    assert "fused (1)" not in to_text(done)
    assert "fusable (1)" in to_text(_report("gain", inspect=True))


@pytest.mark.parametrize("runtime", ["onnxruntime", "opencv", "tract"])
def test_nothing_is_promised_of_norms_that_were_refused(runtime: str) -> None:
    """What a note says of a runtime holds for any model."""
    for model, headline in (("gain", "1 of 1"), ("clamped", "0 of 1")):
        report = _report(model, runtime=runtime)
        assert report.headline().startswith(headline)
        assert "a norm," not in report.notes[-1].replace("a norm, with", "")
        assert "one kernel" not in report.notes[-1]


@pytest.mark.parametrize(
    ("options", "words"), [({}, "are one node"), ({"target": "plain"}, "plain operators")]
)
def test_a_folder_says_what_its_graphs_say(options: dict[str, Any], words: str) -> None:
    reports = {name: _report("gain", **options) for name in ("prefill", "decode")}
    text = to_text(GenerationExport(None, reports), verbose=-1)
    assert text.startswith(f"2 of 2 RMSNorms are {words.removeprefix('are ')}, in 2 graphs")
    assert to_text(GenerationExport(None, reports)).count("next: ") == 1


def test_nodes_of_a_function_without_names_are_called_by_their_outputs() -> None:
    """Also where the function had to go into the place of its call."""
    model, body = _model("none"), _model("gain").graph
    constants = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in body.initializer]
    ends, nodes = (["x"], ["y"]), [*constants, *body.node]
    model.functions.append(
        onnx.helper.make_function("mine", "Norm", *ends, nodes, [*model.opset_import])
    )
    model.graph.node[0].CopyFrom(onnx.helper.make_node("Norm", *ends, domain="mine"))
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    (site,) = rx.optimize(model, opset=21).report.fused
    assert site.nodes == tuple(node.output[0] for node in body.node)
