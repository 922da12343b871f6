"""Every RMSNorm of an ONNX model becomes one node, with a proof per site."""
