"""The files that are measured: one block of norms with residuals, in every form and type."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.session import load_session

SHAPE = (2, 5, 64)
NORMS = 3
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
HALF_TYPES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
BOUNDS = {"float32": 1e-4, "float16": 3e-2}
"""Largest distance from the raw file in ONNX Runtime, without graph optimization: the outputs are
around 1, at most 10; a rounding of float16 there is 2**-8 at most, and three norms pass it on."""

FORMS = ("raw", *TARGETS)


def block(dtype: int, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    """``x = norm(x + x @ w) * g``, three times, in LLaMA's order; float32 at its ends.

    Nobody reads the last sum: what a runtime does with an output that nobody wants is seen.
    """
    rng = np.random.default_rng(0)
    nodes, tensors = [], []

    def add(kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def stored(name: str, values: object, element: int = TensorProto.FLOAT) -> str:
        array = np.asarray(values).astype(helper.tensor_dtype_to_np_dtype(element))
        tensors.append(numpy_helper.from_array(array, name))
        return name

    two, epsilon = stored("two", 2.0), stored("epsilon", 1e-5)
    axes = [stored("axes", [-1], TensorProto.INT64)] if opset >= 18 else []
    attributes = {"keepdims": 1, **({} if axes else {"axes": [-1]})}
    half, n = dtype != TensorProto.FLOAT, SHAPE[-1]
    x = add("Cast", "input", to=dtype) if half else "input"
    for index in range(NORMS):
        weight = stored(f"weight_{index}", rng.normal(size=(n, n)) / np.sqrt(n), dtype)
        gain = stored(f"gain_{index}", rng.normal(size=n), dtype)
        total = add("Add", x, add("MatMul", x, weight))
        row = add("Cast", total, to=TensorProto.FLOAT) if half else total
        mean = add("ReduceMean", add("Pow", row, two), *axes, **attributes)
        unit = add("Div", row, add("Sqrt", add("Add", mean, epsilon)))
        x = add("Mul", add("Cast", unit, to=dtype) if half else unit, gain)
    nodes.append(
        helper.make_node("Cast", [x], ["output"], to=TensorProto.FLOAT)
        if half
        else helper.make_node("Identity", [x], ["output"])
    )
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)]
        for name in ("input", "output")
    ]
    graph = helper.make_graph(nodes, "block", *ends, tensors)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def feed() -> Array:
    """The input of the block."""
    return np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)


def write_files(folder: pathlib.Path) -> dict[str, tuple[pathlib.Path, Array]]:
    """Every form and type in ``folder``, by ``form-type``, with the expected output.

    That is what the raw file computes, in ONNX Runtime without graph optimization.
    """
    files = {}
    for name, dtype in TYPES.items():
        raw = block(dtype)
        session = load_session(raw.SerializeToString(), threads=1)
        expected: Array = session.run(None, {"input": feed()})[0]
        for form in FORMS:
            path = folder / f"{form}-{name}.onnx"
            if form == "raw":
                onnx.save(raw, path)
            else:
                rx.optimize(raw, target=form).save(path)
            files[f"{form}-{name}"] = (path, expected)
    return files


def operator_tests(opset: int) -> dict[str, list[onnx.ModelProto]]:
    """ONNX's own tests of one operator up to ``opset`` that take float32, by operator."""
    with np.errstate(all="ignore"):
        cases = [case.model for case in collect_testcases(None)]
    tests: dict[str, list[onnx.ModelProto]] = {}
    for model in cases:
        imports = {entry.domain: entry.version for entry in model.opset_import}
        single = len(model.graph.node) == 1 and set(imports) == {""} and imports[""] <= opset
        if single and not model.functions:
            tests.setdefault(model.graph.node[0].op_type, []).append(model)
    return tests


def in_type(model: onnx.ModelProto, dtype: int) -> onnx.ModelProto | None:
    """``model`` with its float32 inputs and outputs in ``dtype``; None: there is no such model."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    ends = [value.type.tensor_type for value in (*other.graph.input, *other.graph.output)]
    floats = [end for end in ends if end.elem_type == TensorProto.FLOAT]
    for end in floats:
        end.elem_type = dtype
    try:
        onnx.shape_inference.infer_shapes(other, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return None
    return other if floats else None
