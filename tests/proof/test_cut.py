"""Cutting nodes out of a model: right nodes, right constants, source untouched."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from proof.sites import PLAIN, TAIL, source, values
from rmsnorm_export.errors import InputError
from rmsnorm_export.proof.cut import cut
from rmsnorm_export.proof.evaluate import run_numpy
from rmsnorm_export.runtime.session import run_onnxruntime

OPSETS = {"": 18}


def text(model: ir.Model) -> bytes:
    return ir.serde.serialize_model(model).SerializeToString()


def gives_the_norm(small: ir.Model) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 96)).astype(np.float32)
    w = rng.standard_normal(96).astype(np.float32)
    expected = x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + 1e-6) * w
    for run in (run_numpy, run_onnxruntime):
        np.testing.assert_allclose(run(small, {"x0": x, "x1": w})["y0"], expected, rtol=1e-5)


def typed(*values: ir.Value) -> Callable[[ir.Value], int | None]:
    """Element types: float32 for these, and for the others what they say of themselves."""
    return lambda value: 1 if value in values else value.dtype


def test_a_chain_between_other_nodes() -> None:
    model = source(f"  x1 = Sin (x0)\n  x = Cos (x1)\n{PLAIN}\n  z = Tan (y)",
                   inputs=("x0", "w"), outputs=("z",))  # fmt: skip
    before, named = text(model), values(model)
    ends = [named["y"]], [named["x"], named["w"]]
    small = cut(*ends, opset_imports=OPSETS, type_of=typed(named["x"]))
    assert [node.op_type for node in small.graph] == [
        "Pow", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul", "Mul", "Identity",
    ]  # fmt: skip
    assert [value.name for value in small.graph.inputs] == ["x0", "x1"]
    gives_the_norm(small)
    assert text(model) == before


def test_equal_layers_give_equal_bytes() -> None:
    layers = "".join(re.sub(r"\b([pmasvy])\b", rf"{layer}\1", NORM) for layer in "ij")
    model = source(layers + "  y = Add (iy, jy)")
    named = values(model)
    inputs = [named["x"], named["w"]]
    first, second = (cut([named[y]], inputs, opset_imports=OPSETS) for y in ("iy", "jy"))
    assert text(first) == text(second)


NORM = "  p = Pow (x, two)\n  m = ReduceMean (p, axes)\n" + TAIL
BRANCH = """<ir_version: 10, opset_import: ["" : 18]>
main (bool c, float[B, S, 96] h, float[96] w) => (float[B, S, 96] z)
< float two = {2.0}, int64[1] axes = {-1}, float epsilon = {0.000001} > {
  x = Cos (h)
  z = If (c) <
    then_branch = taken () => (float[B, S, 96] y) {
      NORM
    },
    else_branch = other () => (float[B, S, 96] k) { k = Identity (x) }
  >
}""".replace("NORM", NORM)


def test_inside_a_subgraph() -> None:
    model = ir.from_onnx_text(BRANCH)
    before, outer = text(model), values(model)
    (y,) = outer["z"].producer().attributes["then_branch"].as_graph().outputs
    inputs = [outer["x"], outer["w"]]
    gives_the_norm(cut([y], inputs, opset_imports=OPSETS, type_of=typed(outer["x"], y)))
    assert text(model) == before
    with pytest.raises(InputError, match="holds a subgraph"):
        cut([outer["z"]], [*inputs, outer["c"]], opset_imports=OPSETS)


FUNCTION = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
main (float[B, 96] x, float[96] w) => (float[B, 96] y) { y = local.Norm <power = 2.0> (x, w) }
<domain: "local", opset_import: ["" : 18]>
Norm <power: float> (x, w) => (y) {
  two = Constant <value_float: float = @power> ()
  axes = Constant <value_ints = [-1]> ()
  epsilon = Constant <value_float = 0.000001> ()
  NORM
}
<domain: "local", opset_import: ["" : 18]>
Other (x) => (y) { y = Neg (x) }""".replace("NORM", NORM)


