"""The operator for a compiler that generates code: ATen operators instead of one opaque call.

Inductor fuses them with each other and with their neighbours. It keeps a half type in float32
inside a kernel it generates (unless ``torch._inductor.config.emulate_precision_casts`` is set), so
a rounding step of the spec may be dropped there, as it is for any PyTorch code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rmsnorm_export.op.spec import Kind
from rmsnorm_export.torch.operator.autograd import ComposedNorm, ComposedSkipNorm
from rmsnorm_export.torch.operator.library import prepare


# In the graph as one call of constants and tensors: Dynamo need not follow the Python inside,
# AOTAutograd traces the tensors.
@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def composed(kind: Kind, *operands: Tensor | None, **attributes: Any) -> Any:
    """The operator ``kind`` on its positional operands; the same results and errors."""
    call = prepare(kind, operands, attributes)
    if call.residual is not None:
        apply = ComposedSkipNorm.apply
        return apply(call.plan, call.x, call.residual, call.scale, call.bias)  # type: ignore[no-untyped-call]
    return ComposedNorm.apply(call.plan, call.x, call.gate, call.scale, call.bias)  # type: ignore[no-untyped-call]


def wanted() -> bool:
    """Whether code is being generated; an exported graph keeps the operator as one node."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()
