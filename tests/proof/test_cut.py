"""Cutting nodes out of a model: right nodes, right constants, source untouched."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from proof.sites import CONSTANTS, PLAIN, TAIL, source, values
from rmsnorm_export.errors import InputError
from rmsnorm_export.proof.cut import cut
from rmsnorm_export.proof.evaluate import run_numpy
from rmsnorm_export.proof.feeds import static_shape
from rmsnorm_export.runtime.session import run_onnxruntime

NORM = "  p = Pow (x, two)\n  m = ReduceMean (p, axes)\n" + TAIL


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


def part(outputs: Sequence[ir.Value], inputs: Sequence[ir.Value], **options: Any) -> ir.Model:
    return cut(outputs, inputs, **{"opset_imports": {"": 18}, **options})


def test_a_chain_between_other_nodes() -> None:
    body = f"  x1 = Sin (x0)\n  x = Cos (x1)\n{PLAIN}\n  z = Tan (y)"
    model = source(body, inputs=("x0", "w"), outputs="z")
    before, named = text(model), values(model)
    small = part([named["y"]], [named["x"], named["w"]], type_of=typed(named["x"]))
    expected = ["Pow", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul", "Mul", "Identity"]
    assert [node.op_type for node in small.graph] == expected
    assert [value.name for value in small.graph.inputs] == ["x0", "x1"]
    gives_the_norm(small)
    assert text(model) == before


def test_equal_layers_give_equal_bytes() -> None:
    layers = "".join(re.sub(r"\b([pmasvy])\b", rf"{layer}\1", NORM) for layer in "ij")
    model = source(layers + "  y = Add (iy, jy)")
    named = values(model)
    inputs = [named["x"], named["w"]]
    first, second = (part([named[y]], inputs) for y in ("iy", "jy"))
    assert text(first) == text(second)


BRANCH = f"""  x = Cos (h)
  c = Cast <to = 9> (two)
  z = If (c) <then_branch = taken () => (float[B, S, 96] y) {{ {NORM} }},
    else_branch = other () => (float[B, S, 96] k) {{ k = Identity (x) }}>"""


def test_inside_a_subgraph() -> None:
    model = source(BRANCH, inputs="hw", outputs="z")
    before, outer = text(model), values(model)
    (y,) = outer["z"].producer().attributes["then_branch"].as_graph().outputs
    inputs = [outer["x"], outer["w"]]
    gives_the_norm(part([y], inputs, type_of=typed(outer["x"], y)))
    assert text(model) == before
    z = outer["z"]
    gives_the_norm(part([z], inputs, type_of=typed(outer["x"], z)))


FUNCTION = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
main (float[B, 96] x, float[96] w) => (float[B, 96] y) { y = local.Norm <power = 2.0> (x, w) }
<domain: "local", opset_import: ["" : 18]>
Norm <power: float> (x, w) => (y) {
  NORM
}
<domain: "local", opset_import: ["" : 18]>
Other (x) => (y) { y = Neg (x) }"""
POWER = CONSTANTS.replace("value_float = 2.0", "value_float: float = @power")
FUNCTION = FUNCTION.replace("NORM", f"{POWER}\n{NORM}")


def test_inside_a_function_body_and_around_its_call() -> None:
    model = ir.from_onnx_text(FUNCTION)
    function, named = next(iter(model.functions.values())), values(model)
    inputs, output = list(function.inputs), function.outputs[0]
    opsets, functions = {"": 18, "local": 1}, list(model.functions.values())
    ends = [named["y"]], [named["x"], named["w"]]
    whole = part(*ends, opset_imports=opsets, functions=functions)
    assert list(whole.functions) == [("local", "Norm", "")]
    gives_the_norm(whole)
    type_of = typed(*inputs, output)
    with pytest.raises(InputError, match="depends on the function's caller"):
        part([output], inputs, type_of=type_of)
    function[0].attributes["value_float"] = ir.AttrFloat32("value_float", 2.0)
    gives_the_norm(part([output], inputs, type_of=type_of))


def test_detached_nodes_use_values_of_a_graph_and_no_weight_is_copied() -> None:
    model = source(PLAIN)
    before, named = text(model), values(model)
    weight = ir.Value(name="k", const_value=ir.tensor(np.ones(96, np.float32)))
    new = ir.node("Mul", [ir.node("Mul", [named["v"], named["w"]]).outputs[0], weight])
    ends = new.outputs, [named["x"], named["w"]]
    with pytest.raises(InputError, match="96 elements"):
        part(*ends)
    gives_the_norm(part(*ends, constants=[weight], type_of=typed(*new.outputs)))
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
        part([named["y"]], inputs)


@pytest.mark.parametrize("cyclic", [False, True])
def test_a_walk_that_misses_its_inputs_ends(cyclic: bool) -> None:
    start = ir.Value(name="start")
    first = last = ir.node("Neg", [start])
    for _ in range(2000):
        last = ir.node("Neg", last.outputs)
    if cyclic:
        first.replace_input_with(0, last.outputs[0])
    with pytest.raises(InputError, match="more than 512 nodes"):
        part(last.outputs, [start])


def test_a_second_cast_of_the_same_value_is_the_input() -> None:
    body = "  xf = Cast <to = 1> (x)\n  i = Identity (x)\n  xg = Cast <to = 1> (i)\n"
    body += NORM.replace("(x", "(xf").replace("Pow (xf", "Pow (xg")
    named = values(source(body, dtype=10, row="xf"))
    inputs = [named["xf"], named["w"]]
    small = part([named["y"]], inputs, type_of=typed(*inputs, named["y"]))
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
        part(*ends)
    small = part(*ends, sizes_of={named["ids"]: (2, 5)}.get)
    x = np.arange(120, dtype=np.float32).reshape(2, 5, 12)
    for run in (run_numpy, run_onnxruntime):
        output = run(small, {"x0": x})["y0"]
        assert output.dtype == np.float16
        np.testing.assert_array_equal(output, x.reshape(2, 5, 4, 3))


def test_the_shape_of_a_constant_is_read_without_naming_it() -> None:
    """The name would be in the bytes of a file whose norm is left as it is."""
    tensor = ir.tensor(np.ones(3, np.float32))
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[ir.val("c")])
    assert static_shape(node.outputs[0]) == (3,)
    assert tensor.name is None
