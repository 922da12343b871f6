"""TensorRT and TensorRT-RTX: engines, and the plugin that runs the operator in them."""
