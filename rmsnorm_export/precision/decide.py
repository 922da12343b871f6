"""What stays float32: by measured magnitudes, by rule, and what lies between such nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.health.sites import PRODUCTS
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.precision.result import Kept
from rmsnorm_export.precision.units import Port, Unit
from rmsnorm_export.recognize.match import module_path
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.runtime.metrics import FINFO

MARGIN = 32.0
"""Times a measured magnitude: other inputs have larger ones, as single tokens of a text do. With it
3 of 271 products of SmolLM2-135M are float32, with 4 one, whose result reaches 23,000."""

Sizes = Mapping[ir.Value, float]
"""The largest finite magnitude of each value that is known."""

_ROOTS = ("Sqrt", "Reciprocal", "Pow")
_SQUARES = (
    "ReduceL2", "ReduceSumSquare", "LpNormalization", "InstanceNormalization",
    "GroupNormalization", "MeanVarianceNormalization", "LRN",
)  # fmt: skip
"""Operators that square in their own type, whatever a runtime does."""


class Decision:
    """Says of each unit whether, and why, it is float32.

    Args:
        units: of a model.
        sizes: magnitudes; those of stored tensors are exact.
        half: the type of the others.
        already: they are in that type, and only what overflows in these runs is to be float32.
    """

    def __init__(
        self, units: Sequence[Unit], sizes: Sizes, half: ir.DataType, *, already: bool
    ) -> None:
        self._units, self._sizes = units, sizes
        info = FINFO[numpy_dtype(half)]
        self._least, self._largest = float(info.smallest_normal), float(info.max)
        self._makers = {value: unit for unit in units for value in unit.makes}
        self._readers: dict[ir.Value, list[Unit]] = defaultdict(list)
        for unit in units:
            for port in unit.reads:
                self._readers[port.value].append(unit)
        if already:
            self._keep_overflows()
        else:
            for unit in units:
                self._keep_by_size(unit)
            self._keep_exact()
        self._keep_between()

    def _keep_by_size(self, unit: Unit) -> None:
        """Keep what makes or reads a value that the type does not hold."""
        for value in (*(port.value for port in unit.reads if not port.is_mask), *unit.makes):
            size = self._sizes.get(value, 0.0)
            bound = size * (MARGIN if value in self._makers else 1)
            if bound > self._largest:
                unit.keep("range", f"{value.name} reaches {size:.3g}", value)
            elif 0 < size < self._least:
                unit.keep("range", f"{value.name} is at most {size:.3g}", value)
                if value not in self._makers:
                    self._keep_root(unit, value)
            elif unit.op in _SQUARES and value not in unit.makes and bound * size > self._largest:
                unit.keep("range", f"squares of {value.name}, which reaches {size:.3g}", value)

    def _keep_root(self, unit: Unit, epsilon: ir.Value) -> None:
        """Keep what is made of an epsilon, all that there is of a row of zeros, till it divides."""
        for reader in (one for value in unit.makes for one in self._readers[value]):
            if reader.op in (*_ROOTS, "Div", "Mul"):
                reader.keep("range", f"{epsilon.name} is in it", epsilon)
            if reader.op in _ROOTS:
                self._keep_root(reader, epsilon)

    def _keep_overflows(self) -> None:
        """Keep what overflows, but for masks, and what is made of that.

        A mask is made of stored numbers that are all 0 or the end of the type, or of such an input.
        """
        found: set[ir.Value] = set()
        masks = {port.value for unit in self._units for port in unit.reads if self._is_mask(port)}
        for unit in self._units:
            operands = [port.value for port in unit.reads]
            large = {v for v in unit.makes if self._sizes.get(v, 0.0) >= self._largest}
            clean = masks.isdisjoint(operands)
            if clean or unit.op in PRODUCTS or not found.isdisjoint(operands):
                found |= {v for v in large if self._sizes[v] > self._largest}
            if not (clean and operands):
                masks |= large - found
        for value in found:
            for unit in (self._makers[value], *self._readers[value]):
                if not unit.is_end:
                    reason = f"{value.name} reaches {self._sizes[value]:.3g}"
                    unit.keep("range", reason, value)

    def _is_mask(self, port: Port) -> bool:
        """Return whether a port reads an input or a stored tensor that is a mask or makes one."""
        stored, size = port.value.const_value, self._sizes.get(port.value, 0.0)
        if size < self._largest or (stored is None and not port.value.is_graph_input()):
            return False
        sizes = np.abs(np.zeros(0) if stored is None else stored.numpy())
        return not ((sizes > 0) & (sizes < self._largest)).any()

    def _keep_exact(self) -> None:
        """Keep angles, and what becomes an integer: rounded, a large one is another one."""
        seen: set[Unit] = set()
        for unit in self._units:
            to = unit.node.attributes.get_int("to", 0) if unit.node and unit.op == "Cast" else 0
            is_index = to and ir.DataType(to).is_integer()
            pending = [unit] if is_index or unit.op in ("Sin", "Cos") else []
            while pending:
                one = pending.pop()
                one.keep("rule", "an index" if is_index else "an angle")
                fresh = {m for m in self._makers_of(one) if not _is_heavy(m)} - seen
                seen |= fresh
                pending += fresh

    def _makers_of(self, unit: Unit) -> Iterator[Unit]:
        values = (port.value for port in unit.reads)
        return (self._makers[value] for value in values if value in self._makers)

    def _keep_between(self) -> None:
        """Keep light nodes all of whose neighbours are float32: half would cost Casts alone."""
        inside = {unit for unit in self._units if not unit.kind and not _is_heavy(unit)}

        def leaves(unit: Unit) -> bool:
            readers = (one for value in unit.makes for one in self._readers[value])
            around = (*self._makers_of(unit), *readers)
            return any(one.kind is None and one not in inside for one in around)

        while left := {unit for unit in inside if leaves(unit)}:
            inside -= left
        for unit in inside:
            unit.keep("between", "all around it is float32")
        light = [unit for unit in self._units if unit.op not in PRODUCTS and not unit.is_end]
        while any(self._saves_casts(unit) for unit in light if not unit.kind):
            pass

    def _saves_casts(self, unit: Unit) -> bool:
        """Keep a node where that makes fewer Casts; return whether it does."""
        values = {*(port.value for port in unit.reads), *unit.makes}
        readers = [one for value in unit.makes for one in self._readers[value]]
        if _is_heavy(unit) and any(one.is_end or not one.kind for one in readers):
            return False  # weights would be larger
        before = sum(map(self._casts, values))
        unit.keep("between", "so there are fewer Casts")
        if sum(map(self._casts, values)) < before:
            return True
        unit.kind, unit.reason = None, ""
        return False

    def _casts(self, value: ir.Value) -> int:
        """Return how many Casts a value needs."""
        around = [self._makers[value]] if value in self._makers else []
        return len({bool(one.kind) for one in (*around, *self._readers[value])}) - 1


def _is_heavy(unit: Unit) -> bool:
    """Return whether a unit is worth the Casts around it, or what comes before is unlike it."""
    values = [port.value for port in unit.reads]
    stored = (value.const_value for value in values)
    if any(one is not None and sum(n != 1 for n in one.shape.numpy()) > 1 for one in stored):
        return True
    outer = bool(values and values[0].shape and values[0].shape[-1] == 1)  # as for angles
    return unit.is_end or (unit.op in PRODUCTS and len(values) > 1 and not outer)


def kept(units: Sequence[Unit], sizes: Sizes) -> tuple[Kept, ...]:
    """Return the nodes that are float32, in order."""
    return tuple(
        Kept(
            node=name_of(unit.node),
            op=unit.op,
            module=module_path(unit.node),
            kind=unit.kind,
            reason=unit.reason,
            tensor="" if unit.culprit is None else unit.culprit.name or "",
            size=0.0 if unit.culprit is None else sizes[unit.culprit],
        )
        for unit in units
        if unit.node is not None and unit.kind is not None
    )
