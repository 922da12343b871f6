"""Runs in float32: the magnitudes of all values, the outputs, and how far those of another are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError, NotRunError, VerificationError
from rmsnorm_export.graph.order import graphs_in, variables_in
from rmsnorm_export.graph.tensors import release
from rmsnorm_export.health.ranges import Rounding, marked
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.precision.convert import Rounded
from rmsnorm_export.printable import plural
from rmsnorm_export.proof.comparison import Prepare, Reference, WrongError, compare_with, opened
from rmsnorm_export.recognize.consts import MOVES, producer_of
from rmsnorm_export.runtime.inputs import Sample, first_run, graph_inputs, in_types_of
from rmsnorm_export.runtime.metrics import is_float
from rmsnorm_export.runtime.session import run_session


def run_in_float32(
    model: ir.Model, own: set[ir.Value], samples: Iterable[Sample], prepare: Prepare
) -> tuple[dict[ir.Value, float], list[Reference]]:
    """Return the largest finite magnitudes of values in runs of a model, and the outputs.

    What only moves elements is not measured: to do so takes memory, of a weight that a model
    transposes some of the largest.

    Args:
        model: left as it is.
        own: values whose magnitudes are asked for.
        samples: the inputs.
        prepare: makes random ones meaningful.

    Raises:
        Error: it is not run.
    """
    sources = {value: _moved_from(value) for value in own}
    wanted = {source for source in sources.values() if not source.is_initializer()}
    names = [value.name or "" for value in model.graph.outputs]
    copy, marks = marked(model, wanted, Rounding(), finite=True)
    declared, sizes, references = graph_inputs(copy), dict.fromkeys(wanted, 0.0), []
    with opened(copy) as session:
        for candidates, origin in samples:

            def run(feeds: dict[str, Array], prepared: bool = "random" in origin) -> Reference:
                defined = prepare(feeds) if prepared else {}
                wide = in_types_of(declared, feeds)
                return Reference(wide, run_session(session, wide), defined)

            try:
                _, seen = first_run(candidates(), run)
            except NotRunError:
                raise
            except VerificationError as error:
                if "random" not in origin:
                    raise
                what = "Random inputs do not fit the model, so that its magnitudes are not known."
                fix = f"give what it is made for with --inputs FILE.npz: {', '.join(declared)}"
                raise InputError(what, found=error.found, fix=fix) from error
            for value, mark in marks.items():
                sizes[value] = max(sizes[value], float(seen.outputs[mark]))
            floats = {n: seen.outputs[n] for n in names if is_float(seen.outputs[n].dtype)}
            references.append(Reference(seen.feeds, floats, seen.defined))
    sizes |= _stored_sizes({*sources.values()} - wanted)
    return {value: sizes[source] for value, source in sources.items()}, references


def _moved_from(value: ir.Value) -> ir.Value:
    """Return the value whose elements a value has, in this or another order or shape."""
    node = producer_of(value, "Identity", *MOVES)
    source = None if node is None else node.inputs[0]
    return value if source is None else _moved_from(source)


def _stored_sizes(values: Iterable[ir.Value]) -> dict[ir.Value, float]:
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
    _round_weights_late(copy)
    halves = (v for v in variables_in(graphs_in(copy.graph)) if v.dtype == half)
    values = {value: half for value in halves if _moved_from(value) is value}
    copy, _ = marked(copy, (), Rounding(values))
    try:
        compared = (one for one in references if one.outputs)
        seen = [compare_with(one, copy, rtol=np.inf) for one in compared]
    except WrongError as error:
        return "", "", f"infinities or NaN are where float32 has none, or the other way: {error}"
    unknown = next((one.unknown for one in seen if one.unknown), "")
    if unknown or not seen:
        return "", unknown or "no output is a float tensor", ""
    same, rows = sum(one.same for one in seen), sum(one.rows for one in seen)
    words = max(seen, key=lambda one: one.share).words()
    return f"{words}, {same:,} of {plural(rows, 'row')} keep their largest element", "", ""


def _round_weights_late(model: ir.Model) -> None:
    """Let a Cast before each reader round a weight, so that no two are in memory, in place."""
    for value in (v for g in graphs_in(model.graph) for v in g.initializers.values()):
        if not isinstance(value.const_value, Rounded):
            continue
        half, value.const_value = value.const_value.dtype, value.const_value.source
        value.type = ir.TensorType(value.const_value.dtype)
        for count, (user, index) in enumerate(tuple(value.uses())):
            name, dtype = f"rmsnorm_export.{value.name}.{count}", ir.TensorType(half)
            out = ir.Value(name=name, type=dtype, shape=value.shape)
            cast = ir.node("Cast", [value], {"to": half}, outputs=[out])
            assert user.graph is not None
            user.graph.insert_before(user, cast)
            user.replace_input_with(index, out)
