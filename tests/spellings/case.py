"""A generated model with its ground truth."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import TensorProto, helper

_TYPES = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT64", "INT32", "BOOL")
NUMPY = {
    code: helper.tensor_dtype_to_np_dtype(code) for code in map(TensorProto.DataType.Value, _TYPES)
}
"""NumPy type of each ONNX element type that the models use."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """One model and what is true of it by construction.

    Attributes:
        model: valid for ``onnx.checker`` with ``full_check``.
        variant: what was chosen, readable.
        feeds: inputs by name.
        norms: RMSNorms that must be found.
        most: RMSNorms that may be found; more than ``norms`` where a smaller norm sits inside
            something that is not one (a weightless core in front of a modulation).
        refusal: square, mean and root are all there and it must not become a norm: somebody has to
            be told why.
        reassociated: in a half type, x or 1/rms is multiplied with the weight before the other: a
            rounding in another place, which only the class ``upcast`` covers.
        reordered: the operator differs where a number overflows or is subnormal on the way, so that
            the class is not ``exact``.
        expected: outputs in float64, by the definition of the claimed variant; None for a
            look-alike, whose truth is its own unchanged model.
    """

    model: onnx.ModelProto
    variant: str
    feeds: dict[str, np.ndarray]
    norms: int
    most: int
    refusal: bool = False
    reassociated: bool = False
    reordered: bool = False
    expected: dict[str, np.ndarray] | None = None

    def __repr__(self) -> str:
        return f"Case({self.variant})"
