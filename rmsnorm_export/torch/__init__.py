"""RMSNorm in PyTorch: the operators ``torch.ops.rmsnorm_export.*`` and a module for every variant::

    import rmsnorm_export.torch as rt
    y = rt.rms_norm(x, weight, epsilon=1e-6)
    norm = rt.RMSNorm(4096, epsilon=1e-6)

Importing this package registers the operators. It needs the extra ``torch``.
"""

from __future__ import annotations

from rmsnorm_export.torch.operator.module import RMSNorm
from rmsnorm_export.torch.operator.ops import (
    call,
    gated_rms_norm,
    rms_norm,
    rotary_rms_norm,
    skip_rms_norm,
)

__all__ = ["RMSNorm", "call", "gated_rms_norm", "rms_norm", "rotary_rms_norm", "skip_rms_norm"]
