"""The health of a model: its norms, sums and products, what runs show of them, and the cures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.graph.order import graphs_in, variables_in
from rmsnorm_export.health.half import FileNames, in_half, node_name
from rmsnorm_export.health.overflows import Overflows
from rmsnorm_export.health.ranges import Candidates, Measured, Ranges, Rounding, measure
from rmsnorm_export.health.result import END, KEEP, HealthRun
from rmsnorm_export.health.sites import Sites
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import HALF_TYPES
from rmsnorm_export.recognize.match import module_path
from rmsnorm_export.runtime.inputs import graph_inputs, index_limits, input_candidates
from rmsnorm_export.runtime.metrics import is_float
from rmsnorm_export.runtime.sizes import Inputs

_MOST_TRIES = 4
_MOST_OFF = 0.1
"""Distance of the outputs from float32 with a cure that helps, of their largest element."""


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
    runs = _Runs(model, sites, names, candidates, source)
    runs.run()
    return {"health": tuple(site.health for site in sites.sites), "health_runs": tuple(runs.runs)}


@dataclasses.dataclass(frozen=True, slots=True)
class _Cure:
    """What helps: nodes kept in float32, and constants clipped.

    Attributes:
        run: that shows it.
        unfit: values that float16 does not hold.
        kept: nodes that are computed in float32.
        clipped: constants have its largest number in place of infinities.
    """

    run: HealthRun
    unfit: set[ir.Value]
    kept: set[ir.Node]
    clipped: bool


class _Runs:
    """The runs of a model: in float32, in half precision, and with the cures.

    Args:
        model: in half precision.
        sites, names: of it.
        candidates: of inputs.
        source: of these, in words.
    """

    def __init__(
        self, model: ir.Model, sites: Sites, names: FileNames, candidates: Candidates, source: str
    ) -> None:
        self._model, self._sites, self._names = model, sites, names
        self._candidates, self._source = candidates, source
        values = variables_in(graphs_in(model.graph))
        dtypes = {value: sites.types.dtype(value) for value in values}
        self._halves = {value: dtype for value, dtype in dtypes.items() if dtype in HALF_TYPES}
        self._near = {node: site for site in reversed(sites.sites) for node in site.nodes}
        self.runs: list[HealthRun] = []

    def run(self) -> None:
        """Run the model, note the ranges at its sites, and name the cures that help."""
        wide = self._measured("in float32", Rounding())
        half = self._measured("in half precision", Rounding(self._halves))
        overflows = Overflows(self._sites, wide.ranges or half.ranges)
        cure = self._cured(overflows, wide, half.ranges)
        self._name_cures(overflows, wide.ranges or half.ranges, cure)
        for one in (wide, half):
            self.runs.append(self._told(overflows, one.ranges, one.run, cure))
        self.runs += [] if cure is None else [cure.run]

    def _measured(self, computed: Any, rounding: Rounding) -> Measured:
        run = HealthRun(computed, self._source)
        return measure(self._model, self._sites.types, self._candidates, run, rounding)

    def _cured(self, overflows: Overflows, wide: Measured, half: Ranges) -> _Cure | None:
        """Return what helps; None without such a cure, or without need.

        Values that float16 does not hold are kept in float32. Constants that it does not hold are
        its largest number instead, as a mask may be; where that does not help, they are kept, too.
        """
        odd, constants = overflows.bad(half), overflows.constants
        if not odd or not wide.ranges:
            return None
        every = [(overflows.beyond, set(constants.values()))]
        if constants:
            every.append((overflows.beyond | constants.keys(), set()))
        cures = (self._tried(overflows, odd[0][0], wide, *one) for one in every)
        return next(filter(None, cures), None)

    def _tried(
        self, overflows: Overflows, node: ir.Node, wide: Measured, unfit: set[ir.Value],
        clipped: set[ir.Value],
    ) -> _Cure | None:  # fmt: skip
        """Return the cure after whose run in half precision the outputs are right.

        The norm in which a number becomes none is kept in float32, and so is what is odd in turn.

        Args:
            overflows: of the model.
            node: the first that makes something odd.
            wide: the run in float32.
            unfit: values that are kept in float32, by the nodes that make and that read them.
            clipped: constants that are kept within float16.
        """
        kept = {user for value in unfit for user, _ in value.uses()}
        kept.update(one for value in unfit if (one := value.producer()) is not None)
        for _ in range(_MOST_TRIES):
            if not clipped or overflows.constant_of(node) is None:
                kept |= self._around(node)
            rounding = Rounding(self._halves, kept, self._sites.stored, clipped)
            seen = self._measured("with the cures", rounding)
            odd = overflows.bad(seen.ranges, kept)
            if not odd:
                off = _distance(wide.outputs, seen.outputs) if seen.ranges else math.inf
                run = dataclasses.replace(seen.run, off=off)
                return _Cure(run, unfit, kept, bool(clipped)) if off <= _MOST_OFF else None
            node = odd[0][0]
        return None

    def _around(self, node: ir.Node) -> set[ir.Node]:
        """Return a node, and all of the norm that it is in, but the sum that this reads."""
        site = self._near.get(node)
        norm = () if site is None or site.health.kind != "norm" else site.nodes
        return {node, *(one for one in norm if site and site.row not in one.outputs)}

    def _name_cures(self, overflows: Overflows, wide: Ranges, cure: _Cure | None) -> None:
        """Note the ranges, and give each node that is kept in float32 a site with that cure.

        A norm whose row float16 holds has its own.
        """
        unfit = overflows.beyond if cure is None else cure.unfit
        kept = set() if cure is None else cure.kept
        for node in overflows.nodes:
            odd = not unfit.isdisjoint(node.outputs) or (node in kept and node.op_type != "Cast")
            if odd and node not in self._near:
                self._near[node] = self._sites.add_value(node.outputs[0], node)
        for site in self._sites.sites:
            health = dataclasses.replace(site.health, measured=wide.get(site.row))
            own = [node for node in site.nodes if node in kept]
            if site.row in unfit or (own and health.kind != "norm"):
                names = self._names.kept(own)
                helps = KEEP if names else ""
                health = dataclasses.replace(health, cure=helps, keep=names if helps else ())
            site.health = health

    def _told(
        self, overflows: Overflows, ranges: Ranges, run: HealthRun, cure: _Cure | None
    ) -> HealthRun:
        """Return a run with what is odd in it, and where that begins."""
        if not (odd := overflows.bad(ranges)):
            return run
        (node, value), constant = odd[0], overflows.constant_of(odd[0][0])
        site, source = self._near.get(node), "" if constant is None else self._names.of(constant)
        helps = KEEP if site is None or source else site.health.cure
        if source and cure is not None and cure.clipped:
            helps = f"{END:.0f} in place of the infinity in {source}"
        return dataclasses.replace(
            run, tensor=self._names.of(value), size=ranges[value], node=node_name(node),
            op=node.op_type, module=module_path(node),
            cure="" if cure is None else helps, odd=len(odd), constant=source,
        )  # fmt: skip


def _distance(a: Mapping[str, Array], b: Mapping[str, Array]) -> float:
    """Return how far outputs are off, of the largest element of each."""
    worst = 0.0
    for name, expected in a.items():
        numbers = np.isfinite(expected) if is_float(expected.dtype) else np.zeros(1, bool)
        if numbers.any():
            off = np.abs(b[name][numbers] - expected[numbers]).max()
            worst = max(worst, float(off / (np.abs(expected[numbers]).max() or 1)))
    return worst if not math.isnan(worst) else math.inf
