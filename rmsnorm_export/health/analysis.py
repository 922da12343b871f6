"""The health of a model: its norms and residual sums, what runs show of them, and the cures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.functions import inline
from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.graph.order import subgraphs
from rmsnorm_export.graph.retype import retype
from rmsnorm_export.health.limits import Limits
from rmsnorm_export.health.ranges import Ranges, measure
from rmsnorm_export.health.result import Health, HealthRun
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.native import SKIP_SIMPLIFIED
from rmsnorm_export.op.spec import BFLOAT16, DOMAIN, FLOAT, FLOAT16
from rmsnorm_export.proof.feeds import limits
from rmsnorm_export.recognize.consts import Constants, standard
from rmsnorm_export.recognize.match import module_path
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.recognize.scan import recognize
from rmsnorm_export.runtime.inputs import graph_inputs, index_limits, input_candidates
from rmsnorm_export.runtime.sizes import Inputs

_END, _BEYOND = 65504.0, 65520.0
"""The largest number of float16, and the least that rounds to infinity."""
_OWN_INFINITIES = ("Where", "Log")
"""Operators that choose an infinity, or make one of a zero, in any type."""
_SUM, _SITE = 4, "rmsnorm_export.site"
"""Outputs of SkipSimplifiedLayerNormalization, the sum the last; a node's site before inlining."""


def analyze(loaded: LoadedModel, inputs: Inputs | None, target: Target) -> dict[str, Any]:
    """Return the fields of a report that say what norms and residual sums survive.

    Functions are put in the place of their calls, so that each call has its own weights and ranges.
    A model without any float16 is looked at as it will be once it is converted.

    Args:
        loaded: the model; not changed.
        inputs: of the runs; None: random ones.
        target: for which a cure has to do.

    Raises:
        InputError: the given inputs do not fit the model, or its functions cannot be inlined.
    """
    declared, indices = graph_inputs(loaded.model), index_limits(loaded.model)
    candidates, source = input_candidates(declared, indices, inputs)
    model = _without_functions(loaded.model)
    stored = (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values())
    converted = all(value.dtype != FLOAT16 for value in stored)
    if converted:
        retype(model, dict.fromkeys((FLOAT, BFLOAT16), ir.DataType.FLOAT16))
    sites = _Sites(model, target, converted=converted)
    runs = (HealthRun("in float32", source), HealthRun("in half precision", source))
    seen = [measure(model, sites.types, loaded.folder, candidates, run) for run in runs]
    sites.put(seen[0][0] or seen[1][0])
    overflows = tuple(sites.first_overflow(*one, wide=seen[0][0]) for one in seen)
    return {"health": tuple(site.health for site in sites.sites), "health_runs": overflows}


def _without_functions(model: ir.Model) -> ir.Model:
    """Return a copy with bodies in the place of calls, in which each residual sum has a name.

    Raises:
        InputError: there are too many calls, or of functions of another opset.
    """
    copy = model.clone()
    for node in copy.graph.all_nodes():
        if node.op_type == SKIP_SIMPLIFIED and len(node.outputs) < _SUM:
            node.resize_outputs(_SUM)
            for value in node.outputs:
                value.name = value.name or ""
            node.outputs[-1].name = f"{node.outputs[0].name}.sum"
        if node.domain == DOMAIN:
            node.metadata_props[_SITE] = name_of(node)
    try:
        return inline(copy)
    except ValueError as error:
        what, fix = "The functions of the model cannot be inlined.", "omit --health"
        raise InputError(what, found=str(error), fix=fix) from error


@dataclasses.dataclass(slots=True, eq=False)
class _Site:
    """A norm or residual sum: its health, its row or sum, and its nodes."""

    health: Health
    row: ir.Value
    nodes: tuple[ir.Node, ...]


