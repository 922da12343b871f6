"""The operator: specification, ONNX schema and function bodies, NumPy references."""
