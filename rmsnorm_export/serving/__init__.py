"""Deployment: a model or engine as an entry of a Triton Inference Server model repository.

    import rmsnorm_export as rx
    packaged = rx.package_model("fused.onnx", "models", name="decoder", max_batch=16)
    packaged.path                       # models/decoder
    packaged.record.versions[0].files   # with their sha256

No server, GPU or network is needed: ``config.pbtxt`` is made from, and parsed by, Triton's own
protobuf definitions, and the packaged model is loaded and asked in ONNX Runtime on the CPU.
"""
