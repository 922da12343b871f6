"""Norms that ONNX Runtime accepts: a row of ``facts.json`` per operator, provider and types.

The CPU rows are run by the tests against the installed ONNX Runtime, types, ranks, scale shapes,
opsets and rounding included. The CUDA rows are read from ONNX Runtime's sources and not run; they
hold the intersection of what its releases since 1.22 accept.

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

from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16

Provider = Literal["CPUExecutionProvider", "CUDAExecutionProvider"]
CPU: Provider = "CPUExecutionProvider"
CUDA: Provider = "CUDAExecutionProvider"

ScaleShape = Literal["trailing", "leading-ones", "one", "scalar", "over-rows"]
"""``trailing``: X.shape[axis:]; ``leading-ones``: [1, .., n] up to the rank of X; ``one``: [1];
``scalar``: []; ``over-rows``: broadcasts over leading axes of X, e.g. [S, n]."""

FACTS = Path(__file__).with_name("facts.json").read_bytes()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One operator on one provider for one pair of element types.

    Attributes:
        operator: operator type.
        domain: its domain; "" is the default ONNX domain.
        provider: execution provider of ONNX Runtime.
        x_type: element type T of the input (TensorProto.DataType).
        scale_type: element type V of the scale, which is also that of the output.
        ranks: ranks of X that run; () means 1 and more.
        scale_shapes: shapes of the scale that give the right numbers.
        axes: ``any`` or only the ``last`` one.
        stash_types: values of the attribute that load; () where there is no such attribute.
        stash_honoured: False: the attribute changes no number (T = f64 is computed in f64, every
            other type in f32).
        min_opset: lowest version of the default domain.
        min_row: smallest row.
        scale_before_cast: in half types the scale is applied in f32, before the one rounding.
        half_sum: what a residual operator normalises in half types: the sum rounded to T or the
            unrounded sum.
        evidence: ``run`` by the tests, or read in the ``sources``.
    """

    operator: str
    domain: str = ""
    provider: Provider
    x_type: int
    scale_type: int
    ranks: tuple[int, ...] = ()
    scale_shapes: tuple[ScaleShape, ...]
    axes: Literal["any", "last"] = "any"
    stash_types: tuple[int, ...] = (FLOAT, FLOAT16, DOUBLE, BFLOAT16)
    stash_honoured: bool = False
    min_opset: int
    min_row: int = 1
    scale_before_cast: bool = True
    half_sum: Literal["none", "rounded", "unrounded"] = "none"
    evidence: Literal["run", "sources"]


class _Norms(msgspec.Struct, frozen=True):
    norms: tuple[Support, ...]


TABLE = msgspec.json.decode(FACTS, type=_Norms).norms
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
