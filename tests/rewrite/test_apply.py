"""New nodes in the place of old ones: every name, output and document survives, order holds."""

from __future__ import annotations

import time

import onnx
import onnx_ir as ir
import pytest
from recognize.text_models import CONSTANTS, TARGETS, WEIGHT, function, model, norm, ops, optimized

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.rewrite.names import Names

RESIDUAL = "float[2,3,8] x, float[2,3,8] r"
SUM = "h = Add(x, r)\n"
GATED = norm("x", "y0") + "t = Sigmoid(r)\n g = Mul(r, t)\n z = Mul(y0, g)\n" + norm("z", "y", "k")


def choice(one: str, other: str, y: str = "y") -> str:
    """An If, whose branches give b1 and b2."""
    return (
        f"{y} = If (c) <then_branch = t () => (float[2,3,8] b1) {{{one}}},\n"
        f"else_branch = f () => (float[2,3,8] b2) {{{other}}}>\n"
    )


LOOP = (
    "t = Constant<value_int = 3>()\n y = Loop (t, , x) <body = b (int64 i, bool k, float[2,3,8] a)"
)
LOOP += " => (bool k2, float[2,3,8] o) { k2 = Identity(k)\n h = Add(a, x)\n"
PLACES = {
    "sum is an output": (SUM + norm("h", "y"), "y, h", 1),
    "sum is read before the norm": (
        SUM + "a = Relu(h)\n" + norm("h", "y0") + "y = Add(y0, a)", "y", 1,
    ),
    "sum is read in a branch before the norm": (
        SUM + choice("b1 = Relu(h)", "b2 = Abs(h)", "a") + norm("h", "y0") + "y = Add(y0, a)",
        "y", 1,
    ),
    "two norms of one sum": (SUM + norm("h", "y") + norm("h", "z", "k", "w2"), "y, z", 2),
    "sums of sums": (
        "h0 = Add(x, r)\n h1 = Add(h0, x)\n z = Relu(h1)\n h = Add(h1, z)\n"
        + norm("h", "y") + norm("h1", "y1", "k"), "y, y1", 2,
    ),
    "the gain is computed between Add and norm": (
        SUM + "a = Relu(h)\n g = Add(w, w2)\n" + norm("h", "y0", "", "g")
        + "y = Add(y0, a)", "y", 1,
    ),
    "the gain is computed from the sum": (
        SUM + "g = ReduceMean<axes = [0, 1], keepdims = 0>(h)\n a = Relu(h)\n"
        + norm("h", "y0", "", "g") + "y = Add(y0, a)", "y", 1,
    ),
    "a norm of a gated norm": (GATED, "y, z", 2),
    "a gated norm that nobody else reads": (GATED, "y", 2),
    "Add outside, norm in a branch": (SUM + choice(norm("h", "b1"), "b2 = Abs(h)"), "y", 1),
    "gain in a branch": (
        norm("x", "n0", weight=None) + choice("b1 = Mul(n0, w)", "b2 = Relu(n0)"), "y", 1,
    ),
    "a loop": (LOOP + norm("h", "o0") + "o = Add(o0, h) }>", "y", 1),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PLACES)
def test_places(name: str, target: Target) -> None:
    body, outputs, norms = PLACES[name]
    source = model(
        body,
        inputs=RESIDUAL + (", bool c" if "If (c)" in body else ""),
        outputs=", ".join(f"float[2,3,8] {output}" for output in outputs.split(", ")),
        constants=f"{WEIGHT}, {CONSTANTS}, float[8] w2 = {{8, 7, 6, 5, 4, 3, 2, 1}}",
    )
    report, proto = optimized(source, target)
    assert len(report.fused) == norms
    assert not _unread(proto), "a node was left that nobody reads"


def _unread(proto: onnx.ModelProto) -> list[str]:
    """Operators of the main graph whose outputs have no reader."""
    graph = ir.from_proto(proto).graph
    used = [(n, any(v.uses() or v.is_graph_output() for v in n.outputs)) for n in graph]
    return [node.op_type for node, read in used if not read]


@pytest.mark.parametrize("target", TARGETS)
def test_documents_of_a_replaced_output(target: Target) -> None:
    source = model(norm("x", "y0") + "y = Relu(y0)", outputs="float[B,S,8] y, float[B,S,8] y0")
    for value in source.graph.output:
        value.doc_string = f"about {value.name}"
        value.metadata_props.add(key="layout", value=value.name)
    source.graph.node[-1].metadata_props.add(key="module", value="relu")
    _, proto = optimized(source, target)
    assert list(proto.graph.output) == list(source.graph.output)
    assert [(p.key, p.value) for p in proto.graph.node[-1].metadata_props] == [("module", "relu")]


