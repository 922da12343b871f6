"""The graphs of sites: what is recorded of real models, and how it is laid out."""

from __future__ import annotations

import dataclasses
import itertools

import onnx
import pytest
from html_pages import PROOF, Page, chain, report
from onnx import TensorProto, helper, numpy_helper
from spellings.look_alikes import LOOK_ALIKES

import rmsnorm_export as rx
from rmsnorm_export.rewrite.drawing import Drawing, DrawnNode, Subgraph
from rmsnorm_export.show import to_html



# Chains with gains, biases, gates, residuals and outputs in every place.
NAMES = [name for name in sorted(LOOK_ALIKES) if LOOK_ALIKES[name].norms][::4]


def overlaps(layout: Layout) -> list[str]:
    """Boxes that lie on each other, or outside the drawing."""
    found = []
    for a, b in itertools.combinations(layout.boxes, 2):
        apart = (
            a.x + a.width <= b.x
            or b.x + b.width <= a.x
            or a.y + a.height <= b.y
            or b.y + b.height <= a.y
        )
        if not apart:
            found.append(f"{a.lines} on {b.lines}")
    for box in layout.boxes:
        inside = box.x >= 0 and box.x + box.width <= layout.width
        if not (inside and box.y >= 0 and box.bottom <= layout.height):
            found.append(f"{box.lines} outside")
    return found


def graphs(drawings: tuple[Drawing, ...]) -> list[Subgraph]:
    return [g for drawn in drawings for g in (drawn.before, drawn.after) if g is not None]


