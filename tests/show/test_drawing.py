"""The graphs of sites: what is recorded of real models, and what a page shows of it."""

from __future__ import annotations

import dataclasses

import onnx
import pytest
from samples import REPORT, SITE, Page, change
from spellings.look_alikes import LOOK_ALIKES

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.rewrite.drawing import Drawing, DrawnNode, DrawnValue, Subgraph
from rmsnorm_export.show import to_html
from rmsnorm_export.show.drawing import node_tables
from rmsnorm_export.show.text import Table

# Chains with gains, biases, gates, residuals and outputs in every place.
NAMES = [name for name in sorted(LOOK_ALIKES) if LOOK_ALIKES[name].norms][::4]

NORM = """
wide_{i} = Cast <to = 1> (x_{i})
square_{i} = Pow (wide_{i}, two)
mean_{i} = ReduceMean <axes = [-1], keepdims = 1> (square_{i})
shifted_{i} = Add (mean_{i}, eps)
root_{i} = Sqrt (shifted_{i})
unit_{i} = Div (wide_{i}, root_{i})
narrow_{i} = Cast <to = 10> (unit_{i})
y_{i} = Mul (w, narrow_{i})
tanh_{i} = Tanh (y_{i})
x_{n} = Add (x_{i}, tanh_{i})"""


def model(norms: int) -> onnx.ModelProto:
    """Return a float16 model of pre-norm blocks, as exporters spell them; f32 inside the norms."""
    body = "".join(NORM.format(i=i, n=i + 1) for i in range(norms))
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float16[rows, 2] x_0) => (float16[rows, 2] x_{norms})
        <float two = {{2.0}}, float eps = {{0.000001}}, float16[2] w = {{15360, 1}}> {{{body}}}"""
    )


def test_equal_sites_share_a_drawing_of_the_real_nodes() -> None:
    plain, drawn = rx.optimize(model(20)), rx.optimize(model(20), drawings=True)
    assert plain.report.drawings == ()
    assert drawn.to_bytes() == plain.to_bytes()
    report = drawn.report
    first, later = report.drawings  # the first has no residual
    assert [site.drawing for site in report.fused] == [0] + [1] * 19
    assert [node.name for node in first.before.nodes] == list(report.fused[0].nodes)
    assert [node.op for node in first.before.nodes] == report.fused[0].spelling.split()
    assert dict(first.before.nodes[0].attributes) == {"to": "float32"}
    by_role = {value.role: value for value in first.before.values if value.role}
    assert (by_role["x"].name, by_role["y"].name) == ("x_0", "y_0")
    assert (by_role["scale"].dtype, by_role["scale"].shape) == ("float16", "[2]")
    assert {value.constant for value in first.before.values} == {"", "2", "1e-06"}
    assert [node.op for node in later.after.nodes] == ["SkipRMSNorm"]
    assert [value.role for value in later.after.values] == ["x", "residual", "scale", "y", "sum"]
    page = Page(to_html(report))
    assert page.text.count("Before, at ") == page.text.count("After: 1 node") == 2


@pytest.mark.parametrize("target", ["portable", "onnx", "ort"])
def test_every_node_has_a_row_with_all_that_it_takes(target: Target) -> None:
    for name in NAMES:
        source = LOOK_ALIKES[name].build(17).model
        report = rx.optimize(source, target=target, drawings=True).report
        assert report.drawings
        for drawing in report.drawings:
            graphs = filter(None, (drawing.before, drawing.after))
            for table, graph in zip(node_tables(drawing), graphs, strict=True):
                assert isinstance(table, Table)
                assert [row[:2] for row in table.rows] == [
                    [str(number), node.op] for number, node in enumerate(graph.nodes, 1)
                ]
                pairs = [*zip(table.rows, graph.nodes, strict=True)]
                outputs = {value: f"#{row[0]}" for row, node in pairs for value in node.outputs}
                for row, node in pairs:
                    for position in {*node.inputs} - {-1}:
                        value = graph.values[position]
                        assert (outputs.get(position) or value.constant or value.name) in row[2], (
                            name
                        )
                    ends = [graph.values[position] for position in node.outputs if position >= 0]
                    assert [one.name for one in ends if one.role and one.name not in row[4]] == []
        Page(to_html(report))


def test_a_drawing_from_elsewhere_does_not_break_the_page() -> None:
    value = DrawnValue("x", "float16", "[]", "x")
    loose = DrawnNode("Mul", "m", (), (-1, -1), (-1,))
    wild = dataclasses.replace(loose, inputs=(99, 0), outputs=(0, -7))
    again = dataclasses.replace(loose, inputs=(0,), outputs=(0,))
    empty, odd = Subgraph((), ()), Subgraph((value,), (loose, wild, again) * 40)
    drawings = (Drawing("s", empty, None), Drawing("s", empty, odd), Drawing("s", odd, empty))
    fused = tuple(change(SITE, drawing=i) for i in (None, 0, 1, 2, 3, -1))
    Page(to_html(change(REPORT, fused=fused, drawings=drawings)))
