"""Cutting nodes out of a model: right nodes, right constants, source untouched."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from proof.sites import source, values
from rmsnorm_export.errors import InputError
from rmsnorm_export.proof.cut import cut
from rmsnorm_export.proof.evaluate import run_numpy
from rmsnorm_export.runtime.session import run_onnxruntime

OPSETS = {"": 18}


def text(model: ir.Model) -> bytes:
    return ir.serde.serialize_model(model).SerializeToString()


def norm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + 1e-6) * w


def feeds(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    x = rng.standard_normal((2, 3, 96)).astype(np.float32)
    w = rng.standard_normal(96).astype(np.float32)
    return {"x0": x, "x1": w}, norm(x, w)


def typed(*values: ir.Value):
    """Element types: float32 for these, and for the others what they say of themselves."""
    return lambda value: 1 if value in values else value.dtype


def test_a_chain_between_other_nodes() -> None:
    model = source("  x1 = Sin (x0)\n  x = Cos (x1)\n{core}\n  y = Mul (v, w)\n  z = Tan (y)",
                   inputs=("x0", "w"), outputs=("z",))  # fmt: skip
    before = text(model)
    named = values(model)
    small = cut(
        [named["y"]], [named["x"], named["w"]], opset_imports=OPSETS, type_of=typed(named["x"])
    )
    assert [node.op_type for node in small.graph] == [
        "Pow", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul", "Mul", "Identity",
    ]  # fmt: skip
    assert [value.name for value in small.graph.inputs] == ["x0", "x1"]
    arrays, expected = feeds(np.random.default_rng(0))
    np.testing.assert_allclose(run_onnxruntime(small, arrays)["y0"], expected, rtol=1e-5)
    assert text(model) == before


def test_equal_layers_give_equal_bytes() -> None:
    def layer(k: int) -> str:
        body = "p = Pow (x, two)\n m = ReduceMean (p, axes)\n a = Add (m, epsilon)\n s = Sqrt (a)"
        body += "\n v = Div (x, s)\n y = Mul (v, w)"
        for name in "pmasvy":
            body = body.replace(f"{name} =", f"{name}{k} =")
            body = body.replace(f"({name},", f"({name}{k},").replace(f" {name})", f" {name}{k})")
            body = body.replace(f"({name})", f"({name}{k})")
        return body

    model = source(layer(1) + "\n" + layer(2) + "\n y = Add (y1, y2)")
    named = values(model)
    inputs = [named["x"], named["w"]]
    first, second = (cut([named[y]], inputs, opset_imports=OPSETS) for y in ("y1", "y2"))
    assert text(first) == text(second)


BRANCH = """<ir_version: 10, opset_import: ["" : 18]>
main (bool c, float[B, S, 96] h, float[96] w) => (float[B, S, 96] z)
< float two = {2.0}, int64[1] axes = {-1}, float epsilon = {0.000001} > {
  x = Cos (h)
  z = If (c) <
    then_branch = taken () => (float[B, S, 96] y) {
      p = Pow (x, two)
      m = ReduceMean (p, axes)
      a = Add (m, epsilon)
      s = Sqrt (a)
      v = Div (x, s)
      y = Mul (v, w)
    },
    else_branch = other () => (float[B, S, 96] k) { k = Identity (x) }
  >
}"""


def test_inside_a_subgraph() -> None:
    model = ir.from_onnx_text(BRANCH)
    before = text(model)
    outer = values(model)
    branch = next(iter(outer["z"].producer().attributes["then_branch"].as_graph().outputs))
    small = cut(
        [branch], [outer["x"], outer["w"]], opset_imports=OPSETS, type_of=typed(outer["x"], branch)
    )
    arrays, expected = feeds(np.random.default_rng(1))
    np.testing.assert_allclose(run_onnxruntime(small, arrays)["y0"], expected, rtol=1e-5)
    assert text(model) == before
    with pytest.raises(InputError, match="holds a subgraph"):
        cut([outer["z"]], [outer["x"], outer["w"], outer["c"]], opset_imports=OPSETS)


FUNCTION = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
main (float[B, 96] x, float[96] w) => (float[B, 96] y) { y = local.Norm <power = 2.0> (x, w) }
<domain: "local", opset_import: ["" : 18]>
Norm <power: float> (x, w) => (y) {
  two = Constant <value_float: float = @power> ()
  p = Pow (x, two)
  axes = Constant <value_ints = [-1]> ()
  m = ReduceMean (p, axes)
  e = Constant <value_float = 0.000001> ()
  a = Add (m, e)
  s = Sqrt (a)
  v = Div (x, s)
  y = Mul (v, w)
}"""


