"""Layers as the backends print them, and which of them compute which norm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.api import build_engine
from rmsnorm_export.recognize.scan import recognize
from rmsnorm_export.tensorrt.engine.norms import (
    EngineSite,
    by_profile,
    engine_sites,
    find_norms,
    layers_from_inspector,
    layers_from_log,
    nodes_of,
)
from rmsnorm_export.tensorrt.engine.result import EngineLayer, EngineNorm
from tests.rewrite.test_quantized_outputs import model

from .conftest import NORM, model_of, needs_rtx

# What TensorRT-RTX 1.7.1 logs, shortened.
LOG = (
    "Layers:\n"
    "Name: __mye1_0_myl0_0, LayerType: shape_call, Inputs: [], Constants: [], Outputs: [],"
    " TacticName: , StreamId: 0, Metadata: \n"
    "Name: __myl_CastGathMul_myl0_1, LayerType: kgen, Inputs: [ { Name: x, Dimensions: [-1,40],"
    " Format: (Linear) Row major }], Outputs: [ { Name: t }], TacticName: __myl_CastGathMul_0x4,"
    " StreamId: 0, Metadata: [ONNX Layer: a.norm]\x1f"
    "[ONNX Layer: inner.sum | b/norm (SkipRMSNorm)]\n"
    "Name: two\nlines, LayerType: gemm, Inputs: [], Outputs: [], TacticName: sm80_gemm,"
    " StreamId: 0, Metadata: [ONNX Layer: lin[0]]\x1e[ONNX Layer: odd]name]\n"
    "\nI/O Tensors:\n Name: x, IOMode: Input, LayerType: none, Metadata: [ONNX Layer: not.me]\n"
)


def layer(name: str, kind: str, *nodes: str, profile: int | None = 0) -> EngineLayer:
    return EngineLayer(name, kind, nodes, profile)


def test_the_builders_log_and_the_inspectors_json() -> None:
    assert layers_from_log(LOG) == (
        layer("__mye1_0_myl0_0", "shape_call"),
        layer("__myl_CastGathMul_myl0_1", "kgen", "a.norm", "inner.sum | b/norm (SkipRMSNorm)"),
        layer("two\nlines", "gemm", "lin[0]", "odd]name"),
    )
    both = "[ONNX Layer: a]\x1f[ONNX Layer: b]"
    listed = [{"Name": "k", "LayerType": "PluginV3", "Metadata": both}, "names only"]
    (one,) = layers_from_inspector(json.dumps({"Layers": listed}))
    assert one == layer("k", "PluginV3", "a", "b")
    for metadata, nodes in (
        ("", ()),
        ("[ONNX Layer: a][ONNX Layer: b]", ("a", "b")),
        ("[ONNX Layer: a]\x1e[ONNX Layer: a]", ("a",)),
        ("[Something: a]\x1e[ONNX Layer: b c]", ("b c",)),
    ):
        assert nodes_of(metadata) == nodes
    for broken in ("", "[]", "{}", '{"Layers": 3}', "nan"):
        assert layers_from_inspector(broken) == ()


def site(*nodes: str, reason: str = "") -> EngineSite:
    norm = EngineNorm(nodes[-1], "SkipRMSNorm", "chain", "unknown", None, reason=reason)
    return EngineSite(norm, frozenset(nodes))


BODY = "rmsnorm_export.SkipRMSNorm"
KERNELS = (
    layer("k0", "shape_call", "pow"),
    layer("k1", "kgen", "add", "pow", "mul"),
    layer("k2", "kgen", "scale", "gelu"),
)
PROFILES = (
    layer("a", "kgen", "pow", "mul"),
    layer("b", "kgen", "pow", profile=1),
    layer("c", "kgen", "mul", profile=1),
)
PLUGIN = (layer("n", "PluginV3", "n"),)
WITH_SUM = (  # a sum in the product before is no kernel of the norm
    layer("gemm", "runtime_fusion", "linear", f"{BODY}.sum | n (SkipRMSNorm)"),
    layer("norm", "kgen", f"{BODY}.mean | n (SkipRMSNorm)"),
)
UNTOLD = (*PROFILES, layer("d", "kgen", "pow", profile=None))


@pytest.mark.parametrize(
    ("one", "layers", "how", "names", "reason"),
    [
        (site("pow", "mul"), KERNELS, "fused", ("k1",), ""),
        (site("pow", "mul", "scale"), KERNELS, "unfused", ("k1", "k2"), ""),
        (site("gone"), KERNELS, "unknown", (), "no layer"),
        (site("pow", reason="in a loop"), KERNELS, "unknown", (), "in a loop"),
        (site("pow"), (), "unknown", (), "layers are not known"),
        (site("n"), PLUGIN, "plugin", ("n",), ""),
        (site("n"), WITH_SUM, "fused", ("norm",), ""),
        (site("pow", "mul"), PROFILES, "unfused", ("b", "c"), ""),  # the worst profile counts
        (site("pow"), UNTOLD, "unknown", (), "profiles"),
    ],
)
def test_which_kernels_compute_a_norm(
    one: EngineSite, layers: tuple[EngineLayer, ...], how: str, names: tuple[str], reason: str
) -> None:
    (outcome,) = find_norms([one], layers)
    assert (outcome.how, outcome.names, outcome.kernels) == (how, names, len(names) or None)
    assert reason in outcome.reason


def test_layers_of_several_profiles() -> None:
    rtx = [layer(f"k_myl{i}_{j}", "kgen", "n") for i in range(4) for j in range(1 + i % 2)]
    named = [layer(f"k [profile {i}]", "kgen", "n") for i in range(3)]
    for layers, profiles, expected in (
        (rtx, 2, [0, 0, 0, 1, 1, 1]),
        (rtx, 1, [0] * 6),
        (rtx, 3, [None] * 6),
        (named, 3, [0, 1, 2]),
    ):
        assert [one.profile for one in by_profile(layers, profiles)] == expected


def sites_of(body: str, function: str = "") -> tuple[EngineSite, ...]:
    model = ir.from_proto(model_of(body, inputs=("x", "x2"), function=function))
    return engine_sites(model, recognize(model).matches)


def test_sites_by_the_names_that_the_parser_gives() -> None:
    (named,) = sites_of(NORM)
    assert (named.norm.name, named.norm.form, named.nodes) == ("norm", "node", frozenset({"norm"}))
    assert sites_of(NORM.removeprefix("[norm] "))[0].nodes == frozenset({"node_of_y"})
    twins = sites_of(f"[norm] t = RMSNormalization (x, w) {NORM.replace('x,', 't,')}")
    assert {one.norm.reason for one in twins} == {"several nodes have the name of one of its nodes"}
    (skip,) = sites_of(f"[add] s = Add (x, x2) {NORM.replace('x,', 's,')}")
    assert (skip.norm.op, skip.nodes) == ("SkipRMSNorm", frozenset({"norm"}))


def test_a_norm_inside_a_function_is_not_guessed() -> None:
    inner = f'<domain: "other", opset_import: ["" : 23]> F (x, w) => (y) {{ {NORM} }}'
    (only,) = sites_of("[one] t = other.F (x, w) [two] y = other.F (t, w)", inner)
    assert "inside other::F" in only.norm.reason
    layers = [layer("k", "kgen", "norm | one (F)", "norm | two (F)")]
    assert [one.how for one in find_norms([only], layers)] == ["unknown"]


# A norm whose output is quantized is one kernel of TensorRT-RTX, in every form of the file.

BEHIND = {
    "int8": ("node_q", ".codes"),
    "fp8": ("node_q", ".codes"),
    "int8_per_row": ("node_rs", ".step"),
}
"""What makes the codes -> a node behind the norm, and that node in a function."""


@needs_rtx
@pytest.mark.parametrize("form", ["raw", "onnx", "portable", "folded"])
@pytest.mark.parametrize("how", BEHIND)
def test_it_is_in_the_kernel_of_the_norm(how: str, form: Any, tmp_path: Path) -> None:
    proto, path = model("float16", how), tmp_path / "model.onnx"
    for node in proto.graph.node:
        node.name = f"node_{node.output[0]}"
    onnx.save(proto, path)
    if form != "raw":
        folded = form == "folded"
        result = rx.optimize(path, target=None if folded else form, fold_quantize=folded)
        assert len(result.report.fused) == 1
        path = tmp_path / f"{form}.onnx"
        result.save(path)
    record = build_engine(path, tmp_path / "e.engine", dims="B=1,1,4;S=1,64,64").record
    (only,) = record.norms
    assert (only.how, only.kernels) == ("fused", 1), only.reason
    (kernel,) = (layer for layer in record.layers if layer.name in only.names)
    last, inner = BEHIND[how]
    assert any(node == last or inner in node for node in kernel.nodes)
