"""Runs in float32: the magnitudes of all values, the outputs, and how far those of another are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.graph.order import graphs_in, insert, values_in, variables_in
from rmsnorm_export.graph.retype import Types, retype
from rmsnorm_export.graph.tensors import release
from rmsnorm_export.health.ranges import Marks, Rounding
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import HALF_TYPES
from rmsnorm_export.printable import plural
from rmsnorm_export.proof import comparison
from rmsnorm_export.proof.comparison import Prepare, Reference
from rmsnorm_export.runtime.inputs import Sample, first_run, graph_inputs, in_types_of
from rmsnorm_export.runtime.metrics import is_float
from rmsnorm_export.runtime.session import run_session

_WIDE: Types = dict.fromkeys(HALF_TYPES, ir.DataType.FLOAT)


def run_in_float32(
    model: ir.Model, own: set[ir.Value], samples: Iterable[Sample], prepare: Prepare
) -> tuple[dict[ir.Value, float], list[Reference]]:
    """Return the largest finite magnitudes of values in runs of a model, and the outputs.

    Args:
        model: left as it is.
        own: values whose magnitudes are asked for.
        samples: the inputs.
        prepare: makes random ones meaningful.

    Raises:
        Error: it is not run.
    """
    copy = model.clone()
    both = ([v for g in graphs_in(one.graph) for v in values_in(g)] for one in (copy, model))
    pairs = zip(*both, strict=True)
    ours = {mine: of for mine, of in pairs if of in own and not of.is_initializer()}
    retype(copy, _WIDE)
    marks = Marks({*ours}, Rounding(), odd=0.0).add(copy.graph)
    names = [value.name or "" for value in copy.graph.outputs]
    copy.graph.outputs.extend(marks.values())
    copy.graph.sort()
    declared, sizes, references = graph_inputs(copy), dict.fromkeys(ours.values(), 0.0), []
    with comparison.opened(copy, frugal=True) as session:
        for candidates, origin in samples:

            def run(feeds: dict[str, Array], prepared: bool = "random" in origin) -> Reference:
                defined = prepare(feeds) if prepared else {}
                wide = in_types_of(declared, feeds)
                return Reference(wide, run_session(session, wide), defined)

            _, seen = first_run(candidates(), run)
            for value, mark in marks.items():
                size = float(seen.outputs[mark.name or ""])
                sizes[ours[value]] = max(sizes[ours[value]], size)
            floats = {n: seen.outputs[n] for n in names if is_float(seen.outputs[n].dtype)}
            references.append(Reference(seen.feeds, floats, seen.defined))
    return sizes, references


def stored_sizes(values: Iterable[ir.Value]) -> dict[ir.Value, float]:
    """Return the largest finite magnitudes of stored tensors."""
    sizes = {}
    for value in values:
        assert value.const_value is not None
        array = value.const_value.numpy()
        ends = np.array([array.max(initial=0.0), -array.min(initial=0.0)], np.float64)
        if not np.isfinite(ends).all():
            ends = np.abs(array[np.isfinite(array)]).astype(np.float64)
        sizes[value] = float(ends.max(initial=0.0))
        del array
        release(value.const_value)
    return sizes


def compare(
    model: ir.Model, half: ir.DataType, references: Sequence[Reference]
) -> tuple[str, str, str]:
    """Return how far a model is from earlier runs, why nothing was compared, and what is wrong.

    Every value of the half type is rounded to it, and computed in float32: on a CPU ONNX Runtime
    has few kernels of half types, and computes chains of nodes without rounding between them.
    """
    copy = model.clone()
    _round_values(copy, half)
    try:
        seen = [
            comparison.compare_with(one, copy, rtol=np.inf, frugal=True)
            for one in references
            if one.outputs
        ]
    except comparison.WrongError as error:
        return "", "", f"infinities or NaN are where float32 has none, or the other way: {error}"
    if unknown := next(
        (one.unknown for one in seen if one.unknown), "" if seen else "no output is a float tensor"
    ):
        return "", unknown, ""
    same, rows = sum(one.same for one in seen), sum(one.rows for one in seen)
    words = max(seen, key=lambda one: one.share).words()
    return f"{words}, {same:,} of {plural(rows, 'row')} keep their largest element", "", ""


def _round_values(model: ir.Model, half: ir.DataType) -> None:
    """Let a model compute in float32 with every value of a half type rounded to it, in place."""
    values = [v for v in variables_in(graphs_in(model.graph)) if v.dtype == half]
    retype(model, _WIDE)
    for count, value in enumerate(values):
        graph, producer, users, last = value.graph, value.producer(), tuple(value.uses()), value
        nodes = []
        for to in (half, ir.DataType.FLOAT):
            out = ir.Value(name=f"rmsnorm_export.rounded.{count}.{to.name}")
            nodes.append(ir.node("Cast", [last], {"to": to}, outputs=[out]))
            last = out
        insert(graph, producer, *nodes)
        for user, index in users:
            user.replace_input_with(index, last)