def model(norms: int, *, n: int = 8, residual: bool = True) -> onnx.ModelProto:
    """A float16 model of pre-norm blocks, as exporters spell them; f32 inside the norms."""
    nodes, x = [], "x"
    for i in range(norms):
        steps = [
            ("Cast", [x], "wide", {"to": TensorProto.FLOAT}),
            ("Pow", ["wide", "two"], "square", {}),
            ("ReduceMean", ["square"], "mean", {"axes": [-1], "keepdims": 1}),
            ("Add", ["mean", "eps"], "shifted", {}),
            ("Sqrt", ["shifted"], "root", {}),
            ("Div", ["wide", "root"], "unit", {}),
            ("Cast", ["unit"], "narrow", {"to": TensorProto.FLOAT16}),
            ("Mul", ["w", "narrow"], "y", {}),
        ]
        own = {out for _, _, out, _ in steps}
        for op, inputs, out, attributes in steps:
            named = [f"/{i}/{name}" if name in own else name for name in inputs]
            name = f"/{i}/{op}_{out}"
            nodes.append(helper.make_node(op, named, [f"/{i}/{out}"], name=name, **attributes))
        tanh = helper.make_node("Tanh", [f"/{i}/y"], [f"/{i}/tanh"], name=f"/{i}/Tanh")
        nodes.append(tanh)
        if residual:
            nodes.append(helper.make_node("Add", [x, f"/{i}/tanh"], [f"/{i}/sum"]))
        x = f"/{i}/sum" if residual else f"/{i}/tanh"
    constants = {"two": ([], 1), "eps": ([], 1), "w": ([n], 10)}
    initializers = [
        helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]),
        helper.make_tensor("eps", TensorProto.FLOAT, [], [1e-6]),
        numpy_helper.from_array(numpy_helper.to_array(
            helper.make_tensor("w", TensorProto.FLOAT16, [n], [1.0] * n)), "w"),
    ]  # fmt: skip
    assert set(constants) == {tensor.name for tensor in initializers}
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["rows", n])
    out = helper.make_tensor_value_info(x, TensorProto.FLOAT16, ["rows", n])
    graph = helper.make_graph(nodes, "g", [value], [out], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_nothing_is_recorded_unless_it_is_asked_for() -> None:
    made = rx.optimize(model(2)).report
    assert made.drawings == ()
    assert [site.drawing for site in made.fused] == [None, None]


def test_equal_sites_share_a_drawing_of_the_real_nodes() -> None:
    made = rx.optimize(model(20), drawings=True).report
    assert len(made.fused) == 20
    assert len(made.drawings) == 2  # the first has no residual
    assert {site.drawing for site in made.fused[1:]} == {1}
    first, later = made.drawings
    assert [node.name for node in first.before.nodes] == list(made.fused[0].nodes)
    assert [node.op for node in first.before.nodes] == made.fused[0].spelling.split()
    assert dict(first.before.nodes[0].attributes) == {"to": "float32"}
    by_role = {value.role: value for value in first.before.values if value.role}
    assert by_role["x"].name == "x"
    assert (by_role["scale"].dtype, by_role["scale"].shape) == ("float16", "[8]")
    assert by_role["y"].name == "/0/y"
    assert {value.constant for value in first.before.values} == {"", "2", "1e-06"}
    assert later.after is not None
    assert [node.op for node in later.after.nodes] == ["SkipRMSNorm"]
    assert [value.role for value in later.after.values] == ["x", "residual", "scale", "y", "sum"]
    # What was recorded is the source, and the result is the same with and without.
    assert rx.optimize(model(20), drawings=True).to_bytes() == rx.optimize(model(20)).to_bytes()


def test_inspect_records_and_changes_nothing() -> None:
    made = rx.inspect(model(3), drawings=True)
    assert len(made.drawings) == 2
    again = rx.inspect(rx.optimize(model(3), target="ort").model, target="ort", drawings=True)
    assert again.kept
    kept = again.drawings[again.kept[0].drawing or 0]
    assert kept.after is None
    assert [node.op for node in kept.before.nodes] == ["SimplifiedLayerNormalization"]


@pytest.mark.parametrize("target", ["portable", "onnx", "ort"])
def test_every_node_is_drawn_and_none_lies_on_another(target: rx.Report) -> None:
    seen = 0
    for name in NAMES:
        made = rx.optimize(LOOK_ALIKES[name].build(17).model, target=target, drawings=True).report
        for graph in graphs(made.drawings):
            seen += 1
            layout = arrange(graph)
            numbers = sorted(box.number for box in layout.boxes if box.kind == "op")
            assert numbers == list(range(1, len(graph.nodes) + 1)), name
            assert overlaps(layout) == [], name
        Page(to_html(made))
    assert seen > 20


def test_a_graph_is_told_in_words() -> None:
    assert spoken(chain().before) == (
        "1: Pow of x x, 2 gives pow. 2: ReduceMean axes=[-1] of pow gives mean. "
        "3: Mul of mean, x x, scale w gives y."
    )


def test_a_drawing_from_elsewhere_does_not_break_the_page() -> None:
    empty = Drawing("s", Subgraph((), ()), None)
    loose = DrawnNode("Mul", "m", (), (-1, -1), (-1,))
    wild = dataclasses.replace(loose, inputs=(99,), outputs=(0, -7))
    after = Subgraph(chain().before.values, (loose, wild))
    odd = Drawing("s", Subgraph((), (loose, wild)), after)
    for drawing in (empty, odd):
        for graph in graphs((drawing,)):
            assert overlaps(arrange(graph)) == []
    Page(to_html(report(drawings=(empty,))))
    Page(to_html(report(drawings=())))  # the sites refer to a drawing that is not there


def test_wide_characters_take_two_columns() -> None:
    assert [columns(text) for text in ("abc", "\u6f22\u5b57", "e\u0301", "")] == [3, 4, 1, 0]


def test_a_proof_counts_every_element_that_it_compared() -> None:
    site = rx.optimize(model(1), target="ort", prove=True).report.fused[0]
    assert site.proof is not None
    assert site.proof.passed
    counts = dict(site.proof.ulp_histogram)
    total = sum(counts.values())
    assert total > 100
    assert 1 - counts["0"] / total == pytest.approx(site.proof.mismatch)
    assert site.proof.max_ulp == (1.0 if len(counts) > 1 else 0.0)
    assert PROOF.ulp_histogram
