"""RMSNorm in PyTorch: the operators ``torch.ops.rmsnorm_export.*`` and a module for every variant.

    import rmsnorm_export.torch as rt
    y = rt.rms_norm(x, weight, epsilon=1e-6)
    norm = rt.RMSNorm(4096, epsilon=1e-6)

Importing this package registers the operators. It needs the extra ``torch``.
"""

from __future__ import annotations

from importlib.util import find_spec

from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.system.packages import pip_install

if find_spec("torch") is None:
    raise BackendMissingError(
        "rmsnorm_export.torch needs PyTorch.",
        found="no package torch",
        fix=pip_install("[torch]"),
    )

from rmsnorm_export.torch.operator.module import RMSNorm
from rmsnorm_export.torch.operator.ops import (
    call,
    gated_rms_norm,
    rms_norm,
    rotary_rms_norm,
    skip_rms_norm,
)
from rmsnorm_export.torch.probe.fit import Fit, NotANorm
from rmsnorm_export.torch.probe.probe import probe_module
from rmsnorm_export.torch.probe.replace import Replacement, replace_norms

__all__ = [
    "Fit",
    "NotANorm",
    "RMSNorm",
    "Replacement",
    "call",
    "gated_rms_norm",
    "probe_module",
    "replace_norms",
    "rms_norm",
    "rotary_rms_norm",
    "skip_rms_norm",
]
