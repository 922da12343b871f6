"""From a model to a server: a runner over one TOML file, and the Triton model repository.

    import rmsnorm_export as rx
    deployment = rx.run_pipeline("decoder.toml")
    packaged = rx.package_model("fused.onnx", "models", name="decoder", max_batch=16)

Every step of the runner has a folder with its outputs and one record, ``step.json``: what they were
made from. A step whose record still holds is skipped.
"""
