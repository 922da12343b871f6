"""The operator: one specification, its ONNX schema, its function body and its references."""