class _Sites:
    """The norms of a model, each after the residual sum that it reads.

    Attributes:
        sites: in order.
        types: of the model.
    """

    def __init__(self, model: ir.Model, target: Target, *, converted: bool) -> None:
        recognition = recognize(model)
        self._graph, self.types = model.graph, recognition.types
        self.sites: list[_Site] = []
        norm_limits = Limits(self.types, model.opset_imports, target)
        for match in recognition.matches:
            row, last = match.x if match.sum is None else match.sum, match.nodes[-1]
            dtype, changed = type_name(match.dtype), converted and match.dtype == FLOAT16
            norm = Health(_site_name(last), "norm", match.module, match.scope, dtype, changed)
            add = row.producer()
            if add is not None and (match.sum is not None or _adds_values(add)):
                added = dataclasses.replace(
                    norm, site=_site_name(add), kind="residual sum",
                    module=module_path(add) or match.module, largest=limits(match.dtype)[0] / 2,
                )  # fmt: skip
                self.sites.append(_Site(added, row, (add,)))
            self.sites.append(_Site(norm_limits.of(match, norm), row, match.nodes))

    def put(self, ranges: Ranges) -> None:
        """Note the ranges, and the cures of rows and sums that float16 does not hold."""
        streams = {site.row for site in self.sites if site.health.kind == "residual sum"}
        for site in self.sites:
            size, cure = ranges.get(site.row), site.health.cure
            if size is not None and size > _END and site.health.dtype == "float16":
                cure = "bfloat16" if math.isfinite(size) else ""
                if site.row in streams and cure:
                    factor = 2 ** math.ceil(math.log2(size / _END) + 1)
                    cure = f"a factor of 1/{factor} on the residual stream, or bfloat16"
                site.health = dataclasses.replace(site.health, keep=())
            site.health = dataclasses.replace(site.health, measured=size, cure=cure)

    def first_overflow(self, ranges: Ranges, run: HealthRun, wide: Ranges) -> HealthRun:
        """Return the run with the first value that does not fit though its operands do.

        So a mask is none: it is made of the lowest number of the type, or of an infinity.

        Args:
            ranges: of the run.
            run: that is returned.
            wide: the ranges in float32.
        """
        near = {node: one.health for one in reversed(self.sites) for node in one.nodes}
        constants, last = Constants(), ""
        for node in _nodes(self._graph):
            last = near[node].site if node in near else last
            fits = all(_fits(value, ranges, constants) for value in node.inputs)
            for value in node.outputs:
                if fits and self._overflows(value, ranges):
                    cure = near[node].cure if node in near else ""
                    if node not in near and math.isfinite(wide.get(value, math.inf)):
                        cure = f"keep {value.name} in float32, or bfloat16"
                    return dataclasses.replace(
                        run, tensor=value.name or "", size=ranges[value], node=name_of(node),
                        op=node.op_type, module=module_path(node), site=last, cure=cure,
                    )  # fmt: skip
        return run

    def _overflows(self, value: ir.Value, ranges: Ranges) -> bool:
        """Return whether float16 does not hold a value."""
        node = value.producer()
        own = node is not None and node.op_type in _OWN_INFINITIES
        return self.types.dtype(value) == FLOAT16 and ranges.get(value, 0.0) >= _BEYOND and not own


def _site_name(node: ir.Node) -> str:
    return node.metadata_props.get(_SITE) or name_of(node)


def _adds_values(node: ir.Node) -> bool:
    """Return whether a node is a sum of two values that are both computed."""
    stored = (ir.convenience.get_const_tensor(value) for value in node.inputs if value)
    return standard(node) == "Add" and all(tensor is None for tensor in stored)


def _nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph in order, those of bodies before the node that holds them."""
    for node in graph:
        for body in subgraphs(node):
            yield from _nodes(body)
        yield node


def _fits(value: ir.Value | None, ranges: Ranges, constants: Constants) -> bool:
    """Return whether an operand is below the end of float16, where masks are; a large weight is."""
    if value is not None and value in ranges:
        return ranges[value] < _END
    array = constants.array(value)
    if array is None or array.dtype.kind not in "fV":
        return True
    return bool((np.abs(array.astype(np.float64)) < _END).all())