def test_inside_a_function_body_and_around_its_call() -> None:
    model = ir.from_onnx_text(FUNCTION)
    function, named = next(iter(model.functions.values())), values(model)
    inputs, output = list(function.inputs), function.outputs[0]
    opsets, functions = {"": 18, "local": 1}, list(model.functions.values())
    ends = [named["y"]], [named["x"], named["w"]]
    whole = cut(*ends, opset_imports=opsets, functions=functions)
    assert list(whole.functions) == [("local", "Norm", "")]
    gives_the_norm(whole)
    options: dict[str, Any] = {"opset_imports": OPSETS, "type_of": typed(*inputs, output)}
    with pytest.raises(InputError, match="depends on the function's caller"):
        cut([output], inputs, **options)
    function[0].attributes["value_float"] = ir.AttrFloat32("value_float", 2.0)
    gives_the_norm(cut([output], inputs, **options))


def test_detached_nodes_use_values_of_a_graph_and_no_weight_is_copied() -> None:
    model = source(PLAIN)
    before, named = text(model), values(model)
    weight = ir.Value(name="k", const_value=ir.tensor(np.ones(96, np.float32)))
    new = ir.node("Mul", [ir.node("Mul", [named["v"], named["w"]]).outputs[0], weight])
    ends = new.outputs, [named["x"], named["w"]]
    with pytest.raises(InputError, match="96 elements"):
        cut(*ends, opset_imports=OPSETS)
    type_of = typed(*new.outputs)
    gives_the_norm(cut(*ends, opset_imports=OPSETS, constants=[weight], type_of=type_of))
    assert text(model) == before


@pytest.mark.parametrize("missing", ["w", "epsilon"])
def test_an_input_that_is_not_given(missing: str) -> None:
    """An initializer that is an input, too, is no constant."""
    model = source(PLAIN)
    named = values(model)
    if missing == "epsilon":
        model.graph.inputs.append(named[missing])
    inputs = [named[name] for name in ("x", "w") if name != missing]
    with pytest.raises(InputError, match=f"'{missing}', an input of the graph"):
        cut([named["y"]], inputs, opset_imports=OPSETS)


@pytest.mark.parametrize("cyclic", [False, True])
def test_a_walk_that_misses_its_inputs_ends(cyclic: bool) -> None:
    start = ir.Value(name="start")
    first = last = ir.node("Neg", [start])
    for _ in range(2000):
        last = ir.node("Neg", last.outputs)
    if cyclic:
        first.replace_input_with(0, last.outputs[0])
    with pytest.raises(InputError, match="more than 512 nodes"):
        cut(last.outputs, [start], opset_imports=OPSETS)


def test_a_second_cast_of_the_same_value_is_the_input() -> None:
    body = "  xf = Cast <to = 1> (x)\n  i = Identity (x)\n  xg = Cast <to = 1> (i)\n"
    body += NORM.replace("(x", "(xf").replace("Pow (xf", "Pow (xg")
    named = values(source(body, dtype=10, row="xf"))
    type_of = typed(named["xf"], named["w"], named["y"])
    small = cut([named["y"]], [named["xf"], named["w"]], opset_imports=OPSETS, type_of=type_of)
    assert "Cast" not in [node.op_type for node in small.graph]
    gives_the_norm(small)


def test_the_shape_of_another_value_and_the_type_of_another_do_not_need_it() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
    main (float[B, S, 12] x, int64[B, S] ids, float16 like) => (float16[B, S, 4, 3] y) {
      shape = Shape (ids)
      tail = Constant <value_ints = [4, 3]> ()
      target = Concat <axis = 0> (shape, tail)
      cut = Reshape (x, target)
      y = CastLike (cut, like)
    }"""
    named = values(ir.from_onnx_text(text))
    ends = [named["y"]], [named["x"]]
    with pytest.raises(InputError, match="'ids', an input"):
        cut(*ends, opset_imports=OPSETS)
    small = cut(*ends, opset_imports=OPSETS, sizes_of={named["ids"]: (2, 5)}.get)
    x = np.arange(120, dtype=np.float32).reshape(2, 5, 12)
    for run in (run_numpy, run_onnxruntime):
        output = run(small, {"x0": x})["y0"]
        assert output.dtype == np.float16
        np.testing.assert_array_equal(output, x.reshape(2, 5, 4, 3))
