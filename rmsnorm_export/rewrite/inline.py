"""Functions that hold a part of a norm, put in the place of their calls.

Exporters write an ATen operator or a Python function as a function of the model: a square here, a
mean there, epsilon handed over. A function that holds a whole norm stays.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import onnx_ir as ir

from rmsnorm_export.graph.functions import inline, may_inline
from rmsnorm_export.op.native import DEFAULT_DOMAINS
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.recognize.scan import KNOWN, Recognition

_MOST_ROUNDS = 4
_SMALL = 32
"""Nodes of a function that goes with those that hold a part, if it could be the next part."""


def inline_parts(
    model: ir.Model, first: Recognition, recognize: Callable[[ir.Model], Recognition]
) -> tuple[ir.Model, Recognition]:
    """Return a copy without the functions that hold parts of norms, if that finds norms.

    Args:
        model: not changed.
        first: what ``recognize`` says of it.
    """
    best = trial = model, first
    for _ in range(_MOST_ROUNDS):
        holder, recognition = trial
        if not recognition.crossed or not may_inline(holder):
            break
        parts = {key for key, f in holder.functions.items() if _could_be_part(f)}
        parts |= recognition.crossed
        try:
            inlined = _without(parts, holder.clone())
        except ValueError:
            break
        trial = inlined, recognize(inlined)
        if len(trial[1].matches) > len(best[1].matches):
            best = trial
    return best


def _could_be_part(function: ir.Function) -> bool:
    """Return whether it is of a few operators that a norm is made of: where a chain goes on."""
    return (
        function.domain != DOMAIN
        and len(function) <= _SMALL
        and all(
            node.domain in DEFAULT_DOMAINS and node.op_type in (*KNOWN, "Constant")
            for node in function
        )
    )


def _without(functions: Set[ir.OperatorIdentifier], model: ir.Model) -> ir.Model:
    return inline(model, lambda function: function.identifier() in functions)
