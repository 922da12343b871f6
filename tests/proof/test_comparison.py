"""A model and another one beside it: weights are read in memory, whatever they lie in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from rmsnorm_export.graph.load import load_model
from rmsnorm_export.proof import comparison
from rmsnorm_export.proof.comparison import (
    WrongError,
    compare_with,
    executed,
    mapped,
    opened,
    run_reference,
)
from rmsnorm_export.runtime.session import executed_graph, open_session, run_session

_WEIGHT = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
_ONE = """<ir_version: 11, opset_import: ["" : 21]>
g (float[n, 40] x) => (float[n, m] y) {{
  {lines}
  y = MatMul (x, w)
}}"""
_IN_BRANCHES = """<ir_version: 11, opset_import: ["" : 21]>
g (float[n, 40] x, bool c) => (float[n, 40] y) {
  y = If (c) <then_branch = a () => (float[n, 40] p) { p = MatMul (x, weight) },
              else_branch = b () => (float[n, 40] q) { q = Sub (x, x) }>
}"""

_IN_A_LOOP = """<ir_version: 9, opset_import: ["" : 18]>
g (float[n, 4] x, int64 n, bool c) => (float[n, 4] y) {
  y = Loop (n, c, x) <body = b (int64 i, bool d, float[n, 4] h) => (bool e, float[n, 4] r) {
    e = Identity (d)
    r = If (d) <then_branch = t () => (float[n, 4] p) {
                  axes = Constant <value_ints = [-1]> ()
                  p = ReduceMean (h, axes)
                }, else_branch = z () => (float[n, 4] q) { q = Neg (h) }>
  }>
}"""


def _model(lines: str, weight: np.ndarray) -> ir.Model:
    model = onnx.parser.parse_model(_ONE.format(lines=lines))
    model.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    return ir.from_proto(model)


def _of_type(dtype: type) -> Callable[[Path], ir.Model]:
    return lambda _: _model("w = Cast <to = 1> (weight)", _WEIGHT.astype(dtype))


def _not_dense(_: Path) -> ir.Model:
    model = _model("w = Identity (weight)", _WEIGHT)
    model.graph.initializers["weight"].const_value = ir.tensor(_WEIGHT.T, name="weight")
    return model


def _on_disk(folder: Path) -> ir.Model:
    ir.save(_not_dense(folder), folder / "m.onnx", external_data="m.data")
    return ir.load(folder / "m.onnx")


def _in_an_attribute(_: Path) -> ir.Model:
    model = _model("w = Constant <value = float {0}> ()", _WEIGHT)
    (node, _) = model.graph
    node.attributes["value"] = ir.AttrTensor("value", ir.tensor(_WEIGHT))
    return model


def _of_a_branch(_: Path) -> ir.Model:
    model = onnx.parser.parse_model(_IN_BRANCHES)
    branch = model.graph.node[0].attribute[0].g
    branch.initializer.append(numpy_helper.from_array(_WEIGHT, "weight"))
    return ir.from_proto(model)


def _used_in_a_branch(_: Path) -> ir.Model:
    model = onnx.parser.parse_model(_IN_BRANCHES)
    model.graph.initializer.append(numpy_helper.from_array(_WEIGHT, "weight"))
    return ir.from_proto(model)


def _may_be_given(_: Path) -> ir.Model:
    model = _model("w = Identity (weight)", _WEIGHT)
    model.graph.inputs.append(model.graph.initializers["weight"])
    return model


PLACES: dict[str, Callable[[Path], ir.Model]] = {
    **{
        np.dtype(one).name: _of_type(one)
        for one in (np.float16, np.float64, np.int8, np.int64, ml_dtypes.bfloat16)
    },
    **{
        np.dtype(one).name: _of_type(one)
        for one in (ml_dtypes.int4, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    },
    "not dense": _not_dense,
    "on disk": _on_disk,
    "in an attribute, and one not used": _in_an_attribute,
    "of a branch": _of_a_branch,
    "used in a branch": _used_in_a_branch,
    "may be given": _may_be_given,
}


@pytest.mark.parametrize("place", PLACES)
def test_weights_are_read_where_they_are(place: str, tmp_path: Path) -> None:
    model = PLACES[place](tmp_path)
    weights = [v.const_value for g in model.graphs() for v in g.initializers.values()]
    reference = run_reference(model, seed=1)
    assert not reference.problem
    assert [v.const_value for g in model.graphs() for v in g.initializers.values()] == weights
    whole = ir.external_data.load_to_model(model.clone())
    assert executed(model) == executed(whole)
    expected = run_session(open_session(ir.to_proto(whole).SerializeToString()), reference.feeds)
    assert reference.outputs["y"].tolist() == expected["y"].tolist()
    assert compare_with(reference, model).words() == (
        "1 output differs by at most 0 of the largest element"
    )


def test_what_differs_is_wrong() -> None:
    reference = run_reference(_model("w = Identity (weight)", _WEIGHT), seed=1)
    with pytest.raises(WrongError, match=r"y is off by 0\.0\d+ of its largest element, 0\.0001"):
        compare_with(reference, _model("w = Identity (weight)", _WEIGHT * np.float32(1.01)))


def test_no_numbers_are_not_compared() -> None:
    model = _model("w = Identity (weight)", np.full_like(_WEIGHT, np.nan))
    outcome = compare_with(run_reference(model, seed=1), model)
    assert (outcome.outputs, outcome.unknown[:3]) == (0, "y: ")


def test_what_does_not_run_is_not_compared() -> None:
    model = _model("w = Identity (weight)", _WEIGHT)
    other = _model("w = Identity (weight)", _WEIGHT[:39])
    assert "does not run" in run_reference(other, seed=1).problem
    outcome = compare_with(run_reference(model, seed=1), other)
    assert outcome.after_fails
    assert not outcome.words()


def test_large_weights_are_not_read_to_count_what_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Transpose of one is folded all the same, and not by the session, which makes a copy."""
    given: list[onnx.ModelProto] = []

    def seen(content: bytes, **how: Any) -> onnx.GraphProto:
        given.append(onnx.ModelProto.FromString(content))
        return executed_graph(content, **how)

    monkeypatch.setattr(comparison, "executed_graph", seen)
    model = _model("w = Transpose (weight)", np.zeros((1 << 14, 40), np.float32))
    ir.save(model, tmp_path / "m.onnx", external_data="m.data")
    model = ir.load(tmp_path / "m.onnx")
    (tmp_path / "m.data").unlink()
    assert executed(model) == (1, 0)
    assert [node.op_type for node in given[0].graph.node if node.op_type == "Transpose"] == []
    assert [*given[0].graph.initializer[-1].dims] == [40, 1 << 14]
    assert model.graph.initializers["weight"].const_value.location == "m.data"