def test_inside_a_function_body() -> None:
    model = ir.from_onnx_text(FUNCTION)
    function = next(iter(model.functions.values()))
    inputs, output = list(function.inputs), function.outputs[0]
    type_of = typed(*inputs, output)
    with pytest.raises(InputError, match="depends on the function's caller"):
        cut([output], inputs, opset_imports=OPSETS, type_of=type_of)
    power = ir.AttrFloat32("value_float", 2.0)
    function[0].attributes["value_float"] = power
    small = cut([output], inputs, opset_imports=OPSETS, type_of=type_of)
    arrays, expected = feeds(np.random.default_rng(2))
    np.testing.assert_allclose(run_onnxruntime(small, arrays)["y0"], expected, rtol=1e-5)


def test_called_functions_come_along() -> None:
    model = ir.from_onnx_text(FUNCTION)
    named = values(model)
    small = cut(
        [named["y"]],
        [named["x"], named["w"]],
        opset_imports={"": 18, "local": 1},
        functions=model.functions.values(),
    )
    assert list(small.functions) == [("local", "Norm", "")]
    arrays, expected = feeds(np.random.default_rng(3))
    for run in (run_numpy, run_onnxruntime):
        np.testing.assert_allclose(run(small, arrays)["y0"], expected, rtol=1e-5)


def test_detached_nodes_may_use_values_of_a_graph() -> None:
    model = source("{core}\n  y = Mul (v, w)")
    named = values(model)
    doubled = ir.node("Add", [named["v"], named["v"]])
    before = text(model)
    small = cut(
        doubled.outputs, [named["x"]], opset_imports=OPSETS, type_of=typed(*doubled.outputs)
    )
    arrays, _ = feeds(np.random.default_rng(4))
    expected = norm(arrays["x0"], np.float32(2))
    found = run_onnxruntime(small, {"x0": arrays["x0"]})["y0"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert text(model) == before


def test_a_weight_is_never_copied() -> None:
    weight = ir.Value(name="w", const_value=ir.tensor(np.ones(96, np.float32)))
    model = source("{core}\n  y = Mul (v, w)")
    named = values(model)
    new = ir.node("Mul", [named["v"], weight])
    with pytest.raises(InputError, match="96 elements"):
        cut(new.outputs, [named["x"]], opset_imports=OPSETS)
    made_here = cut(new.outputs, [named["x"]], opset_imports=OPSETS, constants=[weight])
    assert [v.name for v in made_here.graph.initializers.values() if v.const_value.size == 96]


def test_an_input_that_is_not_given() -> None:
    model = source("{core}\n  y = Mul (v, w)")
    named = values(model)
    with pytest.raises(InputError, match="'w', an input of the graph"):
        cut([named["y"]], [named["x"]], opset_imports=OPSETS)


def test_an_initializer_that_is_also_an_input_is_no_constant() -> None:
    model = source("{core}\n  y = Mul (v, w)")
    named = values(model)
    model.graph.inputs.append(named["epsilon"])
    with pytest.raises(InputError, match="'epsilon', an input"):
        cut([named["y"]], [named["x"], named["w"]], opset_imports=OPSETS)


def test_a_walk_that_misses_its_inputs_ends() -> None:
    value = start = ir.Value(name="start")
    for _ in range(2000):
        value = ir.node("Neg", [value]).outputs[0]
    with pytest.raises(InputError, match="more than 512 nodes"):
        cut([value], [start], opset_imports=OPSETS)


def test_a_cycle_is_an_error() -> None:
    first = ir.node("Neg", [None])
    second = ir.node("Neg", [first.outputs[0]])
    first.replace_input_with(0, second.outputs[0])
    with pytest.raises(InputError, match="cycle"):
        cut(second.outputs, [], opset_imports=OPSETS)


def test_a_second_cast_of_the_same_value_is_the_input() -> None:
    body = "  xf = Cast <to = 1> (x)\n  i = Identity (x)\n  xg = Cast <to = 1> (i)\n"
    body += "  p = Pow (xg, two)\n  m = ReduceMean (p, axes)\n  a = Add (m, epsilon)\n"
    body += "  s = Sqrt (a)\n  v = Div (xf, s)\n  y = Mul (v, w)"
    model = source(body, dtype=10, row="xf")
    named = values(model)
    type_of = typed(named["xf"], named["w"], named["y"])
    small = cut([named["y"]], [named["xf"], named["w"]], opset_imports=OPSETS, type_of=type_of)
    assert [node.op_type for node in small.graph][:2] == ["Pow", "ReduceMean"]
    assert "Cast" not in [node.op_type for node in small.graph]
    arrays, expected = feeds(np.random.default_rng(6))
    np.testing.assert_allclose(run_numpy(small, arrays)["y0"], expected, rtol=1e-5)


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
        found = run(small, {"x0": x})["y0"]
        assert found.dtype == np.float16
        np.testing.assert_array_equal(found, x.reshape(2, 5, 4, 3))
