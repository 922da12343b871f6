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

import functools
from collections.abc import Mapping
from typing import cast

import numpy as np
import onnx

from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import BFLOAT16, HALF_TYPES, NormSpec
from rmsnorm_export.proof import bounds
from rmsnorm_export.runtime.session import open_session
from tests.tools.parity.measure import EAGER, OPTIMIZED, OURS, TARGETS, Error

ONE_TIE = 2.0
"""One rounding that falls the other way, in ulp of the result."""


def no_yardstick(spec: NormSpec, dtype: int, scale: str) -> bool:
    """Whether the stash type cannot hold what the formula needs."""
    same_range = dtype in (spec.stash_type, BFLOAT16)
    unstable = spec.epsilon == 0 or spec.gate_first
    return scale == "denormal" and same_range and unstable


def distances(
    spec: NormSpec,
    dtype: int,
    n: int,
    numerics: Mapping[str, str],
    *,
    scaled: bool,
    biased: bool,
    before: float,
    gate: Array | None,
) -> dict[str, float]:
    """Target -> allowed distance from ours, in ulp of T.

    None for a row in a half type: ONNX Runtime's CPU keeps some of its steps in float32, some not,
    as its kernels have it, and the file's declared steps are proved in ``half_proof`` instead.

    Args:
        spec, dtype, n: of the site.
        numerics: the class that the report gives; ``-``: plain operators, in the module's order.
        scaled, biased: whether there is a gain, a bias.
        before: error of ours, in ulp.
        gate: the gates of the cell.
    """
    if spec.stash_type in HALF_TYPES and dtype in HALF_TYPES:
        return {}
    found = {}
    site = bounds.Bounds(spec, dtype, n, scaled, biased)
    for target, name in numerics.items():
        found[target] = site.distance(
            cast(Numerics, "exact" if name == "-" else name),
            _row(n),
            elided=dtype in HALF_TYPES,
            error_before=before,
        ) + _gate_error(spec, dtype, gate)
    return found


def _row(n: int) -> bounds.Row:
    return bounds.Row("equal" if n == 1 else "any")


def errors(
    spec: NormSpec,
    dtype: int,
    n: int,
    found: Mapping[str, Error],
    *,
    scaled: bool,
    biased: bool,
    gate: Array | None,
) -> dict[str, float]:
    """Side -> largest error allowed."""
    site = bounds.Bounds(spec, dtype, n, scaled, biased)
    eager = found[EAGER].max
    slack = site.stash_error(_row(n))
    one = site.roundings() == 0 and dtype != spec.stash_type
    allowed = eager + (2 * slack if one else ONE_TIE)
    floor = site.accuracy(_row(n))
    explained = floor + _gate_error(spec, dtype, gate)
    runtime = [side for side in (*TARGETS, OPTIMIZED) if side in found]
    return {OURS: allowed} | dict.fromkeys(runtime, max(allowed, explained))


def _gate_error(spec: NormSpec, dtype: int, gate: Array | None) -> float:
    """What the runtime's Sigmoid may change, in ulp of T; twice: in the row and in its rms."""
    if gate is None:
        return 0.0
    ratio = bounds.UNIT_ROUNDOFF[spec.stash_type] / bounds.UNIT_ROUNDOFF[dtype]
    wide = gate.astype(numpy_dtype(spec.stash_type))
    return 2 * sigmoid_error(wide) * ratio


def sigmoid_error(gate: Array) -> float:
    """Largest error of ONNX Runtime's Sigmoid on these gates, in units of roundoff."""
    key = np.unique(gate[np.isfinite(gate)])
    return _sigmoid_error(key.dtype.str, key.tobytes())


@functools.lru_cache(maxsize=64)
def _sigmoid_error(kind: str, content: bytes) -> float:
    gate = np.frombuffer(content, dtype=kind)
    element_type = onnx.helper.np_dtype_to_tensor_dtype(gate.dtype)
    values = [onnx.helper.make_tensor_value_info(name, element_type, ["n"]) for name in "zy"]
    node = onnx.helper.make_node("Sigmoid", ["z"], ["y"])
    graph = onnx.helper.make_graph([node], "sigmoid", values[:1], values[1:])
    opset = [onnx.helper.make_opsetid("", 13)]
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=opset)
    (found,) = open_session(model.SerializeToString(), threads=1).run(None, {"z": gate})
    wide = gate.astype(np.longdouble)
    exact = 1 / (1 + np.exp(-wide))
    unit = np.finfo(gate.dtype).eps / 2
    return float((np.abs(found.astype(np.longdouble) - exact) / exact / unit).max(initial=0))
