"""The whole way of a model, described in a TOML file: from PyTorch or ONNX to what a server loads.

    import rmsnorm_export as rx
    deployment = rx.run_pipeline("decoder.toml")
    deployment.passed, deployment.steps[-1].summary

Every step has a folder with its outputs and a record of what they were made from; a step whose
record still holds is skipped. A run that was killed goes on where it was.
"""
