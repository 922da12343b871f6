"""The health of a model: its norms, sums and products, what runs show of them, and the cures."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.health.half import FileNames, in_half, node_name
from rmsnorm_export.health.overflows import Overflows
from rmsnorm_export.health.ranges import Candidates, Ranges, Rounding, measure
from rmsnorm_export.health.result import END, KEEP, HealthRun
from rmsnorm_export.health.sites import Sites, nodes_in
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.spec import HALF_TYPES
from rmsnorm_export.recognize.match import module_path
from rmsnorm_export.runtime.inputs import graph_inputs, index_limits, input_candidates
from rmsnorm_export.runtime.sizes import Inputs

_MOST_TRIES = 4


def analyze(loaded: LoadedModel, inputs: Inputs | None, target: Target) -> dict[str, Any]:
    """Return the fields of a report that say what norms, sums and products survive.

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
    try:
        model, converted = in_half(loaded.model)
    except ValueError as error:
        what, fix = "The functions of the model cannot be inlined.", "omit --health"
        raise InputError(what, found=str(error), fix=fix) from error
    names = FileNames(loaded.model.graph)
    sites = Sites(model, names, target, converted=converted)
    runs = _Runs(model, sites, names, loaded.folder, candidates, source)
    runs.run()
    return {"health": tuple(site.health for site in sites.sites), "health_runs": tuple(runs.runs)}


class _Runs:
    """The runs of a model: in float32, in half precision, and with the cures.

    Args:
        model: in half precision.
        sites, names: of it.
        folder: of its external data.
        candidates: of inputs.
        source: of these, in words.
    """

    def __init__(
        self, model: ir.Model, sites: Sites, names: FileNames, folder: str | None,
        candidates: Candidates, source: str,
    ) -> None:  # fmt: skip
        self._model, self._sites, self._names = model, sites, names
        self._folder, self._candidates, self._source = folder, candidates, source
        types = sites.types
        self._halves = {
            value for node in model.graph.all_nodes() for value in node.outputs
            if types.dtype(value) in HALF_TYPES
        }  # fmt: skip
        self._halves.update(v for v in model.graph.inputs if types.dtype(v) in HALF_TYPES)
        self._near = {node: site for site in reversed(sites.sites) for node in site.nodes}
        self.runs: list[HealthRun] = []

    def run(self) -> None:
        """Run the model, note the ranges at its sites, and name the cures that help."""
        wide, first = self._measured("in float32", Rounding())
        half, second = self._measured("in half precision", Rounding(self._halves))
        overflows = Overflows(self._sites, wide or half)
        last = self._cured(overflows, half) if half and wide else None
        self._name_cures(overflows, wide or half, helps=last is not None)
        for ranges, run in ((wide, first), (half, second)):
            self.runs.append(self._told(overflows, ranges, run, helps=last is not None))
        self.runs += [] if last is None else [last]

    def _measured(self, computed: Any, rounding: Rounding) -> tuple[Ranges, HealthRun]:
        run = HealthRun(computed, self._source)
        arguments = self._folder, self._candidates, run, rounding
        return measure(self._model, self._sites.types, *arguments)

    def _cured(self, overflows: Overflows, half: Ranges) -> HealthRun | None:
        """Return the run with cures after which no value is odd; None without one, or without need.

        Values that float16 does not hold are kept in float32, and so is the norm in which a number
        becomes none. What reads a kept value may be odd in turn.
        """
        kept, origin = set(overflows.beyond), overflows.first(half)
        for _ in range(_MOST_TRIES):
            if origin is None:
                break
            if overflows.constant_of(origin) is None:
                kept |= self._around(origin)
            exact = kept | _read_by(kept, self._sites.stored)
            rounding = Rounding(self._halves - exact, set(overflows.constants.values()))
            seen, run = self._measured("with the cures", rounding)
            if not seen:
                break
            origin = overflows.first(seen, exact)
            if origin is None:
                return run
        return None

    def _around(self, node: ir.Node) -> set[ir.Value]:
        """Return what a node computes; in a norm, all between its row and its output."""
        site = self._near.get(node)
        if site is None or site.health.kind != "norm":
            return set(node.outputs)
        computed = {value for one in site.nodes for value in one.outputs}
        return computed - {site.row, site.nodes[-1].outputs[0]}

    def _name_cures(self, overflows: Overflows, wide: Ranges, *, helps: bool) -> None:
        """Give each value that float16 does not hold a site, and the cure that was found."""
        inside = {value for node in self._near for value in node.outputs}
        for node in overflows.nodes:
            for value in overflows.beyond.intersection(node.outputs) - inside:
                self._sites.add_value(value, node)
        for site in self._sites.sites:
            values = [site.row, *(v for node in site.nodes for v in node.outputs)]
            health = dataclasses.replace(site.health, measured=wide.get(site.row))
            if site.row in overflows.beyond:
                names = self._names.kept(v for v in values if v in overflows.beyond)
                cure = KEEP if helps and names else ""
                health = dataclasses.replace(health, cure=cure, keep=names if cure else ())
            site.health = health

    def _told(
        self, overflows: Overflows, ranges: Ranges, run: HealthRun, *, helps: bool
    ) -> HealthRun:
        """Return a run with what is odd in it, and where that begins."""
        node = overflows.first(ranges)
        if node is None:
            return run
        value, constant = overflows.bad_of(node, ranges)[0], overflows.constant_of(node)
        site, source = self._near.get(node), "" if constant is None else self._names.of(constant)
        cure = KEEP if site is None else site.health.cure
        if source:
            cure = f"{END:.0f} in place of the infinity in {source}"
        return dataclasses.replace(
            run, tensor=self._names.of(value), size=ranges[value], node=node_name(node),
            op=node.op_type, module=module_path(node), site=self._norm_at(node),
            cure=cure if helps else "",
            odd=len(overflows.bad(ranges)), constant=source,
        )  # fmt: skip

    def _norm_at(self, node: ir.Node) -> str:
        """Return the name of the norm or sum that a node is in, or of the last one before it."""
        last = ""
        for one in nodes_in(self._model.graph):
            site = self._near.get(one)
            if site is not None and site.health.is_norm:
                last = site.health.site
            if one is node:
                break
        return last


def _read_by(values: Collection[ir.Value], stored: Collection[ir.Value]) -> set[ir.Value]:
    """Return the constants of the nodes that compute values: converters leave them as they are."""
    nodes = (value.producer() for value in values)
    return {v for node in nodes if node for v in node.inputs if v is not None and v in stored}
