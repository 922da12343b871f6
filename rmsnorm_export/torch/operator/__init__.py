"""The operators ``torch.ops.rmsnorm_export.*`` and the modules that call them."""

from rmsnorm_export.system.packages import require_package

require_package("torch", "The package rmsnorm_export.torch", "[torch]")
