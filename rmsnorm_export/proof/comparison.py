"""A model before and after a pass, compared on the same random inputs."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rmsnorm_export.errors import Error
from rmsnorm_export.graph.contract import Contract
from rmsnorm_export.graph.external import placed, store
from rmsnorm_export.graph.functions import complete_calls
from rmsnorm_export.graph.load import serialize
from rmsnorm_export.graph.order import all_graphs, values_in
from rmsnorm_export.graph.pieces import MappedTensor
from rmsnorm_export.graph.tensors import (
    LARGE_BYTES,
    MAX_PROTO_BYTES,
    TensorSlot,
    lent_slots,
    tensor_slots,
)
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.native import MICROSOFT_DOMAIN
from rmsnorm_export.printable import one_line, plural
from rmsnorm_export.runtime import inputs
from rmsnorm_export.runtime.metrics import DEFAULT_RTOL, compare_arrays, is_float, without_evidence
from rmsnorm_export.runtime.session import (
    Device,
    executed_graph,
    is_norm,
    open_session,
    run_session,
)
from rmsnorm_export.runtime.sizes import Dims
from rmsnorm_export.system.files import StrPath, refusals_as

Defined = Mapping[str, tuple[slice, ...]]
"""The part of an output that is defined, by name; of others all is."""
Prepare = Callable[[dict[str, Array]], Defined]
"""Changes random inputs, in place, to such as a model is made for."""


_ZEROS, _WEIGHTS = "zeros", "weights"
"""Files: one without blocks, and one of weights that were in memory."""
_FEW_BYTES = 1 << 26
"""Of large weights that a message may hold beside others in a file."""
_PIECE = 1 << 18
"""Elements that are compared at a time: in float64, and by their bits, they take much memory."""


class WrongError(Exception):
    """A fault of a graph after a pass."""


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of the outputs of two models.

    Attributes:
        outputs: how many were compared.
        share: the largest difference of an element, as a share of the largest of its output.
        worst: the name of that output.
        same: rows of the first output whose largest element is the same one.
        rows: how many there are.
        unknown: why nothing was compared, or "".
        after_fails: it is the second model that does not run.
    """

    outputs: int = 0
    share: float = 0.0
    worst: str = ""
    same: int = 0
    rows: int = 0
    unknown: str = ""
    after_fails: bool = False

    def words(self) -> str:
        """Half a sentence, or "" where nothing was compared."""
        outputs, verb = plural(self.outputs, "output"), "differs" if self.outputs == 1 else "differ"
        words = f"{outputs} {verb} by at most {self.share:.2g} of the largest element"
        return words if self.outputs else ""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The outputs of a model for random inputs.

    Attributes:
        feeds: the inputs, by name.
        outputs: by name.
        defined: the parts of outputs that are compared.
        problem: why there are none, or "".
    """

    feeds: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    outputs: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    defined: Defined = dataclasses.field(default_factory=dict)
    problem: str = ""


def run_reference(
    model: ir.Model,
    *,
    seed: int,
    dims: Dims | None = None,
    given: Mapping[str, Array] = MappingProxyType({}),
    prepare: Prepare = lambda _: {},
) -> Reference:
    """Run a model on random inputs.

    Args:
        model: left as it is.
        seed: of the inputs.
        dims: sizes of dimensions by their names; None: those that inputs are tried with.
        given: inputs that are not random, of which the sizes of the others follow.
        prepare: turns random inputs into meaningful ones.
    """
    declared, limits = inputs.graph_inputs(model), inputs.index_limits(model)
    usual = {name: array.shape for name, array in given.items()}
    candidates, _ = inputs.input_candidates(declared, limits, None, seed, dims=dims, usual=usual)
    try:
        with opened(model) as session:
            feeds, (defined, outputs) = inputs.first_run(
                ({**feeds, **given} for feeds in candidates()),
                lambda fed: (prepare(fed), run_session(session, fed)),
            )
    except Error as error:
        return Reference(problem=f"the graph before does not run: {one_line(error.found, 300)}")
    computed = {value.name for value in model.graph.outputs if value.producer() is not None}
    outputs = {name: array for name, array in outputs.items() if name in computed}
    if not outputs:
        return Reference(problem="the graph computes no output")
    unlike = without_evidence(outputs)
    problem = "; ".join(f"{name}: {why}" for name, why in unlike.items())
    return Reference(feeds, outputs, defined, problem)


def compare_with(
    reference: Reference, model: ir.Model, *, device: Device = "cpu", rtol: float | None = None
) -> Comparison:
    """Return how far the outputs of a model are from those of another one before a pass.

    Args:
        reference: of the model before.
        model: of the same inputs and outputs.
        device: for the model.
        rtol: the largest share that is allowed; None: that of ``verify`` for the type.

    Raises:
        WrongError: an output is further off than is allowed.
    """
    if reference.problem:
        return Comparison(unknown=reference.problem)
    expected = reference.outputs
    try:
        with opened(model, device) as session:
            computed = run_session(session, reference.feeds)
    except Error as error:
        return Comparison(unknown=one_line(error.found, 300), after_fails=True)
    shares = {
        name: _share_off(name, computed[name][part], expected[name][part], rtol)
        for name in expected
        for part in [reference.defined.get(name, ())]
    }
    first, worst = next(iter(expected)), max(shares, key=shares.__getitem__)
    one, other = (arrays[first].argmax(-1) for arrays in (expected, computed))
    same = int((one == other).sum())
    return Comparison(len(expected), shares[worst], worst, same, one.size)


@contextlib.contextmanager
def opened(model: ir.Model, device: Device = "cpu") -> Iterator[Any]:
    """Provide a session of a model, which maps its large weights from a file.

    ONNX Runtime copies weights that it is given in memory, so these are written to a file first.

    Raises:
        InputError: there is no room for that file.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as spare:
        fix = "let TMPDIR be a folder with room for the weights"
        with refusals_as("Weights cannot be written for ONNX Runtime.", Path(spare), fix=fix):
            content, folder = mapped(model, spare)
        yield open_session(content, device=device, external_folder=folder, frugal=True)


