"""Models at work: ONNX Runtime sessions, inputs, error metrics, what each runtime can run."""