def test_names_in_linear_time() -> None:
    # Counting up from 2 for every wish takes 200 million steps here, a minute or more.
    names = Names(ir.from_proto(model(norm("x", "y"))))
    start = time.perf_counter()
    assert len({names("y") for _ in range(20_000)}) == 20_000
    assert time.perf_counter() - start < 5


# One tensor of ones is shared by sites of one size, but a function cannot see the main graph; a
# weightless norm needs ones and zeros where another norm of the model has gain and bias.
ONES: dict[str, tuple[str, str, list[tuple[str, str, str]], int]] = {
    "residual norms in a function and outside": (
        "u = my.F(x, w, x)\n v = Relu(u)\n" + norm("v", "o", "p", None) + norm("o", "z", "q")
        + choice(norm("z", "b1", "t", None), "b2 = Relu(z)"), "y, u, o",
        [("F", "(x, w, r) => (y)",
          "h = Add(x, r)\n" + norm("h", "a", "p") + "k = Add(a, h)\n" + norm("k", "b", "q", None)
          + "c = Relu(b)\n t = Add(c, k)\n" + norm("t", "d", "s", None) + "y = Relu(d)")], 6,
    ),
    "each function has its own": (
        "a = my.F(x, w)\n b = my.G(x, w)\n" + norm("x", "d", weight=None) + "y = Sum(a, b, d)", "y",
        [("F", "(x, w) => (y)", norm("x", "y", weight=None)),
         ("G", "(x, w) => (y)", norm("x", "t") + norm("t", "y", "k", None))], 4,
    ),
    "in a branch of a function": (
        "y = my.F(x, w, c)\n" + norm("y", "z", "p", None), "y, z",
        [("F", "(x, w, c) => (y)", choice(norm("x", "b1", "t", None), norm("x", "b2", "u")))], 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONES)
def test_ones_and_zeros_are_in_reach_of_their_norm(name: str) -> None:
    body, outputs, functions, norms = ONES[name]
    source = model(
        body,
        inputs="float[2,3,8] x, bool c",
        outputs=", ".join(f"float[2,3,8] {output}" for output in outputs.split(", ")),
        imports=', "my" : 1',
        functions="".join(function(*each) for each in functions),
    )
    assert len(optimized(source, "portable")[0].fused) == norms


BSN = "float[B,S,8]"
FIRST = {
    "weightless, n unknown": (
        norm("x", "y", weight=None) + "z = Relu(v)\n" + norm("z", "y2", "k"),
        "float[B,S,N] x, float[B,8] v", "float[B,S,N] y, float[B,8] y2",
    ),
    "weightless": (norm("x", "y", weight=None), f"{BSN} x", f"{BSN} y"),
    "weighted": (norm("x", "y"), f"{BSN} x", f"{BSN} y"),
    "residual": (SUM + norm("h", "y"), RESIDUAL, "float[2,3,8] y"),
}  # fmt: skip
SECOND = {
    "weighted": norm("a", "o", "a_"),
    "bias": norm("a", "o0", "a_") + "o = Add(o0, w)",
    "weightless": norm("a", "o", "a_", None),
    "residual": "h2 = Add(a, a)\n" + norm("h2", "o", "a_"),
}


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("first", FIRST)
def test_new_norms_beside_those_of_an_earlier_run(first: str, second: str) -> None:
    # Function bodies are shared by name: the old nodes must keep a body that fits them.
    body, inputs, outputs = FIRST[first]
    merged = ir.to_proto(rx.optimize(model(body, inputs=inputs, outputs=outputs)).model)
    added = model(SECOND[second], inputs="float[2,3,8] a", outputs="float[2,3,8] o").graph
    merged.graph.node.extend(added.node)
    merged.graph.input.extend(added.input)
    merged.graph.output.extend(added.output)
    names = {tensor.name for tensor in merged.graph.initializer}
    merged.graph.initializer.extend(t for t in added.initializer if t.name not in names)
    _, proto = optimized(merged, "portable")
    assert not {"Pow", "ReduceMean", "Sqrt"} & set(ops(proto))


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
