"""Running models: ONNX Runtime sessions, inputs, error metrics, the abilities of runtimes."""
