"""Layers as the backends print them, and which of them compute which norm."""

from __future__ import annotations

import json

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from rmsnorm_export.recognize.scan import recognize
from rmsnorm_export.tensorrt.engine.layers import (
    by_profile,
    layers_from_inspector,
    layers_from_log,
    nodes_of,
)
from rmsnorm_export.tensorrt.engine.result import EngineLayer
from rmsnorm_export.tensorrt.engine.sites import EngineSite, engine_sites, find_norms

from .conftest import model_of, norm

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


def test_the_builders_log() -> None:
    assert layers_from_log(LOG) == (
        EngineLayer("__mye1_0_myl0_0", "shape_call", ()),
        EngineLayer(
            "__myl_CastGathMul_myl0_1", "kgen", ("a.norm", "inner.sum | b/norm (SkipRMSNorm)")
        ),
        EngineLayer("two\nlines", "gemm", ("lin[0]", "odd]name")),
    )


def test_the_inspectors_json() -> None:
    layers = [
        {"Name": "k", "LayerType": "PluginV3", "Metadata": "[ONNX Layer: a]\x1f[ONNX Layer: b]"},
        "names only",
    ]
    assert layers_from_inspector(json.dumps({"Layers": layers})) == (
        EngineLayer("k", "PluginV3", ("a", "b")),
    )
    for broken in ("", "[]", "{}", '{"Layers": 3}', "nan"):
        assert layers_from_inspector(broken) == ()


@pytest.mark.parametrize(
    ("metadata", "nodes"),
    [
        ("", ()),
        ("[ONNX Layer: a][ONNX Layer: b]", ("a", "b")),
        ("[ONNX Layer: a]\x1e[ONNX Layer: a]", ("a",)),
        ("[Something: a]\x1e[ONNX Layer: b c]", ("b c",)),
    ],
)
def test_metadata(metadata: str, nodes: tuple[str, ...]) -> None:
    assert nodes_of(metadata) == nodes


def site(*nodes: str, reason: str = "") -> EngineSite:
    return EngineSite(nodes[-1], "SkipRMSNorm", "chain", frozenset(nodes), reason)


def test_one_kernel_several_and_none() -> None:
    layers = [
        EngineLayer("k0", "shape_call", ("pow",)),
        EngineLayer("k1", "kgen", ("add", "pow", "mul")),
        EngineLayer("k2", "kgen", ("scale", "gelu")),
    ]
    fused, split, absent, inside = find_norms(
        [
            site("pow", "mul"),
            site("pow", "mul", "scale"),
            site("gone"),
            site("pow", reason="it is inside a loop"),
        ],
        layers,
    )
    assert (fused.how, fused.kernels, fused.names) == ("fused", 1, ("k1",))
    assert (split.how, split.kernels, split.names) == ("unfused", 2, ("k1", "k2"))
    assert (absent.how, absent.kernels) == ("unknown", None)
    assert "no layer" in absent.reason
    assert (inside.how, inside.reason) == ("unknown", "it is inside a loop")
    (blind,) = find_norms([site("pow")], [])
    assert blind.reason == "the engine's layers are not known"


def test_a_sum_in_the_product_before_is_no_kernel_of_the_norm() -> None:
    body = "rmsnorm_export.SkipRMSNorm"
    layers = [
        EngineLayer("other", "kgen", (f"{body}.sum | n (SkipRMSNorm)",)),
        EngineLayer("gemm", "runtime_fusion", ("linear", f"{body}.sum | n (SkipRMSNorm)")),
        EngineLayer("norm", "kgen", (f"{body}.mean | n (SkipRMSNorm)",)),
    ]
    (found,) = find_norms([EngineSite("n", "SkipRMSNorm", "node", frozenset({"n"}))], layers)
    assert (found.how, found.kernels, found.names) == ("fused", 1, ("norm",))


def test_layers_of_several_profiles() -> None:
    nodes = ("n",)
    rtx = [EngineLayer(f"k_myl{i}_{j}", "kgen", nodes) for i in range(4) for j in range(1 + i % 2)]
    assert [layer.profile for layer in by_profile(rtx, 2)] == [0, 0, 0, 1, 1, 1]
    assert [layer.profile for layer in by_profile(rtx, 1)] == [0] * 6
    assert {layer.profile for layer in by_profile(rtx, 3)} == {None}
    named = [EngineLayer(f"k [profile {i}]", "kgen", nodes) for i in range(3)]
    assert [layer.profile for layer in by_profile(named, 3)] == [0, 1, 2]


def test_the_worst_profile_counts() -> None:
    layers = [
        EngineLayer("a", "kgen", ("pow", "mul"), 0),
        EngineLayer("b", "kgen", ("pow",), 1),
        EngineLayer("c", "kgen", ("mul",), 1),
    ]
    (found,) = find_norms([site("pow", "mul")], layers)
    assert (found.how, found.names) == ("unfused", ("b", "c"))
    (unknown,) = find_norms([site("pow")], [*layers, EngineLayer("d", "kgen", ("pow",), None)])
    assert (unknown.how, unknown.kernels) == ("unknown", None)
    assert "profiles" in unknown.reason


def test_a_plugin_layer() -> None:
    layers = [EngineLayer("n", "PluginV3", ("n",))]
    (found,) = find_norms([EngineSite("n", "RMSNorm", "node", frozenset({"n"}))], layers)
    assert (found.how, found.kernels) == ("plugin", 1)


def sites_of(*nodes: object, **options: object) -> tuple[EngineSite, ...]:
    model = ir.from_proto(model_of(*nodes, **options))  # type: ignore[arg-type]
    return engine_sites(model, recognize(model).matches)


def test_sites_by_the_names_that_the_parser_gives() -> None:
    (found,) = sites_of(norm())
    assert (found.name, found.form, found.nodes) == ("norm", "node", frozenset({"norm"}))
    (unnamed,) = sites_of(norm(name=""))
    assert unnamed.nodes == frozenset({"node_of_y"})
    one, two = sites_of(norm(y="t"), norm(x="t"))
    assert one.reason == two.reason == "several nodes have the name of one of its nodes"


def test_a_norm_inside_a_function_is_not_guessed() -> None:
    inner = helper.make_node("RMSNormalization", ["a", "b"], ["c"], name="norm")
    opsets = [helper.make_opsetid("", 23)]
    function = helper.make_function("other", "F", ["a", "b"], ["c"], [inner], opsets)
    calls = [
        helper.make_node("F", ["x", "w"], ["t"], domain="other", name="one"),
        helper.make_node("F", ["t", "w"], ["y"], domain="other", name="two"),
    ]
    (found,) = sites_of(*calls, functions=(function,))
    assert "inside other::F" in found.reason
    layers = [EngineLayer("k", "kgen", ("norm | one (F)", "norm | two (F)"))]
    assert [norm.how for norm in find_norms([found], layers)] == ["unknown"]


def test_the_residual_sum_is_told_apart() -> None:
    add = helper.make_node("Add", ["x", "x2"], ["s"], name="add")
    model = model_of(add, norm(x="s"))
    model.graph.input.append(helper.make_tensor_value_info("x2", TensorProto.FLOAT, ["rows", 40]))
    loaded = ir.from_proto(model)
    (found,) = engine_sites(loaded, recognize(loaded).matches)
    assert (found.op, found.nodes) == ("SkipRMSNorm", frozenset({"norm"}))
