"""Functions that hold a part of a norm, put in the place of their calls.

Exporters write an ATen operator or a Python function as a function of the model: a square here, a
mean there, epsilon handed over. A function that holds a whole norm stays.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import onnx_ir as ir

from rmsnorm_export.op.native import DEFAULT_DOMAINS
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.recognize.scan import KNOWN, Recognition
from rmsnorm_export.recognize.types import inlined_size

_MOST_ROUNDS = 4
_MOST_NODES = 1_000_000
"""Of the model with all of its calls replaced; above it functions stay as they are."""

_SMALL = 32
"""Nodes of a function that goes with those that hold a part, if it could be the next part."""


def inline_parts(
    model: ir.Model, first: Recognition, recognize: Callable[[ir.Model], Recognition]
) -> tuple[ir.Model, Recognition]:
    """``model`` without the functions that hold parts of norms, if that finds norms; a copy.

    Args:
        model: not changed.
        first: what ``recognize`` says of it.
    """
    best, found = model, first
    trial, seen = model, first
    for _ in range(_MOST_ROUNDS):
        if not seen.crossed or inlined_size(trial) > _MOST_NODES:
            break
        inlined = _without(trial, seen.crossed | _small_functions(trial))
        if inlined is None:
            break
        trial, seen = inlined, recognize(inlined)
        if len(seen.matches) > len(found.matches):
            best, found = trial, seen
    return best, found


def _small_functions(model: ir.Model) -> Set[ir.OperatorIdentifier]:
    """Functions of a few operators that a norm is made of: where a chain goes on."""
    return {
        key
        for key, function in model.functions.items()
        if key[0] != DOMAIN
        and len(function) <= _SMALL
        and all(
            node.domain in DEFAULT_DOMAINS and node.op_type in (*KNOWN, "Constant")
            for node in function
        )
    }


def _without(model: ir.Model, functions: Set[ir.OperatorIdentifier]) -> ir.Model | None:
    """A copy with the bodies of these functions in their callers; None where that cannot be."""
    from onnx_ir.passes import PassError
    from onnx_ir.passes.common import InlinePass

    try:
        return InlinePass(criteria=lambda f: f.identifier() in functions)(model.clone()).model
    except (ValueError, PassError):
        return None
