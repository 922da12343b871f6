"""From a PyTorch module to an ONNX model whose norms are one node each."""

from rmsnorm_export.system.packages import require_package

require_package("onnxscript", "Exporting from PyTorch", "[torch]")
