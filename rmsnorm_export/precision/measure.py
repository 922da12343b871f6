"""Runs in float32: the magnitudes of all values, the outputs, and how far those of another are."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import Error
from rmsnorm_export.graph.order import graphs_in, values_in, variables_in
from rmsnorm_export.graph.retype import Types, retype
from rmsnorm_export.graph.tensors import tensor_slots
from rmsnorm_export.health.ranges import Candidates, Marks
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import HALF_TYPES
from rmsnorm_export.printable import one_line, plural
from rmsnorm_export.proof.comparison import Defined, Prepare, folder_of, lent_content
from rmsnorm_export.runtime import inputs as made
from rmsnorm_export.runtime.metrics import compare_arrays, is_float
from rmsnorm_export.runtime.session import open_session, run_session
from rmsnorm_export.runtime.sizes import Dims, Inputs, Shapes

_RANDOM_RUNS = 2
_WIDE: Types = dict.fromkeys(HALF_TYPES, ir.DataType.FLOAT)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The inputs of the runs.

    Attributes:
        given: arrays or files, a run each; (): random ones.
        shapes, dims: of random ones.
        seed: of the first of these.
        prepare: makes them meaningful.
    """

    given: Sequence[Inputs] = ()
    shapes: Shapes | None = None
    dims: Dims | None = None
    seed: int = 0
    prepare: Prepare = lambda _: {}

    def candidates(self, model: ir.Model) -> Iterator[tuple[Candidates, str]]:
        """Yield for each run the inputs to try in turn, and their origin.

        Raises:
            InputError: those that are given do not fit.
            UsageError: the sizes do not.
        """
        declared, limits = made.graph_inputs(model), made.index_limits(model)
        sizes = {"shapes": self.shapes, "dims": self.dims}
        for inputs in self.given:
            yield made.input_candidates(declared, limits, inputs)
        for number in range(0 if self.given else _RANDOM_RUNS):
            seed = self.seed + number
            candidates, _ = made.input_candidates(declared, limits, None, seed, **sizes)
            yield candidates, f"random, seeds from {self.seed}"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run in float32.

    Attributes:
        feeds: the inputs.
        outputs: by name.
        defined: the parts of outputs that mean something.
    """

    feeds: Mapping[str, Array]
    outputs: Mapping[str, Array]
    defined: Defined


def run_in_float32(
    model: ir.Model, own: set[ir.Value], samples: Samples
) -> tuple[dict[ir.Value, float], list[Run], str]:
    """Run a copy of a model in float32.

    Args:
        model: left as it is.
        own: values whose magnitudes are asked for.
        samples: the inputs.

    Returns:
        The largest finite magnitudes, the runs, and the origin of the inputs.

    Raises:
        Error: it is not run.
    """
    sources = list(samples.candidates(model))
    copy = model.clone()
    both = ([v for g in graphs_in(one.graph) for v in values_in(g)] for one in (copy, model))
    ours = {mine: theirs for mine, theirs in zip(*both, strict=True) if theirs in own}
    retype(copy, _WIDE)
    marks = Marks({*ours}, set(), odd=0.0).add(copy.graph)
    names = [value.name or "" for value in copy.graph.outputs]
    copy.graph.outputs.extend(marks.values())
    copy.graph.sort()
    session = _open(copy)
    declared, sizes, runs = made.graph_inputs(copy), dict.fromkeys(ours.values(), 0.0), []
    for candidates, _ in sources:

        def attempt(feeds: dict[str, Array]) -> tuple[Defined, dict[str, Array]]:
            defined = {} if samples.given else samples.prepare(feeds)
            return defined, run_session(session, made.in_types_of(declared, feeds))

        feeds, (defined, seen) = made.first_run(candidates(), attempt)
        for value, mark in marks.items():
            size = float(seen[mark.name or ""])
            sizes[ours[value]] = max(sizes[ours[value]], size)
        runs.append(Run(feeds, {name: seen[name] for name in names}, defined))
    return sizes, runs, ", ".join(dict.fromkeys(origin for _, origin in sources))


def _open(model: ir.Model) -> Any:
    """Return a session that needs as little memory as can be."""
    folders = {folder_of(slot.tensor) for slot in tensor_slots(model)} - {None, ""}
    folder = folders.pop() if len(folders) == 1 else None
    content, weights = lent_content(model, folder)
    return open_session(content, weights=weights, external_folder=folder, frugal=True)


def stored_sizes(values: Sequence[ir.Value]) -> dict[ir.Value, float]:
    """Return the largest finite magnitudes of stored tensors."""
    sizes = {}
    for value in values:
        assert value.const_value is not None
        array = value.const_value.numpy().reshape(-1)
        ends = np.array([array.max(initial=0.0), -array.min(initial=0.0)], np.float64)
        if not np.isfinite(ends).all():
            ends = np.abs(array[np.isfinite(array)]).astype(np.float64)
        sizes[value] = float(ends.max(initial=0.0))
        del array
        release(value.const_value)
    return sizes


def release(tensor: ir.TensorProtocol) -> None:
    """Give the memory of an external tensor back, which is mapped again when it is needed."""
    if isinstance(tensor, ir.ExternalTensor):
        with contextlib.suppress(BufferError):  # others look at it
            tensor.release()


def compare(model: ir.Model, half: ir.DataType, runs: Sequence[Run]) -> tuple[str, str]:
    """Return in words how far a model is from earlier runs, and why it was not compared, or "".

    Every value of the half type is rounded to it, and computed in float32: on a CPU ONNX Runtime
    has few kernels of half types, and computes chains of nodes without rounding between them.
    """
    copy = model.clone()
    _round_values(copy, half)
    declared, shares, cosine, same, rows, odd = made.graph_inputs(copy), [0.0], 1.0, 0, 0, set()
    try:
        session = _open(copy)
        for run in runs:
            outputs = run_session(session, made.in_types_of(declared, run.feeds))
            for position, (name, array) in enumerate(run.outputs.items()):
                part = run.defined.get(name, ())
                before, after = array[part], outputs[name][part]
                if not is_float(before.dtype):
                    continue
                metrics = compare_arrays(after, before)
                finite = np.abs(before[np.isfinite(before)].astype(np.float64)).max(initial=0.0)
                shares.append(metrics.max_abs / (float(finite) or 1.0))
                cosine = min(cosine, metrics.cosine)
                odd |= set() if metrics.nan_inf_agree else {name}
                if position == 0 and before.ndim:
                    agree = before.argmax(-1) == after.argmax(-1)
                    same, rows = same + int(agree.sum()), rows + agree.size
    except Error as error:
        return "", one_line(error.found, 300)
    if len(shares) == 1:
        return "", "no output is a float tensor"
    if odd:
        return f"not finite where float32 is: {', '.join(sorted(odd))}", ""
    words = f"outputs differ from float32 by at most {max(shares):.2g} of the largest element"
    words += f", cosine {cosine:.6f}"
    return words + (f", {same:,} of {plural(rows, 'row')} keep their largest" if rows else ""), ""


def _round_values(model: ir.Model, half: ir.DataType) -> None:
    """Let a model compute in float32 with every value of a half type rounded to it, in place."""
    values = [v for v in variables_in(graphs_in(model.graph)) if v.dtype == half]
    retype(model, _WIDE)
    for count, value in enumerate(values):
        graph, producer, users = value.graph, value.producer(), tuple(value.uses())
        assert graph is not None
        last, nodes = value, []
        for to in (half, ir.DataType.FLOAT):
            out = ir.Value(name=f"rmsnorm_export.rounded.{count}.{to.name}")
            nodes.append(ir.node("Cast", [last], {"to": to}, outputs=[out]))
            last = out
        if producer is not None:
            graph.insert_after(producer, nodes)
        elif len(graph):
            graph.insert_before(graph[0], nodes)
        for user, index in users:
            user.replace_input_with(index, last)
