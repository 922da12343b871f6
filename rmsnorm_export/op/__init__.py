"""The operator: one specification, its ONNX schema, its function body and its references."""

from rmsnorm_export.op.spec import (
    BFLOAT16,
    DOMAIN,
    DOUBLE,
    FLOAT,
    FLOAT16,
    HALF_TYPES,
    OPSET_VERSION,
    PLUGIN_NAMESPACE,
    PLUGIN_VERSION,
    NormSpec,
)

__all__ = [
    "BFLOAT16",
    "DOMAIN",
    "DOUBLE",
    "FLOAT",
    "FLOAT16",
    "HALF_TYPES",
    "OPSET_VERSION",
    "PLUGIN_NAMESPACE",
    "PLUGIN_VERSION",
    "NormSpec",
]
