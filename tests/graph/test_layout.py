"""Weights that are stored as nodes read them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from rmsnorm_export import export
from rmsnorm_export.decoder.bundle import write_models
from rmsnorm_export.graph.layout import store_as_read
from rmsnorm_export.runtime.session import open_session, run_session


class Tied(nn.Module):
    """A table that is a head as well, and two products of which one has a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 48), nn.Linear(48, 50, bias=False)
        self.up, self.norm, self.down = nn.Linear(48, 80), nn.RMSNorm(80), nn.Linear(80, 48)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.down(self.norm(self.up(self.embed(ids)))))


def test_an_export_stores_what_products_read(tmp_path):
    model = Tied()
    ids = torch.arange(10).reshape(2, 5)
    report = export(model, (ids,), tmp_path / "m.onnx").report
    export(model, (ids,), tmp_path / "plain.onnx", target="plain")
    proto = onnx.load(tmp_path / "m.onnx")
    assert report.nodes_after == len(proto.graph.node)
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in proto.graph.initializer}
    for name in ("up", "down"):
        want = getattr(model, name).weight.detach().numpy().T
        np.testing.assert_array_equal(stored[f"{name}.weight.T"], want)
        assert f"{name}.weight" not in stored
    turned = [node.input[0] for node in proto.graph.node if node.op_type == "Transpose"]
    assert len(turned) == 1, "the tied table alone"
    np.testing.assert_array_equal(stored[turned[0]], model.embed.weight.detach().numpy())
    answers = []
    for name in ("m.onnx", "plain.onnx"):
        session = open_session(str(tmp_path / name), optimize=True)
        (answer,) = run_session(session, {proto.graph.input[0].name: ids.numpy()}).values()
        answers.append(answer)
    np.testing.assert_allclose(answers[0], model(ids).detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(*answers, atol=1e-6)


def _graph(kind: str, weights: dict[str, ir.TensorProtocol]) -> ir.Model:
    text = f"""<ir_version: 10, opset_import: ["": 18]>
    g (float[a, 32] x, int64[b] i) => (y) {{ {kind} }}"""
    model = ir.from_onnx_text(text, initializers=())
    for value in [v for node in model.graph for v in node.inputs if v.name in weights]:
        value.const_value = weights[value.name]
        value.shape, value.dtype = value.const_value.shape, value.const_value.dtype
        model.graph.initializers[value.name] = value
    return model


def test_graphs_that_are_stored_together_share_a_weight(tmp_path):
    rows = {name: torch.randn(64, 32) for name in ("only", "table")}
    table, head = (
        {name: ir.tensor(tensor, name=name) for name, tensor in rows.items()} for _ in range(2)
    )
    product = "t = Transpose<perm=[1, 0]>({}) y = MatMul(x, t)"
    first = _graph("y = Gather(table, i)", table)
    models = {
        "embed": first,
        "head": _graph(product.format("table"), head),
        "prefill": _graph(product.format("only"), table),
        "decode": _graph(product.format("only"), head),
    }
    store_as_read(list(models.values()))
    counts = {name: len(model.graph) for name, model in models.items()}
    assert counts == {"embed": 1, "head": 2, "prefill": 1, "decode": 1}
    write_models(models, tmp_path)
    files = {file.name: file.stat().st_size for file in tmp_path.glob("*.data")}
    assert files == {"embed.onnx.data": 64 * 32 * 4, "prefill.onnx.data": 64 * 32 * 4}
    for name in ("prefill", "decode"):
        (weight,) = onnx.load(tmp_path / f"{name}.onnx").graph.initializer
        assert weight.name == "only.T"
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(weight), rows["only"].numpy().T)
