"""One node of each operator that is not ONNX's, as ONNX Runtime takes it.

An input is written ``f32 2x3x8``, with ``=`` and numbers where random ones will not do. Behind
``!`` it is a constant, which has no names for its sizes. ``""`` is absent.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

TYPES = {
    "f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32, "i16": np.int16,
    "i8": np.int8, "u8": np.uint8, "u4": ml_dtypes.uint4, "i4": ml_dtypes.int4, "b": np.bool_,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """A node: its operator, inputs, attributes, and how many outputs are named."""

    op: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any]
    outputs: int = 1
    domain: str = "com.microsoft"

    def __str__(self) -> str:
        return f"{self.op}({', '.join(self.inputs)}) {self.attributes or ''}"

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs that are there, by name."""
        rng = np.random.default_rng(0)
        arrays = {}
        for index, text in enumerate(self.inputs):
            if not text:
                continue
            text, _, number = text.removeprefix("!").partition("=")
            kind, *sizes = text.split()
            shape = tuple(map(int, sizes[0].split("x"))) if sizes else ()
            told = [int(part) for part in number.split("+") if part]
            made = np.resize(told, shape) if told else rng.uniform(0, 2, shape)
            arrays[f"i{index}"] = np.asarray(made).astype(TYPES[kind])
        return arrays

    def model(self, *, symbols: bool = False) -> tuple[onnx.ModelProto, dict[str, int]]:
        """The model, and the sizes of the names in it: with ``symbols`` of every size of an input
        that is no constant."""
        sizes: dict[str, int] = {}
        inputs, constants = [], []
        for name, array in self.arrays().items():
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            if self.inputs[int(name[1:])].startswith("!"):
                constants.append(onnx.numpy_helper.from_array(array, name))
                continue
            named = {f"{name}_{axis}": size for axis, size in enumerate(array.shape)}
            sizes |= named
            shape = list(named) if symbols else array.shape
            inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        names = [f"i{index}" if text else "" for index, text in enumerate(self.inputs)]
        outputs = [f"y{index}" for index in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attributes)
        ends = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph([node], "g", inputs, ends, constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(self.domain or "ai.onnx.ml", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), sizes


def _case(op: str, inputs: str, outputs: int = 1, **attributes: Any) -> Case:
    return Case(op, tuple(part.strip() for part in inputs.split(",")), attributes, outputs)


_X, _H = "f32 2x3x8", "f32 8"
_Q4 = {"K": 32, "N": 24, "bits": 4, "block_size": 16}
_HEADS, _GROUPS = {"num_heads": 2}, {"num_heads": 4, "kv_num_heads": 2}
_MLP = "!u8 24x2x8, !f32 24x2"
_NORMS = f"{_X}, {_X}, !{_H}"
_EMBEDDED = "i32 2x3, i32 2x3, !f32 10x8, !f32 5x8, !f32 2x8"
_SCALE = "!f32, !u8"

CASES = [
    *(_case(op, _X) for op in ("Gelu", "QuickGelu", "FastGelu", "Trilu")),
    _case("Inverse", "f32 2x3x3"),
    *(_case(op, f"{_X}, {_H}") for op in ("BiasGelu", "FastGelu")),
    _case("BiasSplitGelu", "f16 2x3x8, f16 8"),
    _case("BiasAdd", "f16 2x3x8, f16 8, f16 2x3x8"),
    _case("BiasDropout", f"{_X}, {_H}, {_X}"),
    _case("BitmaskBiasDropout", f"{_X}, {_H}, {_X}"),
    _case("BitmaskDropout", _X),
    _case("BiasSoftmax", f"{_X}, f32 1x3x8", axis=2, is_inner_broadcast=0),
    _case("ScaledSiLU", "f16 2x3x8"),
    _case("GatedRMSNorm", f"{_X}, {_H}, {_X}"),
    _case("GatedAdd", f"{_X}, {_X}, f32 2x3x1"),
    _case("GroupNorm", "f16 2x3x4x8, !f32 8, !f32 8", groups=2, activation=0),
    _case("SkipGroupNorm", "f16 2x3x4x8, !f32 8, !f32 8, f16 2x3x4x8", 2, groups=2, activation=0),
    _case("SkipLayerNormalization", f"{_NORMS}, !{_H}, !{_H}", 4),
    _case("SkipLayerNormalization", f"{_X}, f32 3x8, !{_H}"),
    _case("SkipSimplifiedLayerNormalization", f"{_NORMS}, !{_H}", 4),
    _case("SkipSimplifiedLayerNormalization", "f16 3x8, f16 3x8, f16 8", 4),
    _case("RotaryEmbedding", f"{_X}, i64 2x3=1, !f32 5x2, !f32 5x2", num_heads=2),
    _case("RotaryEmbedding", "f32 2x2x3x4, i64 1=0, !f32 5x2, !f32 5x2"),
    _case("MatMulNBits", "f32 2x3x32, !u8 24x2x8, !f32 24x2", **_Q4),
    _case("MatMulNBits", "f32 3x32, !u8 24x2x8, !f32 24x2, !u8 24x1, , !f32 24", **_Q4),
    _case("MatMulNBits", "f32 2x3x4x32, !u8 24x2x16, !f32 24x2", **_Q4 | {"bits": 8}),
    _case("MatMulNBits", "f32 32, !u8 24x2x8, !f32 24x2", **_Q4),
    _case("MatMulBnb4", "f32 2x3x32, !u8 384, !f32 48", K=32, N=24, block_size=16, quant_type=1),
    _case("MatMulNBitsMlp", f"f32 2x3x32, f32 2x3x32, !f32 32, {_MLP}, , {_MLP}", 2,
          **_Q4, activation="silu"),
    _case("MatMulNBitsQkv", "f32 2x3x32, f32 2x3x32, !f32 32, !u8 64x2x8, !f32 64x2, ,"
          f" {_MLP}, , {_MLP}", 4, K=32, Nq=64, Nkv=24, bits=4, block_size=16),
    _case("DynamicQuantizeMatMul", f"{_X}, !i8 8x5, !f32 5, !i8 5, !f32 5"),
    _case("DynamicQuantizeMatMul", "f32 3x8, !i8 8x5, !f32"),
    _case("MatMulIntegerToFloat", "u8 2x3x8, !i8 8x5, f32, !f32 5, u8"),
    _case("MatMulIntegerToFloat", "u8 2x1x3x8, !u8 4x8x5, f32, !f32, u8"),
    _case("MatMulInteger16", "i16 2x3x8, i16 8x5"),
    _case("GemmFastGelu", f"{_X}, !f32 8x5"),
    *(_case(op, f"f32 2x{'8x3' if a else '3x8'}, f32 {'5x8' if b else '8x5'}", transA=a, transB=b)
      for op in ("FusedMatMul", "TransposeMatMul") for a in (0, 1) for b in (0, 1)),
    _case("FusedMatMul", "f32 2x1x3x8, f32 4x8x5", alpha=0.5),
    _case("FusedMatMul", "f32 3x2x8, f32 2x8x5", transBatchA=1),
    _case("FusedMatMul", "f32 8, f32 8x5"),
    _case("FusedMatMulActivation", "f32 2x3x8, f32 2x5x8", transB=1, activation="Relu"),
    _case("FusedGemm", "f32 8x3, f32 8x5, f32 5", transA=1, activation="Relu"),
    _case("FusedGemm", "f32 3x8, f32 5x8", transB=1, activation="Relu"),
    *(_case("QGemm", f"u8 3x8, !f32, !u8, !u8 8x5, !f32, !u8, {rest}", alpha=1.0)
      for rest in ("", "!i32 5, !f32, !u8")),
    _case("QGemm", "u8 3x8, !f32, !u8, !i8 5x8, !f32, !i8", transB=1),
    _case("QGemm", "u8 8x3, !f32, !u8, !i8 8x5, !f32, !i8", transA=1),
    *(_case(op, f"u8 2x3x8, {_SCALE}, u8 {other}, {_SCALE}, {_SCALE}")
      for op in ("QLinearAdd", "QLinearMul") for other in ("2x3x8", "8", "4x1x1x8")),
    *(_case(op, f"u8 2x3x8, {_SCALE}, {_SCALE}") for op in ("QLinearLeakyRelu", "QLinearSigmoid")),
    _case("QLinearSoftmax", f"u8 2x3x8, {_SCALE}, {_SCALE}", axis=-1, opset=13),
    _case("QLinearWhere", f"b 2x3x1, u8 3x8, {_SCALE}, u8 1x8, {_SCALE}, {_SCALE}"),
    _case("QLinearConcat", f"{_SCALE}, u8 2x3, {_SCALE}, u8 2x5, {_SCALE}", axis=1),
    _case("QLinearAveragePool", f"u8 1x2x4x4, {_SCALE}, {_SCALE}", kernel_shape=[2, 2]),
    _case("QLinearGlobalAveragePool", f"u8 1x2x4x4, {_SCALE}, {_SCALE}"),
    _case("QLinearReduceMean", f"u8 2x3x8, {_SCALE}, {_SCALE}", axes=[-1], keepdims=1),
    _case("QLinearConv", f"u8 1x2x4x4, {_SCALE}, !u8 3x2x1x1, {_SCALE}, {_SCALE}"),
    _case("QuantizeLinear", f"{_X}, !f32, !i8"),
    _case("QuantizeLinear", f"{_X}, !f32, !u8"),
    _case("DequantizeLinear", "i8 2x3x8, !f32, !i8"),
    _case("Attention", f"{_X}, !f32 8x24, !f32 24", **_HEADS),
    _case("Attention", f"{_X}, !f32 8x20, !f32 20", qkv_hidden_sizes=[8, 8, 4], **_HEADS),
    _case("QAttention", "u8 2x3x8, !i8 8x24, !f32 24, !f32, !f32, , !u8, !i8", **_HEADS),
    _case("DecoderMaskedSelfAttention", "f32 2x1x8, !f32 8x24, !f32 24, i32 2x3=1, f32 2x2x2x5x4,"
          " , i32 1=2", 2, past_present_share_buffer=1, **_HEADS),
    _case("MultiHeadAttention", f"{_X}, f32 2x5x8, f32 2x5x12", **_HEADS),
    _case("MultiHeadAttention", f"{_X}, f32 2x2x5x4, f32 2x2x5x6", **_HEADS),
    _case("MultiHeadAttention", f"{_X}, f32 2x2x5x4, f32 2x2x5x4", **_HEADS),
    _case("MultiHeadAttention", f"{_X}, f32 2x5x2x2x4", **_HEADS),
    _case("MultiHeadAttention", "f32 2x3x2x3x4", **_HEADS),
    _case("DecoderMaskedMultiHeadAttention", "f32 2x1x8, f32 2x1x8, f32 2x1x8, , , f32 2x2x5x4,"
          " f32 2x2x5x4, i32 1=2", 3, past_present_share_buffer=1, **_HEADS),
    _case("GroupQueryAttention", "f32 2x3x32, f32 2x3x16, f32 2x3x16, f32 2x2x0x8, f32 2x2x0x8,"
          " i32 2=2, i32=3", 3, **_GROUPS),
    _case("GroupQueryAttention", "f32 2x3x64, , , , , i32 2=2, i32=3", **_GROUPS),
    _case("PackedMultiHeadAttention", "f32 3x8, f32 3x8, f32 3x12, , i32 1x3=0, i32 2=3", **_HEADS),
    _case("PackedMultiHeadAttention", "f32 3x2x3x4, , , , i32 1x3=0, i32 2=3", **_HEADS),
    _case("PackedAttention", "f32 3x8, !f32 8x24, !f32 24, i32 1x3=0, i32 2=3", **_HEADS),
    _case("SparseAttention", "f32 1x3x32, f32 1x3x16, f32 1x3x16, f32 1x2x16x8, f32 1x2x16x8,"
          " i32 1x2=0+1, i32 1x1=0, i32=16, i32 1=3", 3, sparse_block_size=16, **_GROUPS),
    _case("DecoderAttention", "f32 3x2x8, f32 3x2x8, !f32 8x8, !f32 8x16, !f32 24, , , , !b, !b,"
          " !b, !b", num_heads=2),
    _case("LongformerAttention", "f32 2x16x8, !f32 8x24, !f32 24, f32 2x16, !f32 8x24, !f32 24,"
          " i32 2x16", num_heads=2, window=8),
    _case("MRotaryEmbedding", f"{_X}, i64 3x2x3=1, !f32 5x2, !f32 5x2", num_heads=2,
          mrope_section=[1, 1, 0]),
    _case("CausalConvWithState", "f32 2x8x3, !f32 8x1x4, !f32 8, f32 2x8x3", 2, activation="silu"),
    _case("LinearAttention", "f32 2x3x8, f32 2x3x8, f32 2x3x8, f32 2x2x4x4", 2, q_num_heads=2,
          kv_num_heads=2, update_rule="linear"),
    _case("PagedAttention", "f16 3x8, f16 3x8, f16 3x8, f16 4x16x2x4, f16 4x16x2x4, i32 2=0,"
          " i32 1=0, i32 1x1=0", kv_num_heads=2, **_HEADS),
    _case("QOrderedGelu", "i8 2x3x32, f32, f32", order_X=1, order_Y=1),
    _case("QOrderedLayerNormalization", "i8 2x3x32, f32, f32 32, f32 32, f32", order_X=1,
          order_Y=1),
    _case("RestorePadding", "f32 5x8, i32 2x3=0"),
    _case("EmbedLayerNormalization", f"{_EMBEDDED}, !{_H}, !{_H}, i32 2x3", 3),
    _case("EmbedLayerNormalization", f"i32 2x3, , !f32 10x8, !f32 5x8, , !{_H}, !{_H}", 2),
    _case("QEmbedLayerNormalization", "i32 2x3, i32 2x3=1, !u8 10x8, !u8 5x8, !u8 2x8, !u8 8,"
          f" !u8 8, , {', '.join(['!f32'] * 5 + ['!u8'] * 5)}", 2),
    _case("MoE", "f32 3x8, f32 3x2, !f32 2x12x8, , !f32 2x8x12", k=1, activation_type="relu"),
    _case("MoE", f"{_X}, f32 6x2, !f32 2x12x8, , !f32 2x8x12", k=1, activation_type="relu"),
    _case("QMoE", "f32 3x32, f32 3x2, !u8 2x24x16, !f32 2x24, , !u8 2x32x12, !f32 2x32", k=1,
          activation_type="relu", expert_weight_bits=4),
    _case("GatherBlockQuantized", "!u4 10x32, i64 2x3=1, !f32 10x2", block_size=16),
    _case("GatherBlockQuantized", "!i4 10x32, i64 3=1, !f16 10x2", block_size=16),
    _case("GatherBlockQuantized", "!u8 10x16, i64 2x3=1, !f32 10x2", block_size=16, bits=4),
    _case("GatherBlockQuantized", "!u8 10x32, i64 2x3=1, !f32 10x2", block_size=16, bits=8),
    _case("GatherBlockQuantized", "!u8 10x16, i64 2x3=1, !f32 10x2", block_size=16),
    _case("GatherBlockQuantized", "!u4 10x32, i64 3=1, !f32 10x2", block_size=16, gather_axis=1,
          quantize_axis=1),
    _case("Pad", "f32 2x3, i64 4=1, f32"),
    _case("GatherND", "f32 2x3x8, i64 3x1=1"),
    _case("FusedConv", "f32 1x2x4x4, !f32 3x2x1x1", activation="Relu"),
    _case("NhwcFusedConv", "f16 1x4x4x2, !f16 3x1x1x2"),
    _case("NhwcConv", "f16 1x4x4x2, !f16 3x1x1x2"),
    _case("NhwcMaxPool", "u8 1x4x4x2", kernel_shape=[2, 2]),
    _case("ConvTransposeWithDynamicPads", "f32 1x2x4x4, f32 2x3x1x1, i64 4=0"),
    _case("UnfoldTensor", "f32 2x8", dim=1, size=4, step=2),
    _case("TorchEmbedding", "f32 10x8, i64 2x3=1"),
]  # fmt: skip
