"""Decoders of any number of nodes, and small graphs that ask for much work.

The decoders are spelled as torch.onnx.export(dynamo=True) writes them.

Every layer has two RMSNorms (Pow, ReduceMean, Add, Sqrt, Reciprocal, Mul, Mul),
attention with rotary embedding, and a SiLU-gated MLP: 54 nodes. The weights are tiny, so that a
graph of 200,000 nodes stays a file of some tens of megabytes and the time goes to the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, HEAD, INTER, VOCAB = 2, 8, 32, 64
HIDDEN = HEADS * HEAD
NODES_PER_LAYER = 54
EPSILON = 1e-6


class _Decoder:
    """Collects the nodes, weights and shapes of one decoder, in f32 with a dynamic sequence."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.infos: list[onnx.ValueInfoProto] = []
        self.two = self.constant("two", np.float32(2))
        self.epsilon = self.constant("epsilon", np.float32(EPSILON))
        self.last_axis = self.constant("last_axis", np.array([-1], np.int64))
        self.root = self.constant("root", np.float32(HEAD**-0.5))
        self.split = self.constant("split", np.array([0, 0, HEADS, HEAD], np.int64))
        self.join = self.constant("join", np.array([0, 0, HIDDEN], np.int64))
        for name, value in (("zero", 0), ("half", HEAD // 2), ("end", HEAD), ("axis", 3)):
            self.constant(name, np.array([value], np.int64))

    def constant(self, name: str, value: np.ndarray | np.generic) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        scale = 1.0 if len(shape) == 1 else shape[0] ** -0.5
        values = self.rng.standard_normal(shape, np.float32) * scale
        return self.constant(name, values.astype(np.float32))

    def add(
        self, op: str, inputs: list[str], shape: list[int | str], **attributes: int | list[int]
    ) -> str:
        name = f"node_{op}_{len(self.nodes)}"
        output = f"val_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        self.infos.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, shape))
        return output

    def norm(self, x: str, weight: str) -> str:
        row: list[int | str] = ["b", "s", HIDDEN]
        one: list[int | str] = ["b", "s", 1]
        square = self.add("Pow", [x, self.two], row)
        mean = self.add(
            "ReduceMean", [square, self.last_axis], one, keepdims=1, noop_with_empty_axes=0
        )
        root = self.add("Sqrt", [self.add("Add", [mean, self.epsilon], one)], one)
        normal = self.add("Mul", [x, self.add("Reciprocal", [root], one)], row)
        return self.add("Mul", [weight, normal], row)

    def heads(self, x: str, weight: str) -> str:
        projected = self.add("MatMul", [x, weight], ["b", "s", HIDDEN])
        rows = self.add("Reshape", [projected, self.split], ["b", "s", HEADS, HEAD])
        return self.add("Transpose", [rows], ["b", HEADS, "s", HEAD], perm=[0, 2, 1, 3])

    def rotary(self, x: str) -> str:
        whole: list[int | str] = ["b", HEADS, "s", HEAD]
        part: list[int | str] = ["b", HEADS, "s", HEAD // 2]
        first = self.add("Slice", [x, "zero", "half", "axis"], part)
        second = self.add("Slice", [x, "half", "end", "axis"], part)
        turned = self.add("Concat", [self.add("Neg", [second], part), first], whole, axis=-1)
        return self.add(
            "Add",
            [self.add("Mul", [x, "cos"], whole), self.add("Mul", [turned, "sin"], whole)],
            whole,
        )

    def layer(self, x: str, i: int) -> str:
        row: list[int | str] = ["b", "s", HIDDEN]
        wide: list[int | str] = ["b", "s", INTER]
        name = f"model.layers.{i}"
        y = self.norm(x, self.weight(f"{name}.input_layernorm.weight", HIDDEN))
        query, key, value = (
            self.heads(y, self.weight(f"{name}.self_attn.{part}.weight", HIDDEN, HIDDEN))
            for part in ("q_proj", "k_proj", "v_proj")
        )
        query, key = self.rotary(query), self.rotary(key)
        turned = self.add("Transpose", [key], ["b", HEADS, HEAD, "s"], perm=[0, 1, 3, 2])
        square: list[int | str] = ["b", HEADS, "s", "s"]
        scores = self.add("MatMul", [query, turned], square)
        scores = self.add("Add", [self.add("Mul", [scores, self.root], square), "mask"], square)
        scores = self.add("Softmax", [scores], square, axis=-1)
        mixed = self.add("MatMul", [scores, value], ["b", HEADS, "s", HEAD])
        mixed = self.add("Transpose", [mixed], ["b", "s", HEADS, HEAD], perm=[0, 2, 1, 3])
        mixed = self.add("Reshape", [mixed, self.join], row)
        out = self.weight(f"{name}.self_attn.o_proj.weight", HIDDEN, HIDDEN)
        x = self.add("Add", [x, self.add("MatMul", [mixed, out], row)], row)
        y = self.norm(x, self.weight(f"{name}.post_attention_layernorm.weight", HIDDEN))
        gate = self.add("MatMul", [y, self.weight(f"{name}.mlp.gate.weight", HIDDEN, INTER)], wide)
        gate = self.add("Mul", [gate, self.add("Sigmoid", [gate], wide)], wide)
        up = self.add("MatMul", [y, self.weight(f"{name}.mlp.up.weight", HIDDEN, INTER)], wide)
        both = self.add("Mul", [gate, up], wide)
        down = self.weight(f"{name}.mlp.down.weight", INTER, HIDDEN)
        return self.add("Add", [x, self.add("MatMul", [both, down], row)], row)


def decoder(nodes: int, *, opset: int = 18, seed: int = 0) -> tuple[onnx.ModelProto, int]:
    """A decoder of about ``nodes`` nodes (whole layers, at least one), and its number of norms."""
    layers = max(1, round((nodes - 9) / NODES_PER_LAYER))
    graph = _Decoder(seed)
    x = graph.add("Gather", [graph.weight("embed", VOCAB, HIDDEN), "tokens"], ["b", "s", HIDDEN])
    for i in range(layers):
        x = graph.layer(x, i)
    x = graph.norm(x, graph.weight("model.norm.weight", HIDDEN))
    head = graph.weight("lm_head.weight", HIDDEN, VOCAB)
    graph.nodes.append(helper.make_node("MatMul", [x, head], ["logits"], name="node_lm_head"))
    floats = TensorProto.FLOAT
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "main_graph",
            [
                helper.make_tensor_value_info("tokens", TensorProto.INT64, ["b", "s"]),
                helper.make_tensor_value_info("cos", floats, ["b", 1, "s", HEAD]),
                helper.make_tensor_value_info("sin", floats, ["b", 1, "s", HEAD]),
                helper.make_tensor_value_info("mask", floats, ["b", 1, "s", "s"]),
            ],
            [helper.make_tensor_value_info("logits", floats, ["b", "s", VOCAB])],
            initializer=graph.weights,
            value_info=graph.infos,
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
        producer_name="pytorch",
    )
    return model, 2 * layers + 1


def write_decoder(path: Path, nodes: int, *, opset: int = 18) -> tuple[int, int]:
    """Write a decoder to ``path``; returns its real number of nodes and of norms."""
    model, norms = decoder(nodes, opset=opset)
    onnx.save(model, path)
    return len(model.graph.node), norms


def _hard(nodes: list[onnx.NodeProto], output: str) -> onnx.ModelProto:
    """A model of ``nodes`` on x, with the constants of a norm."""
    floats, row = TensorProto.FLOAT, ["b", HIDDEN]
    constants = {"two": 2.0, "epsilon": EPSILON, "gain": np.ones(HIDDEN)}
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("x", floats, row)],
        [helper.make_tensor_value_info(output, floats, None)],
        [numpy_helper.from_array(np.float32(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _root(x: str, tag: str = "") -> list[onnx.NodeProto]:
    return [
        helper.make_node("Pow", [x, "two"], [f"square{tag}"]),
        helper.make_node("ReduceMean", [f"square{tag}"], [f"mean{tag}"], axes=[-1]),
        helper.make_node("Add", [f"mean{tag}", "epsilon"], [f"sum{tag}"]),
        helper.make_node("Sqrt", [f"sum{tag}"], [f"root{tag}"]),
    ]


def casts(size: int) -> tuple[onnx.ModelProto, int]:
    """A chain of ``size`` Identity and Cast nodes; every tenth is divided by the root of x."""
    nodes, x, rows = _root("x"), "x", []
    for index in range(size):
        kind: dict[str, int] = {"to": TensorProto.FLOAT} if index % 2 else {}
        nodes.append(helper.make_node("Cast" if kind else "Identity", [x], [f"x{index}"], **kind))
        x = f"x{index}"
        if index % 10 == 9:
            rows.append(f"row{index}")
            nodes.append(helper.make_node("Div", [x, "root"], rows[-1:]))
    nodes.append(helper.make_node("Sum", rows, ["y"]))
    return _hard(nodes, "y"), len(rows)


def one_gain(size: int) -> tuple[onnx.ModelProto, int]:
    """``size`` nodes that read one gain: half of them scale norms, half of them anything."""
    nodes, x = [], "x"
    for index in range(0, size, 2):
        nodes.append(helper.make_node("Mul", [x, "gain"], [f"x{index}"]))
        nodes += _root(f"x{index}", str(index))
        nodes.append(helper.make_node("Div", [f"x{index}", f"root{index}"], [f"row{index}"]))
        x = f"y{index}"
        nodes.append(helper.make_node("Mul", [f"row{index}", "gain"], [x]))
    return _hard(nodes, x), -(-size // 2)


def one_row(size: int) -> tuple[onnx.ModelProto, int]:
    """A normalised row that ``size`` nodes read: the norm ends there."""
    nodes = [*_root("x"), helper.make_node("Div", ["x", "root"], ["row"])]
    rows = [f"y{index}" for index in range(size)]
    nodes += [helper.make_node("Mul", ["row", "gain"], [row]) for row in rows]
    nodes.append(helper.make_node("Sum", rows, ["y"]))
    return _hard(nodes, "y"), 1


HARD: dict[str, Callable[[int], tuple[onnx.ModelProto, int]]] = {
    "casts": casts,
    "one gain": one_gain,
    "one row": one_row,
}
"""Graphs on which work must grow with their size, and no faster."""


def write_hard(path: Path, name: str, size: int) -> tuple[int, int]:
    """Write a graph of ``HARD`` to ``path``; returns its number of nodes and of norms."""
    model, norms = HARD[name](size)
    onnx.save(model, path)
    return len(model.graph.node), norms
