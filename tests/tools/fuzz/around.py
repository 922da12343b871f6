"""Mutations around a norm: casts, views, readers, declared shapes, and the scope it stands in."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rmsnorm_export.runtime.metrics import is_float
from tests.tools.fuzz.change import BF16, F16, F32, F64, FLOATS
from tests.tools.fuzz.draft import Draft, Outcome, Place, mutation

_DOMAIN = "mutant"


@mutation
def cast_there_and_back(draft: Draft) -> Outcome:
    place, position, name = draft.edge()
    dtype, other = draft.values[name][0], draft.rng.choice((*FLOATS, np.dtype(np.int32)))
    place.node.input[position] = draft.cast(place, draft.cast(place, name, other), dtype)
    lossless = other in (dtype, F64) or (other == F32 and dtype in (F16, BF16))
    return f"{name} through {other} in front of {place.node.op_type}", lossless


@mutation
def cast_elsewhere(draft: Draft) -> Outcome:
    """A node that computes in another type."""
    place = draft.pick("Add", "Mul", "Div", "Sqrt", "Reciprocal", "ReduceMean")
    output, kind = place.node.output[0], draft.rng.choice(FLOATS)
    dtype = draft.dtype(output)
    if dtype is None or not is_float(dtype):
        return None
    for position, name in enumerate(list(place.node.input)):
        if (read := draft.dtype(name)) is not None and is_float(read):
            place.node.input[position] = draft.cast(place, name, kind)
    place.node.output[0] = draft.fresh("wide")
    to = helper.np_dtype_to_tensor_dtype(dtype)
    back = helper.make_node("Cast", [place.node.output[0]], [output], to=to)
    place.nodes.insert(place.index + 1, back)
    return f"{place.node.op_type} in {kind}", kind == F64 and dtype == F32


_NEUTRAL = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0}
_VIEWS = (
    "Identity", "Sum", "Max", "Neg", *_NEUTRAL, "Dropout", "Concat", "Expand", "Transpose",
    "Unsqueeze", "Reshape", "Reshape",
)  # fmt: skip


def _view(draft: Draft, place: Place, name: str, way: str) -> str:
    """Return ``name`` through something that gives it back."""
    dtype, shape = draft.values[name]
    if way in _NEUTRAL:
        return draft.put(place, way, name, np.asarray(_NEUTRAL[way]).astype(dtype))
    if way == "Neg":
        return draft.put(place, "Neg", draft.put(place, "Neg", name))
    if way in ("Identity", "Sum", "Max", "Dropout"):
        return draft.put(place, way, name)
    if not shape:
        raise ValueError(shape)
    rank = len(shape)
    if way == "Concat":
        return draft.put(place, "Concat", name, axis=-1)
    if way == "Expand":
        return draft.put(place, "Expand", name, np.ones(rank, np.int64))
    if way == "Transpose":
        perm = draft.rng.sample(range(rank), rank)
        back = [perm.index(axis) for axis in range(rank)]
        return draft.put(place, way, draft.put(place, way, name, perm=perm), perm=back)
    if way == "Unsqueeze":
        axis = draft.rng.randint(0, rank)
        return draft.over(place, "Squeeze", draft.over(place, "Unsqueeze", name, [axis]), [axis])
    forms = [[-1], [-1, shape[-1]], [*[0] * rank, 1], [*[0] * (rank - 1), -1]]
    if shape[-1] % 2 == 0:
        forms.append([*[0] * (rank - 1), -1, shape[-1] // 2])
    middle = draft.put(place, "Reshape", name, np.asarray(draft.rng.choice(forms), np.int64))
    return draft.put(place, "Reshape", middle, draft.put(place, "Shape", name))


@mutation
def view_there_and_back(draft: Draft) -> Outcome:
    """On one edge, or on all that read the value behind it."""
    place, _, name = draft.edge()
    way = draft.rng.choice(_VIEWS)
    draft.read_instead(place, name, _view(draft, place, name, way), draft.rng.random() < 0.5)
    return f"{way} on {name} in front of {place.node.op_type}", True


@mutation
def view_alone(draft: Draft) -> Outcome:
    """A view without its way back: the row is another one, or the shapes no longer fit."""
    place, _, name = draft.edge()
    shape = draft.shape(name)
    if len(shape) < 2:
        return None
    if draft.rng.random() < 0.5:
        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        new = draft.put(place, "Transpose", name, perm=perm)
    else:
        new = draft.put(place, "Reshape", name, np.asarray([-1, *shape[1:]], np.int64))
    draft.read_instead(place, name, new, draft.rng.random() < 0.6)
    return f"a view of {name} in front of {place.node.op_type}", False


@mutation
def extra_reader(draft: Draft) -> Outcome:
    """A value in the middle of the chain is an output, too, or read by another node."""
    place, _, name = draft.edge()
    if not place.main:
        return None
    ends = {value.name for value in (*draft.model.graph.output, *draft.model.graph.input)}
    if draft.rng.random() < 0.5 and name not in ends and name not in draft.constants:
        draft.add_output(name, name)
        return f"{name} is an output", True
    kind = draft.rng.choice(("Neg", "Abs", "Identity", "Sigmoid"))
    draft.add_output(draft.put(place, kind, name), name)
    return f"{name} is read elsewhere", True


class _Run:
    """A run of nodes of a scope without subgraphs: what it reads, and what is read of it.

    Raises:
        IndexError: there is no scope of several nodes.
        ValueError: the scope has subgraphs, or nobody reads the run.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.scope = draft.rng.choice([s for s in draft.scopes() if len(s.nodes) > 1])
        nodes = list(self.scope.nodes)
        self.start = draft.rng.randrange(len(nodes))
        self.end = draft.rng.randint(self.start + 1, len(nodes))
        if draft.rng.random() < 0.4:
            self.start, self.end = 0, len(nodes)
        run, behind = nodes[self.start : self.end], nodes[self.end :]
        own = {name for node in run for name in node.output if name}
        self.reads = sorted({name for node in run for name in node.input if name} - own)
        # Of a subgraph only the last node's outputs are known to be read.
        later = {name for node in behind for name in node.input} | set(nodes[-1].output)
        later |= {value.name for value in draft.model.graph.output}
        later |= set(self.scope.function.output) if self.scope.function else set()
        self.outputs = sorted(own & later & set(draft.values))
        self.words = f"{len(run)} nodes in"
        if not self.outputs or any(a.HasField("g") for node in nodes for a in node.attribute):
            raise ValueError(self.words)

    def copied(self) -> tuple[list[onnx.NodeProto], dict[str, str]]:
        """Return the nodes with new names for all that they make, and those names by the old."""
        nodes = self.scope.nodes[self.start : self.end]
        names = {n: self.draft.fresh("inner") for node in nodes for n in node.output if n}
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        for node in copies:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
        self.alias(names)
        return copies, names

    def alias(self, names: dict[str, str]) -> None:
        """Give new names the types and shapes of the old ones."""
        for table in (self.draft.values, self.draft.constants):
            table.update({new: table[old] for old, new in names.items() if old in table})

    def become(self, *nodes: onnx.NodeProto) -> None:
        """Put these nodes in the place of the run."""
        behind = list(self.scope.nodes)[self.end :]
        del self.scope.nodes[self.start :]
        self.scope.nodes.extend([*nodes, *behind])


