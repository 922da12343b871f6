"""New nodes in the place of old ones: every name, output and document survives, order holds."""

from __future__ import annotations

import time

import onnx_ir as ir
import pytest
from recognize.text_models import model, norm, optimized

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.rewrite.names import Names

RESIDUAL = "float[2,3,8] x, float[2,3,8] r"
SUM = "h = Add(x, r)\n"


def test_names_in_linear_time() -> None:
    # Counting up from 2 for every wish takes 200 million steps here, a minute or more.
    names = Names(ir.from_proto(model(norm("x", "y"))))
    start = time.perf_counter()
    assert len({names("y") for _ in range(20_000)}) == 20_000
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("target", ["portable", "ort"])
@pytest.mark.parametrize("silent", [0, 1, 3], ids=["none", "the last", "the last three"])
def test_a_norm_is_of_its_module_and_not_of_the_sum_in_front(target: Target, silent: int) -> None:
    """Exporters leave single nodes, a last Cast for one, without a module."""
    key = "pkg.torch.onnx.name_scopes"
    source = model(SUM + norm("h", "y"), inputs=RESIDUAL, outputs="float[2,3,8] y")
    nodes = source.graph.node
    for index, node in enumerate(nodes[: len(nodes) - silent]):
        path = "layers.1.norm" if index else "layers.0"
        node.metadata_props.add(key=key, value=f"['', '{path}', 'op']")
    report, proto = optimized(source, target)
    (node,) = [n for n in proto.graph.node if "Skip" in n.op_type]
    assert report.fused[0].module == "layers.1.norm"
    assert [rx.inspect(proto).kept[0].module] == ["layers.1.norm"]
    assert [p.value for p in node.metadata_props if p.key == key] == ["['', 'layers.1.norm', 'op']"]


@pytest.mark.parametrize("text", ["[", "5", "('', 'layers.0', 'op')", "['', 1, 'op']", "{[]: 1}"])
def test_what_is_no_list_of_names_tells_no_module(text: str) -> None:
    source = model(norm("x", "y"))
    for node in source.graph.node:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=text)
    assert rx.inspect(source).fused[0].module is None