def mapped(model: ir.Model, spare: str) -> tuple[bytes, str]:
    """Return a model for a session, and the folder of the file that its large weights are in.

    Args:
        model: left as it is.
        spare: a folder for the file, where large weights are in none, or in several.
    """
    with lent_slots(model) as slots:
        large = [slot for slot in slots if slot.nbytes >= LARGE_BYTES and _is_weight(slot, model)]
        sizes = Counter({spare: 0})
        for slot in large:
            sizes[folder_of(slot.tensor) or spare] += slot.nbytes
        folder = max(sizes, key=sizes.__getitem__)
        others = [slot for slot in large if folder_of(slot.tensor) != folder]
        if folder != spare and sum(slot.nbytes for slot in others) > _FEW_BYTES:
            folder, others = spare, large
        for slot in slots:
            if folder_of(slot.tensor) == folder:
                slot.put(_external(slot.tensor) or slot.tensor)
            elif slot.is_external:
                slot.put(ir.Tensor(slot.tensor.numpy(), slot.tensor.dtype, name=slot.tensor.name))
        if folder == spare:
            places = store(others, Path(spare, _WEIGHTS), {})
            for slot, place in zip(others, places, strict=True):
                slot.put(placed(slot.tensor, _WEIGHTS, spare, place))
        return serialize(model), folder


def folder_of(tensor: ir.TensorProtocol) -> str | None:
    """Return the folder of a tensor that is in a file; None of others."""
    external = _external(tensor)
    return None if external is None else os.fspath(external.base_dir)


def _external(tensor: ir.TensorProtocol) -> ir.ExternalTensor | None:
    if isinstance(tensor, MappedTensor):
        return tensor.external()
    return tensor if isinstance(tensor, ir.ExternalTensor) else None


