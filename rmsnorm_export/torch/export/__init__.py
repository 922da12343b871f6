"""From a PyTorch module to an ONNX model whose norms are one node each."""
