"""Norms that ONNX Runtime accepts: a row of ``facts.json`` per operator, provider and types.

The CPU rows are run by the tests against the installed ONNX Runtime, types, ranks, scale shapes,
axes, opsets and rounding included. The CUDA rows are read from ONNX Runtime's sources and not run;
they hold the intersection of what its releases since 1.22 accept: scales of the row's shape alone,
with leading ones or without, and residual sums that are rounded to T.

Sources (onnxruntime): ``core/providers/cuda/nn/{rms_norm,layer_norm}.cc``, ``layer_norm_impl.cu``,
``core/providers/cpu/nn/layer_norm_helper.h``, ``contrib_ops/cuda/bert/skip_layer_norm*``, pull
requests 24772 (bf16), 28682 (f32 accumulation; before it the squares of a residual sum were
accumulated in the half type), 28971 (rank-reduced scale), 31974 (bf16 on CPU). Rows of two types
run on the CPU in f32 between inserted casts.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import msgspec

Provider = Literal["CPUExecutionProvider", "CUDAExecutionProvider"]
CPU: Provider = "CPUExecutionProvider"
CUDA: Provider = "CUDAExecutionProvider"

FACTS = msgspec.json.decode(Path(__file__).with_name("facts.json").read_bytes())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One operator on one provider for one pair of element types, as far as a rewrite asks.

    Every row applies the scale in f32 (in f64 where T is f64) before the one rounding, whatever
    ``stash_type`` says.

    Attributes:
        operator: operator type.
        provider: execution provider of ONNX Runtime.
        x_type: element type T of the input (TensorProto.DataType).
        scale_type: element type V of the scale, which is also that of the output.
        ranks: ranks of X that run; () means 1 and more.
        min_opset: lowest version of the default domain.
        min_row: smallest row.
    """

    operator: str
    provider: Provider
    x_type: int
    scale_type: int
    ranks: tuple[int, ...] = ()
    min_opset: int
    min_row: int = 1


TABLE = msgspec.convert(FACTS["norms"], tuple[Support, ...])
"""Every combination that runs; what is absent is refused by the runtime when the model loads."""

_BY_KEY = {(row.operator, row.provider, row.x_type, row.scale_type): row for row in TABLE}


def support(
    operator: str, provider: Provider, x_type: int, scale_type: int | None = None
) -> Support | None:
    """Return the row for ``operator`` on ``provider``, or None when it does not run.

    ``scale_type`` None means that of X.
    """
    return _BY_KEY.get((operator, provider, x_type, x_type if scale_type is None else scale_type))


def everywhere(operator: str, element_type: int) -> tuple[Support, ...]:
    """Return the rows of every provider for X and scale of one type; () when one lacks it."""
    rows = tuple(support(operator, provider, element_type) for provider in (CPU, CUDA))
    return tuple(row for row in rows if row is not None) if all(rows) else ()
