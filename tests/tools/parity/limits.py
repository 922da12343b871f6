"""What is allowed in a cell, derived from rounding steps; nothing here is fitted to a result.

*Distance of ONNX Runtime from ours*: the bound ``Bounds.distance`` of ``proof/bounds.py``, that
``optimize --prove`` holds a site of that numerics class to.

*Error of ours against eager's.* Both take the same steps in the same types and differ in float32
results only. Let t be the exact number before a rounding to T, and let both be within e of it. They
give different neighbours of T only when t is within e of the middle between them: a tie, and
either neighbour is as right. Then one errs by 1/2 + d and the other by 1/2 - d at least, d <= e.

- One rounding to T (the last): an element of ours errs at most 2 e more than the same element of
  eager; so the largest error does.
- An earlier rounding may be the tie: the operand of what follows is one step of T off, which is at
  most 2 ulp of the result (a step is 1 to 2 units of roundoff u of a number; an ulp likewise).
- T is the type of the row: every operation is a rounding to T, and eager has one more (its
  reciprocal) that may by chance undo another. One rounding that falls the other way: 2 ulp.

*Error of ONNX Runtime*: the same, or what its declared rounding steps explain with a sum in any
order (``accuracy_floor``): its ReduceMean adds in another order than PyTorch's cascade. Where there
is a gate, also what its Sigmoid kernel alone errs by on these gates, measured.

*No yardstick*: denormal rows where nothing stabilises them: without epsilon their squares vanish,
behind a gate the row itself loses its digits. What float32 cannot hold is lost on every side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

import numpy as np
import onnx

from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import BFLOAT16, HALF_TYPES, NormSpec
from rmsnorm_export.proof import bounds
from rmsnorm_export.runtime.session import open_session

EAGER, OURS, OPTIMIZED = "eager", "ours", "portable+"
TARGETS = ("portable", "onnx", "ort")
"""ONNX Runtime: the file of each target as it is; ``portable+``, after ORT's own optimizer."""

ONE_TIE = 2.0
"""One rounding that falls the other way, in ulp of the result."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What is allowed in a cell, in ulp.

    Attributes:
        distance: target -> largest distance from ours that its declared class allows.
        ours: largest error of ours against float64.
        runtime: largest error of the portable file in ONNX Runtime.
    """

    distance: dict[str, float]
    ours: float
    runtime: float


def no_yardstick(spec: NormSpec, dtype: int, scale: str) -> bool:
    """Return whether the stash type cannot hold what the formula needs."""
    same_range = dtype in (spec.stash_type, BFLOAT16)
    unstable = spec.epsilon == 0 or spec.gate_first
    return scale == "denormal" and same_range and unstable


def limits_of(
    site: bounds.Bounds,
    numerics: Mapping[str, str],
    errors: Mapping[str, float],
    gate: Array | None,
) -> Limits:
    """Return the limits of one cell.

    None of distance for a row in a half type: ONNX Runtime's CPU keeps some of its steps in
    float32, some not, as its kernels have it, and the file's declared steps are proved in
    ``half_proof`` instead.

    Args:
        site: spec, type, length and operands.
        numerics: target -> the class that the report gives; ``-``: plain operators, in the module's
            order.
        errors: of eager and ours, in ulp.
        gate: the gates of the cell.
    """
    spec, dtype, n = site.spec, site.dtype, site.n
    row = bounds.Row("equal" if n == 1 else "any")
    # What the runtime's Sigmoid may change, in ulp of T; twice: in the row and in its rms.
    gates = 0.0
    if gate is not None:
        ratio = bounds.UNIT_ROUNDOFF[spec.stash_type] / bounds.UNIT_ROUNDOFF[dtype]
        gates = 2 * sigmoid_error(gate.astype(numpy_dtype(spec.stash_type))) * ratio
    distance = {}
    if not (spec.stash_type in HALF_TYPES and dtype in HALF_TYPES):
        for target, name in numerics.items():
            declared = cast(Numerics, "exact" if name == "-" else name)
            elided, before = dtype in HALF_TYPES, errors[OURS]
            distance[target] = gates + site.distance(
                declared, row, elided=elided, error_before=before
            )
    one = site.roundings() == 0 and dtype != spec.stash_type
    allowed = errors[EAGER] + (2 * site.stash_error(row) if one else ONE_TIE)
    return Limits(distance, allowed, max(allowed, site.accuracy(row) + gates))


def sigmoid_error(gate: Array) -> float:
    """Largest error of ONNX Runtime's Sigmoid on these gates, in units of roundoff."""
    gate = np.unique(gate[np.isfinite(gate)])
    kind = onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(gate.dtype)).lower()
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 13]> g ({kind}[n] z) => ({kind}[n] y) '
        "{ y = Sigmoid(z) }"
    )
    (result,) = open_session(model.SerializeToString(), threads=1).run(None, {"z": gate})
    wide = gate.astype(np.longdouble)
    exact = 1 / (1 + np.exp(-wide))
    unit = np.finfo(gate.dtype).eps / 2
    return float((np.abs(result.astype(np.longdouble) - exact) / exact / unit).max(initial=0))
