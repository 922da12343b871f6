"""What each runtime accepts: one row per operator, provider and pair of element types.

The CPU rows are run by the tests against the installed ONNX Runtime, types, ranks, scale shapes,
opsets and rounding included. The CUDA rows are read from ONNX Runtime's sources and not run; they
hold the intersection of what its releases since 1.22 accept.

Sources (onnxruntime): ``core/providers/cuda/nn/{rms_norm,layer_norm}.cc``, ``layer_norm_impl.cu``,
``core/providers/cpu/nn/layer_norm_helper.h``, ``contrib_ops/cuda/bert/skip_layer_norm*``, pull
requests 24772 (bf16), 28682 (f32 accumulation), 28971 (rank-reduced scale), 31974 (bf16 on CPU).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from rmsnorm_export.op.native import (
    MICROSOFT_DOMAIN,
    RMS_NORMALIZATION,
    SIMPLIFIED,
    SKIP_SIMPLIFIED,
)
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16

Provider = Literal["CPUExecutionProvider", "CUDAExecutionProvider"]
CPU: Provider = "CPUExecutionProvider"
CUDA: Provider = "CUDAExecutionProvider"

ScaleShape = Literal["trailing", "leading-ones", "one", "scalar", "over-rows"]
"""``trailing``: X.shape[axis:]; ``leading-ones``: [1, .., n] up to the rank of X; ``one``: [1];
``scalar``: []; ``over-rows``: broadcasts over leading axes of X, e.g. [S, n]."""

Evidence = Literal["run", "sources"]
HalfSum = Literal["none", "rounded", "unrounded"]


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
        note: what else is known.
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
    half_sum: HalfSum = "none"
    evidence: Evidence
    note: str = ""


_ANY_SHAPE: tuple[ScaleShape, ...] = ("trailing", "leading-ones", "one", "scalar", "over-rows")
_CUDA_SHAPES: tuple[ScaleShape, ...] = ("trailing", "leading-ones")

_ONE_TYPE = ((FLOAT, FLOAT), (DOUBLE, DOUBLE), (FLOAT16, FLOAT16), (BFLOAT16, BFLOAT16))
_MIXED = ((FLOAT, FLOAT16), (FLOAT16, FLOAT))

# bf16 entered Cast, Mul and the schemas of these operators with opset 13.
_BF16_OPSET = 13


def _opset(*types: int) -> int:
    return _BF16_OPSET if BFLOAT16 in types else 1


def _plain_norm(operator: str, provider: Provider, x_type: int, scale_type: int) -> Support:
    cuda, standard = provider == CUDA, operator == RMS_NORMALIZATION
    note = ""
    if standard and x_type in (FLOAT16, BFLOAT16):
        note = "the scale is applied before the rounding, unlike the operator's definition"
    elif not standard and not cuda and x_type != scale_type:
        note = "no kernel: runs in f32 between inserted casts"
    return Support(
        operator=operator,
        provider=provider,
        x_type=x_type,
        scale_type=scale_type,
        scale_shapes=_CUDA_SHAPES if cuda else _ANY_SHAPE,
        min_opset=23 if standard else _opset(x_type, scale_type),
        min_row=2 if cuda else 1,
        evidence="sources" if cuda else "run",
        note=note,
    )


def _skip_simplified(provider: Provider, element_type: int) -> Support:
    cuda = provider == CUDA
    half = element_type in (FLOAT16, BFLOAT16)
    half_sum: HalfSum = "none" if not half else "rounded" if cuda else "unrounded"
    return Support(
        operator=SKIP_SIMPLIFIED,
        domain=MICROSOFT_DOMAIN,
        provider=provider,
        x_type=element_type,
        scale_type=element_type,
        ranks=(2, 3),
        scale_shapes=("trailing",),
        axes="last",
        stash_types=(),
        min_opset=_opset(element_type),
        half_sum=half_sum,
        evidence="sources" if cuda else "run",
        note="squares are accumulated in the half type before pull request 28682 (overflow), and "
        "the unrounded sum is normalised in strict mode"
        if cuda and half
        else "",
    )


TABLE: tuple[Support, ...] = (
    *(_plain_norm(RMS_NORMALIZATION, CPU, t, v) for t, v in _ONE_TYPE if t != BFLOAT16),
    *(_plain_norm(SIMPLIFIED, CPU, t, v) for t, v in (*_ONE_TYPE, *_MIXED)),
    *(_skip_simplified(CPU, t) for t in (FLOAT, FLOAT16, BFLOAT16)),
    *(_plain_norm(RMS_NORMALIZATION, CUDA, t, v) for t, v in (*_ONE_TYPE, *_MIXED)),
    *(_plain_norm(SIMPLIFIED, CUDA, t, v) for t, v in (*_ONE_TYPE, *_MIXED)),
    *(_skip_simplified(CUDA, t) for t in (FLOAT, FLOAT16, BFLOAT16)),
)
"""Every combination that runs; what is absent is refused by the runtime when the model loads."""

_BY_KEY = {(row.operator, row.provider, row.x_type, row.scale_type): row for row in TABLE}


def support(
    operator: str, provider: Provider, x_type: int, scale_type: int | None = None
) -> Support | None:
    """The row for ``operator`` on ``provider``, or None when it does not run.

    ``scale_type`` None means that of X.
    """
    return _BY_KEY.get((operator, provider, x_type, x_type if scale_type is None else scale_type))


def everywhere(operator: str, element_type: int) -> tuple[Support, ...]:
    """The rows of every provider for X and scale of one type; () when one of them lacks it."""
    rows = tuple(support(operator, provider, element_type) for provider in (CPU, CUDA))
    return tuple(row for row in rows if row is not None) if all(rows) else ()
