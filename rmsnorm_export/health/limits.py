"""The largest and least rows that a norm survives, found without running the model.

The nodes of the norm are cut out and evaluated as in a proof, every result rounded to its type, on
rows of every magnitude: all elements alike, for which sums are largest, and one element among
zeros, for which the normalised row is. A row is survived where the norm is within a quarter of what
float64 makes of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import Error, InputError
from rmsnorm_export.graph.retype import retype
from rmsnorm_export.health.result import BRAIN, EPSILON, KEEP, UPCAST, Health
from rmsnorm_export.lower.lower import LowerContext, Lowered
from rmsnorm_export.lower.portable import lower
from rmsnorm_export.lower.scales import lower_all
from rmsnorm_export.lower.targets import TARGETS, Target
from rmsnorm_export.op.dtypes import Array, numpy_dtype, round_to, type_name
from rmsnorm_export.op.spec import FLOAT16, FLOAT_TYPES
from rmsnorm_export.printable import one_line
from rmsnorm_export.proof.bounds import UNIT_ROUNDOFF, smallest
from rmsnorm_export.proof.evaluate import run_float64, run_numpy
from rmsnorm_export.proof.feeds import Batch, Layout, layouts, limits
from rmsnorm_export.proof.site import Proving, cut_site, stored_weight
from rmsnorm_export.recognize.consts import producer_of
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, name_of
from rmsnorm_export.recognize.types import Types

_HALVINGS = 10
"""Of the distance, in powers, between a row that is survived and one that is not."""


class _Site:
    """One norm, cut out, ready to be tried on rows.

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
        self._end = f"y{self.values.index(match.output)}"
        lowered = Lowered(match.nodes, [(value, value) for value in self.values], "exact", match)
        self._pair = cut_site(match, lowered, layout, proving)
        self.assumed = [] if match.gate is None else ["gate"]
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
            self.assumed.append(role)
        return np.full(self._layout.row, largest)

    def fault(self, size: float) -> tuple[ir.Value, bool] | None:
        """Return the value at which a row fails, and whether its norm fits; None: it survives."""
        for typed, expected in self._failures(self._pair.original, self._end, size):
            odd = (v for i, v in enumerate(self.values) if not np.isfinite(typed[f"y{i}"]).all())
            fits = bool(np.abs(expected).max() <= limits(self._match.dtype)[0])
            return next(odd, self._match.output), fits
        return None

    def _failures(
        self, model: ir.Model, end: str, size: float
    ) -> Iterator[tuple[dict[str, Array], Array]]:
        """Yield what a model makes of rows that it does not survive, and what float64 does.

        Args:
            model: the original, or another model of its inputs.
            end: its output that is the norm.
            size: the magnitude of the rows.
        """
        shape = (*self._layout.lead, *self._layout.row)
        single = np.zeros(self._layout.row)
        single.flat[0] = max(size, 1.0)  # a row of one small element is as good as of zeros
        for row in (np.full(shape, size), np.broadcast_to(single, shape)):
            batch = Batch(row, np.zeros(shape), np.ones(shape), ())
            arrays, feeds = self._pair.feeds(batch, *self._weights), {}
            for value in model.graph.inputs:
                port = value.name or ""
                feeds[port] = arrays[port].astype(numpy_dtype(value.dtype or self._match.dtype))
            typed = {k: v.astype(np.float64) for k, v in run_numpy(model, feeds).items()}
            expected = run_float64(self._pair.original, feeds).outputs[self._end]
            if not np.isfinite(expected).all():  # as of zeros without an epsilon
                expected = np.zeros_like(expected)
            with np.errstate(all="ignore"):
                off = np.abs(typed[end] - expected) - 4 * smallest(self._match.dtype)
                if not (off <= np.abs(expected) / 4).all():
                    yield typed, expected

    def cure(self, cures: Sequence[str], sizes: Sequence[float]) -> str:
        """Return the first cure with which rows of these magnitudes are survived, or ""."""
        for name in cures:
            with contextlib.suppress(Error):
                model, end = self._cured(name)
                failures = (f for size in sizes for f in self._failures(model, end, size))
                if next(failures, None) is None:
                    return name
        return ""

    def _cured(self, cure: str) -> tuple[ir.Model, str]:
        """Return the norm after a cure, and which of the outputs it is."""
        types = {KEEP: ir.DataType.FLOAT, BRAIN: ir.DataType.BFLOAT16}
        if cure in types:
            model = self._pair.original.clone()
            retype(model, {ir.DataType.FLOAT16: types[cure]})
            return model, self._end
        match = self._match
        if cure == EPSILON:
            spec = dataclasses.replace(match.spec, epsilon=limits(match.dtype)[1])
            match = dataclasses.replace(match, spec=spec)
        (new,) = lower([match], _upcast(self._proving))
        if isinstance(new, Refusal) or new.part is not match:
            what, fix = "The norm is no single node.", "optimize the model to see why"
            raise InputError(what, found=cure, fix=fix)
        pair = cut_site(self._match, new, self._layout, self._proving)
        new.discard()
        return pair.new, f"y{pair.outputs.index('y')}"

    def edge(self, end: float, edges: dict[float, tuple[float, float]]) -> tuple[float, float]:
        """Return the last magnitude on the way to the end that is survived, and one beyond it.

        Args:
            end: that is not survived.
            edges: of the norm before, by their ends: layers are alike.
        """
        good, bad = edges.get(end, (end, end))
        if self.fault(good) is not None or self.fault(bad) is None:
            good, bad = 1.0, end
            for _ in range(_HALVINGS):
                middle = math.sqrt(good) * math.sqrt(bad)
                good, bad = (middle, bad) if self.fault(middle) is None else (good, middle)
            edges[end] = good, bad
        return good, bad


