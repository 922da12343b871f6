"""Target ``onnx``: one ai.onnx RMSNormalization (opset 23) per norm.

``Y = Cast_T(X / sqrt(mean(X ** 2) + epsilon)) * scale``, the row normalised in ``stash_type``; by
this definition LLaMA's order is the operator's own. ONNX Runtime applies the scale in f32 before
the one rounding, whatever ``stash_type`` says, so a plain half node is of class ``reordered``: the
declared class holds in every runtime. With T and V different the operator's function body is
ill-typed, so the scale always has the type of X.

Source: ONNX operator specification, RMSNormalization-23.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmsnorm_export.lower.forms import Dialect, beyond_the_operator, choose, emit, with_inner
from rmsnorm_export.lower.gain import gain_of
from rmsnorm_export.lower.lowered import Lowered
from rmsnorm_export.lower.parts import Names, Shapes, declared_shape
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.recognize.match import Decline, Match
from rmsnorm_export.runtime.support import RMS_NORMALIZATION

MIN_OPSET = 23


def _attributes(spec: NormSpec, computed: int) -> Mapping[str, int | float]:
    return {"axis": spec.axis, "epsilon": float(spec.epsilon), "stash_type": computed}


_DIALECT = Dialect(
    operator=RMS_NORMALIZATION,
    attributes=_attributes,
    scales_first=False,
    min_opset=MIN_OPSET,
    reordered_note="exact by the operator's definition; ONNX Runtime scales before it rounds",
)


def lower_onnx(
    match: Match,
    *,
    numerics: Numerics,
    names: Names,
    opset: int,  # noqa: ARG001 - one signature for all targets
    shapes: Shapes = declared_shape,
) -> Lowered | Decline:
    """One RMSNormalization for ``match`` or for the largest part of it that the operator can say.

    Args:
        match: the norm.
        numerics: the loosest class allowed.
        names: returns a unique name for a wish.
        opset: version of the default domain in the model. Changes nothing here: ``min_opset`` of
            the result tells the caller to raise a model below 23.
        shapes: dimensions of a value; by default those that the file gives.

    Returns:
        The new nodes, or why there are none.
    """

    def one(part: Match) -> Lowered | Decline:
        refusal = beyond_the_operator(part)
        if refusal is not None:
            return refusal
        gain = gain_of(part, shapes)
        if isinstance(gain, Decline):
            return gain
        form = choose(part, gain, _DIALECT, numerics)
        return form if isinstance(form, Decline) else emit(part, form, gain, _DIALECT, names)

    return with_inner(match, one)
