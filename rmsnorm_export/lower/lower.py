"""One module per target: a match becomes nodes, or a refusal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rmsnorm_export.lower.lowered import Lowered
from rmsnorm_export.lower.onnx_target import lower_onnx
from rmsnorm_export.lower.ort_target import lower_ort
from rmsnorm_export.lower.parts import Names
from rmsnorm_export.lower.portable import lower_portable
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.recognize.match import Decline, Match
from rmsnorm_export.recognize.types import Types

__all__ = ["Lowered", "lower_all"]


def lower_all(
    matches: Sequence[Match],
    *,
    target: Target,
    numerics: Numerics,
    names: Names,
    opset: int,
    types: Types,
    fold_residual: bool = True,
    taken: Collection[str] = (),
) -> list[Lowered | Decline]:
    """New nodes, or a refusal, for each match of a model.

    Args:
        matches: all norms of the model.
        target: what the nodes are for.
        numerics: the loosest class allowed.
        names: returns a unique name for a wish.
        opset: version of the default domain in the model.
        types: element types and shapes.
        fold_residual: take residual Adds where the target can.
        taken: operator names in this package's domain that are in use for something else.
    """
    if target == "portable":
        return lower_portable(
            matches, numerics=numerics, names=names, opset=opset, types=types, taken=taken
        )
    if target == "onnx":
        return [
            lower_onnx(match, numerics=numerics, names=names, opset=opset, shapes=types.shape)
            for match in matches
        ]
    return [
        lower_ort(
            match,
            numerics=numerics,
            names=names,
            opset=opset,
            fold_residual=fold_residual,
            shapes=types.shape,
        )
        for match in matches
    ]