def _upcast(proving: Proving) -> LowerContext:
    """Return what a target is given that may compute in float32."""
    count = itertools.count()
    opset = proving.opset_imports.get("", 0)
    return LowerContext("upcast", lambda name: f"{name}.{next(count)}", opset, proving.types)


class Limits:
    """The limits of the norms of a model.

    Args:
        types, opset_imports: of the model.
        target: for which a cure has to do.
    """

    def __init__(
        self, types: Types, opset_imports: Mapping[str, int], target: Target = "portable"
    ) -> None:
        self._proving, self._target = Proving(types, opset_imports), TARGETS[target]
        self._edges: dict[float, tuple[float, float]] = {}

    def of(self, match: Match, health: Health) -> Health:
        """Return the limits of a norm, or why they are not known."""
        stash = match.spec.stash_type
        epsilon = float(round_to(match.spec.epsilon, stash))
        health = dataclasses.replace(
            health,
            epsilon=epsilon,
            unchanged=math.sqrt(epsilon / UNIT_ROUNDOFF[stash]),
            subnormal=0 < epsilon < limits(stash)[1],
        )
        try:
            return dataclasses.replace(health, **self._limits(match, health))
        except Error as error:
            return dataclasses.replace(health, problem=one_line(f"{error.what} {error.found}"))

    def _limits(self, match: Match, health: Health) -> dict[str, Any]:
        types, end = self._proving.types, limits(match.dtype)[0]
        site = self._cut(match)
        least, largest, beyond = 0.0, end, end
        if site.fault(1.0) is not None:
            largest, beyond = 0.0, 1.0
        elif site.fault(end) is not None:
            largest, beyond = site.edge(end, self._edges)
        if largest and site.fault(0.0) is not None:
            least = site.edge(smallest(match.dtype), self._edges)[0]
        facts = {"least": least, "largest": largest // 1 or largest, "assumed": tuple(site.assumed)}
        if (failing := site.fault(beyond)) is None:
            return facts
        value, fits = failing
        dtype, node = int(types.dtype(value) or 0), value.producer() or match.nodes[-1]
        facts |= {"node": name_of(node), "op": node.op_type, "computed": type_name(dtype)}
        if dtype == FLOAT16:
            sizes, helps = (0.0, beyond), [UPCAST, *([EPSILON] * (health.epsilon == 0))]
            inner = (one for one in site.values if one not in (match.output, match.sum))
            kept = site.cure([KEEP], sizes) if fits else ""
            if not fits:
                cure = site.cure([BRAIN], sizes)
            else:
                cure = kept if health.converted else site.cure(helps, sizes)
            if UPCAST in cure and self._refuses(match):
                cure = cure.replace(UPCAST, f"--target portable {UPCAST}")
            facts |= {"cure": cure, "keep": tuple(one.name for one in inner if kept)}
        return facts

    def _refuses(self, match: Match) -> bool:
        """Tell a norm that the target has no node for, which the portable one has."""
        (outcome,) = lower_all([match], self._target, _upcast(self._proving))
        if isinstance(outcome, Lowered):
            outcome.discard()
        return isinstance(outcome, Refusal)

    def _cut(self, match: Match) -> _Site:
        """Return the norm in the first sizes in which it can be run: one row, if it can be.

        Raises:
            Error: there are none.
        """
        bare = Lowered(match.nodes, (), "exact", match)
        first, *others = layouts(match, bare, self._proving.types)
        for layout in (dataclasses.replace(first, lead=(1,) * len(first.lead)), *others):
            with contextlib.suppress(Error):
                site = _Site(match, layout, self._proving)
                site.fault(1.0)
                return site
        return _Site(match, first, self._proving)
