"""What stays float32: by measured magnitudes, by rule, and what lies between such nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.op.native import KINDS, RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.precision.result import Kept
from rmsnorm_export.precision.units import PRODUCTS, Unit
from rmsnorm_export.recognize.match import module_path
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.runtime.metrics import FINFO

MARGIN = 4.0
"""Times a measured magnitude: other inputs have larger ones."""

Sizes = Mapping[ir.Value, float]
"""The largest finite magnitude of each value that is known."""

_NORM_NODES = (*KINDS, RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED, "LayerNormalization")
_ROOTS = ("Sqrt", "Reciprocal", "Pow")
_SQUARES = (
    "ReduceL2", "ReduceSumSquare", "LpNormalization", "InstanceNormalization",
    "GroupNormalization", "MeanVarianceNormalization", "LRN",
)  # fmt: skip
"""Operators that square in their own type, whatever a runtime does."""


def decide(
    units: Sequence[Unit], sizes: Sizes, half: ir.DataType, *, already: bool = False
) -> None:
    """Note on each unit whether, and why, it is float32.

    Args:
        units: of a model.
        sizes: magnitudes; those of stored tensors are exact.
        half: the type of the others.
        already: they are in that type, and only what overflows in these runs is to be float32.
    """
    makers = {value: unit for unit in units for value in unit.makes}
    readers: dict[ir.Value, list[Unit]] = defaultdict(list)
    masks: dict[ir.Value, list[Unit]] = defaultdict(list)
    for unit in units:
        for port in unit.reads:
            if port.value is not None:
                (masks if port.is_mask else readers)[port.value].append(unit)
    info = FINFO[numpy_dtype(half)]
    least, largest = float(info.smallest_normal), float(info.max)
    if already:
        outside = _overflows(units, sizes, largest)
    else:
        values = (*makers, *readers)
        bounds = {v: sizes.get(v, 0.0) * (MARGIN if v in makers else 1.0) for v in values}
        outside = {
            v: None
            for v, bound in bounds.items()
            if bound > largest or 0 < sizes.get(v, 0.0) < least
        }
        _keep_squares(readers, sizes, largest)
    for value in outside:
        made = [makers[value]] if value in makers else []
        verb = "is at most" if sizes[value] < least else "reaches"
        for unit in (*made, *readers[value]):
            if not (already and unit.node is None):
                unit.keep("range", f"{value.name} {verb} {sizes[value]:.3g}", value)
        if sizes[value] < least and not made:
            _keep_root(value, readers)
    for value, others in masks.items():
        readers[value] += others
    if not already:
        _by_need(units, makers)
    _between(units, makers, readers)


def _overflows(units: Sequence[Unit], sizes: Sizes, largest: float) -> dict[ir.Value, None]:
    """Return what overflows though its operands do not, and what is made of that.

    So a mask is none, which is made of the least number of the type.
    """
    found: dict[ir.Value, None] = {}
    for unit in units:
        operands = [port.value for port in unit.reads if port.value is not None]
        fit = all(sizes.get(value, 0.0) < largest for value in operands)
        fit |= unit.node is not None and unit.node.op_type in PRODUCTS
        if fit or any(value in found for value in operands):
            found |= dict.fromkeys(v for v in unit.makes if sizes.get(v, 0.0) > largest)
    return found


def _keep_root(epsilon: ir.Value, readers: Mapping[ir.Value, list[Unit]]) -> None:
    """Keep what is made of an epsilon, all that there is of a row of zeros, until it divides."""
    pending = list(readers[epsilon])
    while pending:
        for value in pending.pop().makes:
            for unit in readers.get(value, ()):
                op = "" if unit.node is None or not unit.whole else unit.node.op_type
                if op in (*_ROOTS, "Div", "Mul"):
                    unit.keep("range", f"{epsilon.name} is in it", epsilon)
                if op in _ROOTS:
                    pending.append(unit)


def _keep_squares(readers: Mapping[ir.Value, list[Unit]], sizes: Sizes, largest: float) -> None:
    """Keep operators whose squares the type does not hold."""
    for value, units in readers.items():
        size = sizes.get(value, 0.0)
        for unit in units if MARGIN * size * size > largest else ():
            if unit.whole and unit.node is not None and unit.node.op_type in _SQUARES:
                unit.keep("range", f"squares of {value.name}, which reaches {size:.3g}", value)


def _by_need(units: Sequence[Unit], makers: Mapping[ir.Value, Unit]) -> None:
    """Keep angles, and what becomes an integer: rounded, a large one is another one."""
    seen: set[Unit] = set()
    for unit in units:
        node = unit.node
        if node is None or not unit.whole:
            continue
        what = "an angle" if node.op_type in ("Sin", "Cos") else ""
        to = node.attributes.get_int("to", 0) if node.op_type == "Cast" else 0
        if to and ir.DataType(to).is_integer():
            what = "an index"
        pending = [unit] if what else []
        while pending:
            one = pending.pop()
            one.keep("rule", what)
            fresh = {m for m in _makers_of(one, makers) if not _is_heavy(m)} - seen
            seen |= fresh
            pending += fresh


def _makers_of(unit: Unit, makers: Mapping[ir.Value, Unit]) -> Iterator[Unit]:
    for port in unit.reads:
        if port.value is not None and port.value in makers:
            yield makers[port.value]


def _between(
    units: Sequence[Unit],
    makers: Mapping[ir.Value, Unit],
    readers: Mapping[ir.Value, list[Unit]],
) -> None:
    """Keep light nodes all of whose neighbours are float32: in half they would cost Casts alone."""
    inside = {unit for unit in units if not unit.wide and not _is_heavy(unit)}

    def is_wide(unit: Unit) -> bool:
        return unit.wide or unit in inside

    while left := [
        unit
        for unit in inside
        if not all(map(is_wide, _makers_of(unit, makers)))
        or not all(is_wide(one) for value in unit.makes for one in readers.get(value, ()))
    ]:
        inside.difference_update(left)
    for unit in inside:
        unit.keep("between", "all around it is float32")


def _is_heavy(unit: Unit) -> bool:
    """Return whether a unit is worth the Casts around it, or what comes before it is unlike it."""
    node = unit.node
    if node is None:
        return True
    if not unit.whole:
        return False
    if node.op_type.split("_")[0] in _NORM_NODES:
        return True
    stored = (port.value.const_value for port in unit.reads if port.value is not None)
    matrix = any(one is not None and sum(n != 1 for n in one.shape.numpy()) > 1 for one in stored)
    return matrix or (node.op_type in PRODUCTS and len(unit.reads) > 1 and not _is_outer(node))


def _is_outer(node: ir.Node) -> bool:
    """Return whether a product has a single term, as positions times frequencies."""
    first = node.inputs[0]
    return (
        node.op_type == "MatMul"
        and first is not None
        and first.shape is not None
        and len(first.shape) > 0
        and first.shape[-1] == 1
    )


def kept(units: Sequence[Unit], sizes: Sizes) -> tuple[Kept, ...]:
    """Return the nodes that are float32, in order."""
    return tuple(
        Kept(
            node=name_of(unit.node),
            op=unit.node.op_type,
            module=module_path(unit.node),
            kind=unit.kind,
            reason=unit.reason,
            tensor="" if unit.culprit is None else unit.culprit.name or "",
            size=0.0 if unit.culprit is None else sizes[unit.culprit],
        )
        for unit in units
        if unit.node is not None and unit.whole and unit.kind is not None
    )
