"""Types and shapes behind operators that are not ONNX's are those of ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnxruntime import SessionOptions
from onnxruntime.capi import onnxruntime_pybind11_state as binding

import rmsnorm_export as rx
from rmsnorm_export.errors import VerificationError
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.recognize.contrib import ROWS
from rmsnorm_export.recognize.shape_rules import Info
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.inputs import index_limits
from rmsnorm_export.runtime.session import open_session, run_session

from .contrib_cases import CASES, Case
from .text_models import CONSTANTS, TARGETS, WEIGHT, model, norm

NOT_ON_CPU = {
    "BiasAdd", "BiasDropout", "BiasSoftmax", "BiasSplitGelu", "BitmaskBiasDropout",
    "BitmaskDropout", "DecoderAttention", "DecoderMaskedSelfAttention", "FusedMatMulActivation",
    "GemmFastGelu", "GroupNorm", "LongformerAttention", "MatMulNBitsMlp", "MatMulNBitsQkv",
    "NhwcConv", "NhwcFusedConv", "PackedAttention", "PackedMultiHeadAttention", "PagedAttention",
    "QLinearReduceMean", "QOrderedGelu", "QOrderedLayerNormalization", "RestorePadding",
    "ScaledSiLU", "SkipGroupNorm", "SparseAttention", "TorchEmbedding",
}  # fmt: skip
"""These ONNX Runtime does not run on the CPU, or not by themselves: its inference says the shape.
"""

FORMS_NOT_ON_CPU = tuple(
    f"MultiHeadAttention(f32 {form}"
    for form in ("2x3x8, f32 2x2x5x4, f32 2x2x5x6", "2x3x8, f32 2x5x2x2x4", "2x3x2x3x4")
)

SYMBOL_IS_KNOWN = 0.8
"""Least part of the cases whose shapes stay known where every size is a name."""


def claims(model: onnx.ModelProto) -> list[Info]:
    """What is said of the outputs."""
    read = ir.from_proto(model)
    types = Types(read)
    return [types.info(value) for value in read.graph.outputs]


def inferred(model: onnx.ModelProto) -> list[tuple[str, list[int | str | None]]] | None:
    """What ONNX Runtime infers when it loads a model, before it looks for kernels."""
    options = SessionOptions()
    options.log_severity_level = 4
    try:
        session = binding.InferenceSession(options, model.SerializeToString(), False, False)
    except Exception:  # it has classes of errors of its own
        return None
    return [(output.type, output.shape) for output in session.outputs_meta]


def type_text(dtype: ir.DataType) -> str:
    return f"tensor({dtype.name.lower()})"


def computed(case: Case, model: onnx.ModelProto) -> list[np.ndarray] | None:
    """The outputs; None where there is no kernel for the CPU."""
    names = {value.name for value in model.graph.input}
    feeds = {name: array for name, array in case.arrays().items() if name in names}
    try:
        session = open_session(model.SerializeToString(), optimize=False, threads=1)
        return list(run_session(session, feeds).values())
    except VerificationError:
        return None


def wrong(
    said: list[Info], shapes: list[tuple[int | str | None, ...]], sizes: Mapping[str, int]
) -> list[Info]:
    """The claims that are not so; None and sizes that are not known are none."""
    return [
        (dtype, dims)
        for (dtype, dims), shape in zip(said, shapes, strict=True)
        if dims is not None
        and (len(dims) != len(shape) or any(
            None not in (size, actual) and sizes.get(size, size) != actual  # type: ignore[arg-type]
            for size, actual in zip(dims, shape, strict=True)
        ))
    ]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_shape_is_that_of_onnx_runtime(case: Case) -> None:
    model, _ = case.model()
    named, sizes = case.model(symbols=True)
    said, metas, arrays = claims(model), inferred(model), computed(case, model)
    assert said[0][0] is not None
    assert metas is not None
    assert arrays is not None or case.op in NOT_ON_CPU or str(case).startswith(FORMS_NOT_ON_CPU)
    for (dtype, _), (text, _) in zip(said, metas, strict=True):
        assert dtype is None or type_text(dtype) == text
    shapes = [tuple(shape) for _, shape in metas] if arrays is None else [a.shape for a in arrays]
    assert not wrong(said, shapes, {})
    assert not wrong(claims(named), shapes, sizes)


def test_every_row_is_run_and_says_enough() -> None:
    names = {name for row in ROWS["com.microsoft"] for name in row["operators"]}
    assert names == {case.op for case in CASES}
    known = [claims(case.model(symbols=True)[0])[0][1] is not None for case in CASES]
    assert sum(known) > SYMBOL_IS_KNOWN * len(CASES)


def less_certain(case: Case) -> Iterator[Case]:
    """The same node with an attribute missing or of another type or value, or inputs missing."""
    for name in case.attributes:
        rest = {key: value for key, value in case.attributes.items() if key != name}
        yield dataclasses.replace(case, attributes=rest)
        for value in (0, -1, 1 << 62, 0.5, "x", [1, 2]):
            yield dataclasses.replace(case, attributes=rest | {name: value})
    for count in range(len(case.inputs)):
        yield dataclasses.replace(case, inputs=case.inputs[:count])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_of_a_node_that_lacks_something_nothing_wrong_is_said(case: Case) -> None:
    for other in less_certain(case):
        model, _ = other.model()
        said, metas = claims(model), inferred(model)
        if metas is None:
            continue  # ONNX Runtime does not load it
        for (dtype, dims), (text, shape) in zip(said, metas, strict=True):
            assert dtype is None or text in ("", type_text(dtype)), other
            if dims is not None and shape:
                assert not wrong([(dtype, dims)], [tuple(shape)], {}), other


def test_rows_of_a_quantised_table_bound_their_index() -> None:
    """Random tokens are below the number of rows, as they are for a Gather."""
    tables = [case for case in CASES if case.op == "GatherBlockQuantized"]
    limits = [index_limits(ir.from_proto(case.model()[0]))["i1"] for case in tables]
    assert limits == [32 if "gather_axis" in case.attributes else 10 for case in tables]


def _chain(*nodes: onnx.NodeProto, dtype: int = onnx.TensorProto.FLOAT16) -> list[Info]:
    """What is said of the outputs of nodes, one after the other, on ``x`` of float16 [b, 8, 64]."""
    x = helper.make_tensor_value_info("x", dtype, ["b", 8, 64])
    scales = [helper.make_tensor("s", 10, [], [0.5]), helper.make_tensor("t", 1, [], [0.5])]
    outputs = [name for node in nodes for name in node.output]
    graph = helper.make_graph(
        nodes, "g", [x], [onnx.ValueInfoProto(name=name) for name in outputs], scales
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("trt", 1)]
    return claims(helper.make_model(graph, opset_imports=imports, ir_version=10))


def _trt(op: str, inputs: str, outputs: str, domain: str = "trt", **how: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), domain=domain, **how)


_BLOCKS = {"axis": -1, "block_size": 32}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([_trt("TRT_FP8QuantizeLinear", "x s", "q"), _trt("TRT_FP8DequantizeLinear", "q s", "y")],
         ["FLOAT8E4M3FN", "FLOAT16"]),
        ([_trt("TRT_FP8QuantizeLinear", "x t", "q"), _trt("TRT_FP8DequantizeLinear", "q t", "y")],
         ["FLOAT8E4M3FN", "FLOAT"]),
        ([_trt("TRT_INT4QuantizeLinear", "x s", "q", **_BLOCKS),
          _trt("TRT_INT4DequantizeLinear", "q s", "y", **_BLOCKS)], ["INT4", "FLOAT16"]),
        ([_trt("TRT_MXFP8DynamicQuantize", "x", "q z", output_dtype=17, **_BLOCKS),
          _trt("TRT_MXFP8DequantizeLinear", "q z", "y", output_dtype=10, **_BLOCKS)],
         ["FLOAT8E4M3FN", "", "FLOAT16"]),
        ([_trt("TRT_FP4DynamicQuantize", "x t", "q z", scale_type=17, **_BLOCKS),
          _trt("DequantizeLinear", "z t", "d", ""),
          _trt("DequantizeLinear", "q d", "y", "", **_BLOCKS)],
         ["FLOAT4E2M1", "FLOAT8E4M3FN", "FLOAT", "FLOAT"]),
        ([_trt("TRT_FP4QDQ", "x", "y", block_size=16)], ["FLOAT16"]),
        ([_trt("DequantizeLinear", "x s", "y", **_BLOCKS)], ["FLOAT16"]),
        ([_trt("QuantizeLinear", "x s", "q", ""), _trt("DequantizeLinear", "q s", "y", "")],
         ["UINT8", "FLOAT16"]),
    ],
)  # fmt: skip
def test_trt(nodes: list[onnx.NodeProto], expected: list[str]) -> None:
    """As ModelOpt writes them: the type behind a dequantizer is that of its scale."""
    said = _chain(*nodes)
    assert [None if dtype is None else dtype.name for dtype, _ in said] == [
        name or None for name in expected
    ]
    assert said[0][1] == said[-1][1] == ("b", 8, 64)


@pytest.mark.parametrize(
    ("node", "dtype"),
    [
        (_trt("TRT_MXFP8DequantizeLinear", "x x", "y", **_BLOCKS), None),  # it is an attribute
        (_trt("TRT_MXFP8DequantizeLinear", "x x", "y", output_dtype=999, **_BLOCKS), None),
        (_trt("TRT_FP8DequantizeLinear", "x", "y"), None),
        (_trt("QuantizeLinear", "x s x", "y", "", output_dtype=17), "FLOAT8E4M3FN"),
        (_trt("DequantizeLinear", "x s", "y", "", output_dtype=1), "FLOAT"),
    ],
)
def test_a_type_that_an_attribute_says(node: onnx.NodeProto, dtype: str | None) -> None:
    found = _chain(node)[0][0]
    assert (found and found.name) == dtype


QUANTISED = {
    "none": "q = Identity(a)",
    "fp8": "c = trt.TRT_FP8QuantizeLinear(a, step)\n q = trt.TRT_FP8DequantizeLinear(c, step)",
    "int4": "c = trt.TRT_INT4QuantizeLinear(a, step)\n q = trt.TRT_INT4DequantizeLinear(c, step)",
    "mxfp8": "c, s = trt.TRT_MXFP8DynamicQuantize<output_dtype = 17>(a)\n"
    " q = trt.TRT_MXFP8DequantizeLinear<output_dtype = 1>(c, s)",
    "nvfp4": "c, s = trt.TRT_FP4DynamicQuantize<scale_type = 17>(a, step)\n"
    " t = DequantizeLinear(s, step)\n q = DequantizeLinear<axis = -1>(c, t)",
}


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("target", TARGETS)
def test_norms_behind_quantisers_of_tensorrt_are_found(kind: str, target: Target) -> None:
    body = f"{norm('x', 'a', 'p')}{QUANTISED[kind]}\n b = MatMul(q, matrix)\n"
    source = model(
        f"{body} h = Add(x, b)\n {norm('h', 'd', 'r')} f = MatMul(d, matrix)\n y = Add(h, f)",
        constants=f"{WEIGHT}, {CONSTANTS}, float step = {{0.5}}, float[1,8,8] matrix = {{"
        f"{', '.join(map(str, range(64)))}}}",
        imports=', "trt" : 1',
    )
    report = rx.optimize(source, target=target).report
    assert [site.n for site in report.fused] == [8, 8]
    assert sum(site.residual for site in report.fused) == (target != "onnx")


@pytest.mark.parametrize("domain", ["ai.onnx.contrib", "com.example", "com.microsoft.nchwc"])
def test_an_operator_of_an_unknown_domain_says_nothing(domain: str) -> None:
    for op in ("Gelu", "MatMulNBits", "TRT_FP4QDQ", "Identity", "Add"):
        assert _chain(_trt(op, "x", "y", domain)) == [(None, None)]
