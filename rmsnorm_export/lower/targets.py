"""The targets of a rewrite: one row here, and one module each that writes its nodes.

A new target is a row of ``TARGETS``, its name in ``Target``, and a module with a function ``lower``
(see ``lower.Lowering``).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from rmsnorm_export.op.native import KINDS, RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.op.spec import DOMAIN

Target = Literal["portable", "onnx", "ort", "plain"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    """A target and its forms.

    Attributes:
        module: dotted name of the module that lowers to it, imported when it is first used.
        summary: half a sentence for help texts.
        operators: its own form, which is kept where a model has it already; those of this package
            with their domain. Nodes in a form of other targets are decomposed first.
        min_opset: version of the default domain to which a model is raised; 0: any will do.
        form: of a norm afterwards.
        shares_functions: its nodes call functions that all sites of a model share, so the nodes
            that are there already are written anew with the others.
    """

    module: str
    summary: str
    operators: tuple[str, ...]
    min_opset: int = 0
    form: Literal["one node", "plain operators"] = "one node"
    shares_functions: bool = False


TARGETS: dict[Target, TargetRow] = {
    "portable": TargetRow(
        module="rmsnorm_export.lower.portable",
        summary="our operator with its definition in the file as a function",
        operators=tuple(f"{DOMAIN}.{kind}" for kind in KINDS),
        min_opset=13,
        shares_functions=True,
    ),
    "onnx": TargetRow(
        module="rmsnorm_export.lower.onnx_target",
        summary="RMSNormalization of opset 23",
        operators=(RMS_NORMALIZATION,),
        min_opset=23,
    ),
    "ort": TargetRow(
        module="rmsnorm_export.lower.ort_target",
        summary="the fused operators of ONNX Runtime",
        operators=(SIMPLIFIED, SKIP_SIMPLIFIED),
    ),
    "plain": TargetRow(
        module="rmsnorm_export.lower.plain",
        summary="no norm operator, but its definition in standard operators, for what knows no "
        "other",
        operators=(),
        min_opset=13,
        form="plain operators",
    ),
}
"""By the name that users write."""
