"""Engines: an ONNX file built by TensorRT or TensorRT-RTX, with a record of its norms.

    import rmsnorm_export as rx
    result = rx.build_engine("model.onnx", "model.engine", shapes="ids=1x1,4x128,8x2048")
    result.record.norms[0].how               # plugin, fused, unfused or unknown

Neither backend is imported by the caller: the build runs in a process of its own.
"""
