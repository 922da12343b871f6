"""The operators ``torch.ops.rmsnorm_export.*`` and the modules that call them."""
