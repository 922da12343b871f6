"""Functions put in the place of their calls, within bounds, and listed as readers need them."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.recognize.functions import callees_first, inlined_size

_MOST_NODES = 20_000
"""Nodes that may come of a small model: putting them in place takes some seconds."""

_MOST_TIMES = 16
"""How many times larger a large model may become."""


def inline(model: ir.Model, keys: Collection[ir.OperatorIdentifier] | None = None) -> ir.Model:
    """Return ``model``, changed, with bodies of functions (all, or these) for their calls.

    Raises:
        ValueError: the functions do not fit their calls, or there are too many calls of calls.
    """
    stored = sum(map(len, all_graphs(model)))
    if inlined_size(model) > max(_MOST_NODES, _MOST_TIMES * stored):
        raise ValueError("its functions call too many others to be put in the place of their calls")
    from onnx_ir.passes import PassError
    from onnx_ir.passes.common import InlinePass

    try:
        return InlinePass(criteria=lambda f: keys is None or f.identifier() in keys)(model).model
    except (PassError, RecursionError) as error:
        raise ValueError(str(error)) from error


def sort_functions(model: ir.Model) -> None:
    """List every function behind those that it calls: readers that know none yet need them so."""
    ordered = {key: model.functions[key] for key in callees_first(model)}
    model.functions.clear()
    model.functions.update(ordered)