def test_nodes_of_bodies_are_counted_where_a_name_stands_twice_in_one() -> None:
    """ONNX Runtime 1.31 writes the constant as a node and as an initializer."""
    assert executed(ir.from_proto(onnx.parser.parse_model(_IN_A_LOOP))) == (6, 0)


def test_weights_in_the_file_of_a_model_are_read_there(tmp_path: Path) -> None:
    """And from memory, once another file has its name."""
    weight = np.random.default_rng(0).standard_normal((40, 1 << 9)).astype(np.float32)
    path, other = tmp_path / "m.onnx", tmp_path / "other.onnx"
    ir.save(_model("w = Identity (weight)", weight), path)
    ir.save(_model("w = Identity (weight)", 2 * weight), other)
    model = load_model(path).model
    own = os.path.realpath(tmp_path)
    assert mapped(model, "/nowhere")[1] == own
    feeds = {"x": np.ones((3, 40), np.float32)}
    expected = feeds["x"] @ weight
    with opened(model) as session:
        assert np.allclose(run_session(session, feeds)["y"], expected, atol=1e-4)
    other.replace(path)
    with opened(model) as session:
        assert np.allclose(run_session(session, feeds)["y"], expected, atol=1e-4)
    spare = tmp_path / "spare"
    spare.mkdir()
    assert mapped(model, str(spare))[1] == str(spare)
    assert (spare / "weights").stat().st_size == weight.nbytes
