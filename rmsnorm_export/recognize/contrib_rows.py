"""Types and shapes of the outputs of operators that are not ONNX's: one row a pattern.

    row         = alternative { "|" alternative }    the first that fits says the shape
    alternative = { NAME "=" number } input { "," input } "->" output { ";" output }
    input       = "" (not looked at) | "-" (absent) | ["..."] { letter }
    output      = "" (unknown) | dims ":" type | dims    without a type: that of input 0
    type        = source { "/" source }              input, attribute or NAME; the first known

A letter is a dimension, "..." any number of them, broadcast where several inputs have them. A
name is an integer attribute, of several integers the last; sizes may be computed from both.
Sources: ``docs/ContribOperators.md`` of ONNX Runtime 1.31, the exporters of NVIDIA ModelOpt, and
the parser of TensorRT. What is not here, ``ai.onnx.contrib`` among it, is not known.
"""

from __future__ import annotations

from rmsnorm_export.op.native import MICROSOFT_DOMAIN
from rmsnorm_export.op.spec import DOMAIN

_GROUPED = "b s q, b k v -> b s q | b s q, - -> b s q*num_heads//(num_heads+2*kv_num_heads)"
_HEADS = """b s q, b k l, b k v -> b s v | b s q, b n k h, b n k v -> b s n*v
    | b s n t h, -, - -> b s n*h | b s q, b k n t h, - -> b s q"""
_MATRICES = """transA=0 transB=0 transBatchA=0 transBatchB=0 ... m k, ... k n -> ... m n
    | transA=0 transB=1 transBatchA=0 transBatchB=0 ... m k, ... n k -> ... m n
    | transA=1 transB=0 transBatchA=0 transBatchB=0 ... k m, ... k n -> ... m n
    | transA=1 transB=1 transBatchA=0 transBatchB=0 ... k m, ... n k -> ... m n"""

ROWS: dict[str, dict[str, str]] = {
    "": {
        "... -> ...:output_dtype/2/UINT8": "QuantizeLinear",
        "... -> ...:output_dtype/1": "DequantizeLinear",
    },
    DOMAIN: {
        "... -> ...": "RMSNorm GatedRMSNorm RotaryRMSNorm",
        "... -> ...; ...": "SkipRMSNorm",
    },
    MICROSOFT_DOMAIN: {
        "... -> ...": "BiasAdd BiasDropout BiasGelu BiasSoftmax BitmaskBiasDropout BitmaskDropout "
        "CausalConvWithState DecoderAttention FastGelu GatedAdd GatedRMSNorm Gelu GroupNorm "
        "Inverse LongformerAttention MRotaryEmbedding MoE QLinearLeakyRelu QLinearSigmoid "
        "QLinearSoftmax QMoE QOrderedGelu QOrderedLayerNormalization QuickGelu RotaryEmbedding "
        "ScaledSiLU Trilu",
        "... -> ...; ...": "SkipGroupNorm",
        "... -> ...; ; ; ...": "SkipLayerNormalization SkipSimplifiedLayerNormalization",
        "... -> ...:2/UINT8": "QuantizeLinear",
        "... -> ...:1": "DequantizeLinear",
        "... k -> ... k//2": "BiasSplitGelu",
        "..., ,, ... -> ...": "QLinearAdd QLinearMul",
        "..., ..., ,, ... -> ...:1": "QLinearWhere",
        "... k -> ... N:0/2": "MatMulNBits MatMulBnb4",
        "... k -> ... N; ... k": "MatMulNBitsMlp",
        "... k -> ... Nq; ... Nkv; ... Nkv; ... k": "MatMulNBitsQkv",
        "... k, k n -> ... n": "DynamicQuantizeMatMul GemmFastGelu",
        "... m k, ... k n -> ... m n:2": "MatMulIntegerToFloat",
        "... m k, ... k n -> ... m n:INT32": "MatMulInteger16",
        _MATRICES: "FusedGemm FusedMatMul FusedMatMulActivation TransposeMatMul",
        "transA=0 transB=0 m k, ,, k n -> m n:8/FLOAT | transA=0 transB=1 m k, ,, n k -> m n":
        "QGemm",
        "... i -> ... qkv_hidden_sizes | ... i, i j -> ... j//3": "Attention PackedAttention",
        "b s i, i j -> b s j//3": "DecoderMaskedSelfAttention",
        "b s i, i j -> b s j//3:3": "QAttention",
        _GROUPED: "GroupQueryAttention SparseAttention",
        _HEADS: "DecoderMaskedMultiHeadAttention MultiHeadAttention",
        "t q, t k, t v -> t v | t n k h, -, - -> t n*h": "PackedMultiHeadAttention",
        "t h, b s -> b s h": "RestorePadding",
        "v d, ... -> ... d": "TorchEmbedding",
        "b s, , v h -> b s h:2; b:INT32; b s h:2": "EmbedLayerNormalization",
        "b s, , v h -> b s h:8": "QEmbedLayerNormalization",
        """gather_axis=0 0=INT4 v d, ... -> ... d:2 | gather_axis=0 0=UINT4 v d, ... -> ... d
        | gather_axis=0 0=UINT8 bits=4 v d, ... -> ... 2*d
        | gather_axis=0 0=UINT8 bits=0 v d, ... -> ... 2*d
        | gather_axis=0 0=UINT8 bits=8 v d, ... -> ... d""": "GatherBlockQuantized",
        "-> :0": "ConvTransposeWithDynamicPads FusedConv GatherND LinearAttention "
        "NhwcConv NhwcFusedConv NhwcMaxPool Pad PagedAttention QLinearAveragePool "
        "QLinearGlobalAveragePool QLinearReduceMean UnfoldTensor",
        "-> :1": "QLinearConcat",
        "-> :7": "QLinearConv",
    },
    "trt": {
        "... -> ...": "TRT_FP4QDQ",
        "... -> ...:output_dtype/1": "DequantizeLinear TRT_FP8DequantizeLinear "
        "TRT_INT4DequantizeLinear",
        "... -> ...:FLOAT8E4M3FN": "TRT_FP8QuantizeLinear",
        "... -> ...:INT4": "TRT_INT4QuantizeLinear",
        "... -> ...:FLOAT4E2M1; :scale_type": "TRT_FP4DynamicQuantize",
        "... -> ...:output_dtype": "TRT_MXFP8DequantizeLinear TRT_MXFP8DynamicQuantize",
    },
}  # fmt: skip
"""Domain -> row -> the operators that it stands for."""