def executed(model: ir.Model, kernels: StrPath | None = None) -> tuple[int, int] | None:
    """Return how many nodes, and how many norms as one kernel, a session of a model executes.

    After its default optimization, on the CPU. It folds constants, but decides nothing by the
    numbers of large weights, so that zeros stand for them, which need no memory. None where they
    are too large even so.

    Raises:
        Error: as of ``open_session``.
    """
    if sum(slot.nbytes for slot in tensor_slots(model)) >= MAX_PROTO_BYTES:
        return None
    with lent_slots(model) as slots, tempfile.TemporaryDirectory() as folder:
        # By integers something may be divided.
        floats = (slot for slot in slots if slot.tensor.dtype.is_floating_point())
        large = [s for s in floats if s.nbytes >= 1 << 20 and _is_weight(s, model)]
        with open(os.path.join(folder, _ZEROS), "wb") as file:
            file.truncate(max((slot.nbytes for slot in large), default=0))
        for slot in large:
            slot.put(placed(slot.tensor, _ZEROS, folder, None))
        content, place = mapped(model, folder)
        size = len(content) + sum(slot.nbytes for slot in slots)
        how = {"size": size, "kernels": kernels, "external_folder": place}
        nodes = [*_nodes_in(executed_graph(_transposed(content), **how))]
    return len(nodes), sum(map(is_norm, nodes))


def _nodes_in(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph that ONNX Runtime wrote, and of its bodies.

    onnx_ir does not read all of these: a name may stand twice in a body.
    """
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes_in(attribute.g)


def _transposed(content: bytes) -> bytes:
    """Return a model without the Transposes of zeros, which a session would fold into copies."""
    model = onnx.ModelProto.FromString(content)
    graph, kept = model.graph, []
    zeros = {
        one.name: one
        for one in graph.initializer
        if any(entry.value == _ZEROS for entry in one.external_data)
    }
    kept_names = {value.name for value in graph.output}
    for node in graph.node:
        whole = zeros.get(node.input[0]) if node.op_type == "Transpose" and node.input else None
        if whole is None or node.output[0] in kept_names:
            kept.append(node)
            continue
        axes = next((one.ints for one in node.attribute), range(len(whole.dims))[::-1])
        new = onnx.TensorProto()
        new.CopyFrom(whole)
        new.name, new.dims[:] = node.output[0], [whole.dims[axis] for axis in axes]
        graph.initializer.append(new)
    del graph.node[:]
    graph.node.extend(kept)
    return model.SerializeToString()


def _is_weight(slot: TensorSlot, model: ir.Model) -> bool:
    """Return whether ONNX Runtime takes a tensor from elsewhere: of the main graph, and used."""
    initializer = model.graph.initializers.get(slot.name)
    if initializer is None or initializer.const_value is not slot.tensor or not initializer.uses():
        return False
    return inputs.type_name_of(slot.tensor.dtype) in inputs.FED


def changed_by_others(model: ir.Model, change: Callable[[ir.Model], ir.Model]) -> ir.Model:
    """Return the result of another package's pass on a copy of a model, its contract kept.

    The copy has types of its own: a step that sets one would change both. Operators of ONNX Runtime
    that the file has bodies of, for other runtimes, stay operators.

    Raises:
        Error: an input or output is lost.
    """
    contract, model = Contract(model), model.clone()
    for graph in all_graphs(model):
        for value in values_in(graph):
            value.type = copy.copy(value.type)
    native = {key: one for key, one in model.functions.items() if key[0] == MICROSOFT_DOMAIN}
    for key in native:
        del model.functions[key]
    complete_calls(model, model.functions)
    changed = contract.restore(change(contract.set_aside(model)))
    changed.functions.update(native)
    return changed


def _share_off(name: str, after: Array, before: Array, rtol: float | None) -> float:
    """Return how far an output is off, as a share of its largest finite element.

    Raises:
        WrongError: further than is allowed.
    """
    ends, shapes = [], {after.shape, before.shape}
    count = after.size // _PIECE + 1 if len(shapes) == 1 else 1
    both = (
        np.array_split(one.reshape(-1), count) if count > 1 else [one] for one in (after, before)
    )
    for new, old in zip(*both, strict=True):
        finite = np.abs(old[np.isfinite(old)])
        ends.append((compare_arrays(new, old), float(finite.max(initial=0.0))))
    share = max(metrics.max_abs for metrics, _ in ends) / (max(end for _, end in ends) or 1.0)
    allowed = (rtol or DEFAULT_RTOL[ends[0][0].dtype]) if is_float(before.dtype) else 0.0
    if not all(metrics.nan_inf_agree for metrics, _ in ends) or share > allowed:
        raise WrongError(too_far(name, share, allowed))
    return share


def too_far(name: str, share: float, allowed: float) -> str:
    """Say of an output how far it is off, and what is allowed."""
    return f"{name} is off by {share:.2g} of its largest element, {allowed:g} allowed"
