"""The largest and least rows that a norm survives, found without running the model, and cures."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import Error, InputError
from rmsnorm_export.health.half import FileNames, node_name
from rmsnorm_export.health.parts import Part, PartTrial
from rmsnorm_export.health.result import BRAIN, EPSILON, KEEP, RESTORED, STORED, UPCAST, Health
from rmsnorm_export.health.trial import Edges, Trial
from rmsnorm_export.lower.lower import LowerContext, Lowered
from rmsnorm_export.lower.portable import lower
from rmsnorm_export.lower.scales import lower_all
from rmsnorm_export.lower.targets import TARGETS, Target
from rmsnorm_export.op.dtypes import Array, round_to, type_name
from rmsnorm_export.op.spec import FLOAT16, FLOAT_TYPES
from rmsnorm_export.printable import one_line
from rmsnorm_export.proof.bounds import smallest
from rmsnorm_export.proof.feeds import Batch, Layout, layouts, limits
from rmsnorm_export.proof.site import Proving, cut_site, stored_weight
from rmsnorm_export.recognize.consts import producer_of
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.recognize.types import Types


class _NormTrial(Trial):
    """A norm that recognition follows.

    Args:
        match: the norm.
        layout: of a row.
        proving: what is known of the model.

    Raises:
        InputError: it cannot be cut out.
    """

    def __init__(self, match: Match, layout: Layout, proving: Proving) -> None:
        self._match, self._layout, self._proving = match, layout, proving
        stored = ir.Value.is_initializer
        nodes = (node for node in match.nodes if not all(stored(v) for v in node.inputs if v))
        computed = (value for node in nodes for value in node.outputs)
        self.values = [v for v in computed if proving.types.dtype(v) in FLOAT_TYPES]
        self.output, self.dtype = match.output, match.dtype
        self.shape = (*layout.lead, *layout.row)
        self.axes = tuple(range(-len(layout.row), 0))
        lowered = Lowered(match.nodes, [(value, value) for value in self.values], "exact", match)
        self._pair = cut_site(match, lowered, layout, proving)
        self.original = self._pair.original
        self.assumed = () if match.gate is None else ("gate",)
        scale, bias = self._weight("scale", match.spec.scale_offset), self._weight("bias", 0.0)
        self._weights = self._pair.weights(scale, bias)

    def _weight(self, role: str, offset: float) -> Array:
        """Return a row of which every element is the largest that is stored of a weight, or 1."""
        value = getattr(self._match, role)
        cast = producer_of(value, "Cast")
        stored, largest = stored_weight(cast.inputs[0] if cast else value), 1.0 - offset
        if stored is not None and stored.size:
            elements = stored.astype(np.float64).reshape(-1)
            largest = float(elements[np.abs(elements + offset).argmax()])
        elif value is not None:
            self.assumed = (*self.assumed, role)
        return np.full(self._layout.row, largest)

    def feeds(self, rows: Array) -> dict[str, Array]:
        batch = Batch(rows, np.zeros(self.shape), np.ones(self.shape), ())
        return self._pair.feeds(batch, *self._weights)

    def cured(self, cure: str) -> tuple[ir.Model, str]:
        if cure in (KEEP, BRAIN):
            return super().cured(cure)
        match, epsilons = self._match, {EPSILON: RESTORED, STORED: limits(self.dtype)[1]}
        if cure in epsilons:
            spec = dataclasses.replace(match.spec, epsilon=epsilons[cure])
            match = dataclasses.replace(match, spec=spec)
        (new,) = lower([match], _upcast(self._proving))
        if isinstance(new, Refusal) or new.part is not match:
            what, fix = "The norm is no single node.", "optimize the model to see why"
            raise InputError(what, found=cure, fix=fix)
        pair = cut_site(self._match, new, self._layout, self._proving)
        new.discard()
        return pair.new, f"y{pair.outputs.index('y')}"


def _upcast(proving: Proving) -> LowerContext:
    """Return what a target is given that may compute in float32."""
    count = itertools.count()
    opset = proving.opset_imports.get("", 0)
    return LowerContext("upcast", lambda name: f"{name}.{next(count)}", opset, proving.types)


class Limits:
    """The limits of the norms of a model.

    Args:
        types, opset_imports, names: of the model.
        target: for which a cure has to do.
    """

    def __init__(
        self, types: Types, opset_imports: Mapping[str, int], names: FileNames,
        target: Target = "portable",
    ) -> None:  # fmt: skip
        self._proving, self._target = Proving(types, opset_imports), TARGETS[target]
        self._names = names
        self._edges: Edges = {}

    def of(self, match: Match | Part, health: Health) -> Health:
        """Return the limits of a norm, or why they are not known."""
        stash, epsilon = match.dtype, match.epsilon if isinstance(match, Part) else None
        if isinstance(match, Match):
            stash = match.spec.stash_type
            epsilon = float(round_to(match.spec.epsilon, stash))
        if epsilon is not None:
            subnormal = 0 < epsilon < limits(stash)[1]
            health = dataclasses.replace(health, epsilon=epsilon, subnormal=subnormal)
        try:
            trial = self._cut(match)
            return dataclasses.replace(health, **self._limits(match, trial, health))
        except Error as error:
            return dataclasses.replace(health, problem=one_line(f"{error.what} {error.found}"))

    def _limits(self, match: Match | Part, trial: Trial, health: Health) -> dict[str, Any]:
        types, end = self._proving.types, limits(trial.dtype)[0]
        least, largest, beyond = 0.0, end, end
        if trial.fault(1.0) is not None:
            largest, beyond = 0.0, 1.0
        elif trial.fault(end) is not None:
            largest, beyond = trial.edge(end, self._edges)
        if largest and trial.fault(0.0) is not None:
            least = trial.edge(smallest(trial.dtype), self._edges)[0]
        rounded = largest // 1 or largest
        facts = {"least": least, "largest": rounded, "assumed": tuple(trial.assumed)}
        if (failing := trial.fault(beyond)) is not None:
            value = failing[0]
            dtype, node = int(types.dtype(value) or 0), value.producer() or match.nodes[-1]
            facts |= {"node": node_name(node), "op": node.op_type, "computed": type_name(dtype)}
            if dtype != FLOAT16:
                return facts
        elif least == 0 or match.dtype != FLOAT16:
            return facts
        sizes = (0.0, beyond)
        fits = failing is None or failing[1]
        is_file = isinstance(match, Match) and not health.converted
        helps = [UPCAST, EPSILON] if is_file else [KEEP, STORED]
        cure = trial.cure(helps if fits else [BRAIN], sizes)
        if UPCAST in cure and isinstance(match, Match) and self._refuses(match):
            cure = f"--target portable {cure}"
        ends = (trial.output, match.sum if isinstance(match, Match) else None)
        inner = (v for v in trial.values if v not in ends and types.dtype(v) == FLOAT16)
        nodes = [maker for value in inner if (maker := value.producer()) is not None]
        kept = cure in (KEEP, STORED) or (fits and trial.cure([KEEP], sizes))
        keep = self._names.kept(nodes, inside=False) if kept else ()
        return facts | {"cure": cure, "keep": keep}

    def _refuses(self, match: Match) -> bool:
        """Return whether the target has no node for a norm, which the portable one has."""
        (outcome,) = lower_all([match], self._target, _upcast(self._proving))
        if isinstance(outcome, Lowered):
            outcome.discard()
        return isinstance(outcome, Refusal)

    def _cut(self, match: Match | Part) -> Trial:
        """Return the norm in the first sizes in which it can be run: one row, if it can be.

        Raises:
            Error: there are none.
        """
        if isinstance(match, Part):
            return PartTrial(match, self._proving)
        bare = Lowered(match.nodes, (), "exact", match)
        first, *others = layouts(match, bare, self._proving.types)
        for layout in (dataclasses.replace(first, lead=(1,) * len(first.lead)), *others):
            with contextlib.suppress(Error):
                norm = _NormTrial(match, layout, self._proving)
                norm.fault(1.0)
                return norm
        return _NormTrial(match, first, self._proving)
