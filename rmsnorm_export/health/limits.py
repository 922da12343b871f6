"""The largest and least rows that a norm survives, found without running the model.

The nodes of the norm are cut out and evaluated as in a proof, every result rounded to its type, on
rows of every magnitude: all elements alike, for which sums are largest, and one element among
zeros, for which the normalised row is. A row is survived where the norm is within a quarter of what
float64 makes of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import Error
from rmsnorm_export.health.result import KEEP, Health
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import Array, numpy_dtype, round_to, type_name
from rmsnorm_export.op.spec import FLOAT16, FLOAT_TYPES
from rmsnorm_export.printable import one_line
from rmsnorm_export.proof.bounds import UNIT_ROUNDOFF, smallest
from rmsnorm_export.proof.evaluate import run_float64, run_numpy
from rmsnorm_export.proof.feeds import Batch, Layout, layouts, limits
from rmsnorm_export.proof.site import Proving, cut_site, fitted, stored_weight
from rmsnorm_export.recognize.consts import producer_of
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import name_of
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
        self._match, self._layout = match, layout
        stored = ir.Value.is_initializer
        nodes = (node for node in match.nodes if not all(stored(v) for v in node.inputs if v))
        computed = (value for node in nodes for value in node.outputs)
        self.values = [v for v in computed if proving.types.dtype(v) in FLOAT_TYPES]
        self._place = self.values.index(match.output)
        lowered = Lowered(match.nodes, [(value, value) for value in self.values], "exact", match)
        self._pair = cut_site(match, lowered, layout, proving)
        self.assumed = [] if match.gate is None else ["gate"]
        self._weights = self._weight("scale", match.spec.scale_offset), self._weight("bias", 0.0)

    def _weight(self, role: str, offset: float) -> Array | None:
        """Return a weight of which every element is the largest that is stored, or 1."""
        value = getattr(self._match, role)
        cast = producer_of(value, "Cast")
        stored, largest = stored_weight(cast.inputs[0] if cast else value), 1.0 - offset
        if stored is not None and stored.size:
            elements = stored.astype(np.float64).reshape(-1)
            largest = float(elements[np.abs(elements + offset).argmax()])
        elif value is not None:
            self.assumed.append(role)
        return fitted(value, np.full(self._layout.row, largest), self._layout, self._match)

    def fault(self, size: float) -> tuple[ir.Value, bool] | None:
        """Return the value at which a row fails, and whether its norm fits; None: it survives."""
        shape, name = (*self._layout.lead, *self._layout.row), f"y{self._place}"
        single = np.zeros(self._layout.row)
        single.flat[0] = max(size, 1.0)  # a row of one small element is as good as of zeros
        for row in (np.full(shape, size), np.broadcast_to(single, shape)):
            batch = Batch(row, np.zeros(shape), np.ones(shape), ())
            arrays, feeds = self._pair.feeds(batch, *self._weights), {}
            for value in self._pair.original.graph.inputs:
                port = value.name or ""
                feeds[port] = arrays[port].astype(numpy_dtype(value.dtype or self._match.dtype))
            typed = {
                k: v.astype(np.float64) for k, v in run_numpy(self._pair.original, feeds).items()
            }
            expected = run_float64(self._pair.original, feeds).outputs[name]
            with np.errstate(all="ignore"):
                off = np.abs(typed[name] - expected) - 4 * smallest(self._match.dtype)
                if (off <= np.abs(expected) / 4).all():
                    continue
            odd = (i for i in range(len(self.values)) if not np.isfinite(typed[f"y{i}"]).all())
            fits = bool(np.abs(expected).max() <= limits(self._match.dtype)[0])
            return self.values[next(odd, self._place)], fits
        return None

    def edge(self, end: float, edges: dict[float, tuple[float, float]]) -> tuple[float, float]:
        """Return the last magnitude on the way to the end that is survived, and one behind it.

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


class Limits:
    """The limits of the norms of a model.

    Args:
        types, opset_imports: of the model.
    """

    def __init__(self, types: Types, opset_imports: Mapping[str, int]) -> None:
        self._proving = Proving(types, opset_imports)
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
            return dataclasses.replace(health, **self._limits(match, health.converted))
        except Error as error:
            return dataclasses.replace(health, problem=one_line(f"{error.what} {error.found}"))

    def _limits(self, match: Match, converted: bool) -> dict[str, Any]:
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
            upcast = KEEP if converted else "--numerics upcast"
            inner = (one for one in site.values if one not in (match.output, match.sum))
            keep = tuple(one.name for one in inner if fits)
            facts |= {"cure": upcast if fits else "bfloat16", "keep": keep}
        return facts

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