def _constant(name: str, value: object) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value)))


@mutation
def into_if(draft: Draft) -> Outcome:
    """A run of nodes in both branches of an If."""
    run, graphs = _Run(draft), {}
    for branch in ("then_branch", "else_branch"):
        nodes, names = run.copied()
        kinds = [(n, helper.np_dtype_to_tensor_dtype(draft.values[n][0])) for n in run.outputs]
        infos = [helper.make_tensor_value_info(names[n], kind, None) for n, kind in kinds]
        graphs[branch] = helper.make_graph(nodes, branch, [], infos)
    if run.scope.function is None and draft.rng.random() < 0.5:
        condition, constants = draft.add_input(np.array(True), "condition"), []
    else:
        condition = draft.fresh("condition")
        constants = [_constant(condition, draft.rng.random() < 0.5)]
    run.become(*constants, helper.make_node("If", [condition], run.outputs, **graphs))
    return f"{run.words} an If", True


@mutation
def into_function(draft: Draft) -> Outcome:
    """A run of nodes as a model-local function, stored constants inside or handed over."""
    run = _Run(draft)
    nodes, names = run.copied()
    stored = {tensor.name: tensor for tensor in draft.model.graph.initializer}
    inside = [n for n in run.reads if n in stored and draft.rng.random() < 0.5]
    handed = [n for n in run.reads if n not in inside]
    parameters = {name: draft.fresh("parameter") for name in run.reads}
    run.alias(parameters)
    for node in nodes:
        node.input[:] = [parameters.get(name, name) for name in node.input]
    constants = [_constant(parameters[n], numpy_helper.to_array(stored[n])) for n in inside]
    title, own = draft.fresh("function"), helper.make_opsetid(_DOMAIN, 1)
    owners = [draft.model, *([run.scope.function] if run.scope.function else [])]
    imports = [entry for entry in owners[-1].opset_import if entry.domain != _DOMAIN]
    function = helper.make_function(
        _DOMAIN, title, [parameters[n] for n in handed], [names[n] for n in run.outputs],
        [*constants, *nodes], [*imports, own],
    )  # fmt: skip
    for owner in owners:
        if _DOMAIN not in {entry.domain for entry in owner.opset_import}:
            owner.opset_import.append(own)
    draft.model.functions.append(function)
    draft.model.ir_version = max(draft.model.ir_version, 8)
    run.become(helper.make_node(title, handed, run.outputs, domain=_DOMAIN))
    return f"{run.words} a function", True
