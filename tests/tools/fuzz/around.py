"""Mutations around a norm: casts, views, readers, declared shapes, and the scope it stands in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rmsnorm_export.runtime.metrics import is_float
from tests.tools.fuzz.change import BF16, F16, F32, F64, FLOATS, Outcome
from tests.tools.fuzz.draft import Draft, Place, mutation

_DOMAIN = "mutant"


@mutation
def cast_there_and_back(draft: Draft) -> Outcome:
    if (edge := draft.edge()) is None:
        return None
    place, position, name = edge
    dtype, other = draft.values[name][0], draft.rng.choice((*FLOATS, np.dtype(np.int32)))
    middle = draft.put(place, "Cast", name, to=helper.np_dtype_to_tensor_dtype(other))
    back = helper.np_dtype_to_tensor_dtype(dtype)
    place.node.input[position] = draft.put(place, "Cast", middle, to=back)
    lossless = other in (dtype, F64) or (other == F32 and dtype in (F16, BF16))
    return f"{name} through {other} in front of {place.node.op_type}", lossless


@mutation
def cast_elsewhere(draft: Draft) -> Outcome:
    """A cast to another type or none at all; or a node that computes in another type."""
    place = draft.pick("Add", "Mul", "Div", "Sqrt", "Reciprocal", "ReduceMean", "Cast")
    if place is None:
        return None
    output, op_type, kind = place.node.output[0], place.node.op_type, draft.rng.choice(FLOATS)
    if op_type == "Cast":
        if draft.rng.random() < 0.5:
            draft.replace(place, "Identity", place.node.input[0])
            return "Cast removed", False
        to = helper.np_dtype_to_tensor_dtype(kind)
        draft.replace(place, "Cast", place.node.input[0], to=to)
        return f"Cast to {kind}", False
    dtype = draft.dtype(output)
    if dtype is None or not is_float(dtype):
        return None
    for position, name in enumerate(list(place.node.input)):
        if (read := draft.dtype(name)) is not None and is_float(read):
            to = helper.np_dtype_to_tensor_dtype(kind)
            place.node.input[position] = draft.put(place, "Cast", name, to=to)
    place.node.output[0] = draft.fresh("wide")
    to = helper.np_dtype_to_tensor_dtype(dtype)
    back = helper.make_node("Cast", [place.node.output[0]], [output], to=to)
    place.nodes.insert(place.index + 1, back)
    return f"{op_type} in {kind}", kind == F64 and dtype == F32


_VIEWS = (
    "Identity", "Sum", "Max", "Neg", "Mul", "Add", "Sub", "Div", "Dropout", "Concat", "Expand",
    "Transpose", "Unsqueeze", "Reshape", "Reshape",
)  # fmt: skip


def _view(draft: Draft, place: Place, name: str, way: str) -> str | None:
    """``name`` through something that gives it back."""
    dtype, shape = draft.values[name]
    rank = len(shape or ())
    if way in ("Identity", "Sum", "Max", "Dropout"):
        return draft.put(place, way, name)
    if way == "Neg":
        return draft.put(place, "Neg", draft.put(place, "Neg", name))
    if way in ("Mul", "Add", "Sub", "Div"):
        neutral = np.asarray(1 if way in ("Mul", "Div") else 0).astype(dtype)
        return draft.put(place, way, name, neutral)
    if not shape:
        return None
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
    if (edge := draft.edge()) is None:
        return None
    place, _, name = edge
    way = draft.rng.choice(_VIEWS)
    if (new := _view(draft, place, name, way)) is None:
        return None
    draft.read_instead(place, name, new, by_all=draft.rng.random() < 0.5)
    return f"{way} on {name} in front of {place.node.op_type}", True


@mutation
def view_alone(draft: Draft) -> Outcome:
    """A view without its way back: the row is another one, or the shapes no longer fit."""
    if (edge := draft.edge()) is None or len(draft.shape(edge[2]) or ()) < 2:
        return None
    place, _, name = edge
    shape = draft.shape(name) or ()
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    if draft.rng.random() < 0.5:
        new = draft.put(place, "Transpose", name, perm=perm)
    else:
        new = draft.put(place, "Reshape", name, np.asarray([-1, *shape[1:]], np.int64))
    draft.read_instead(place, name, new, by_all=draft.rng.random() < 0.6)
    return f"a view of {name} in front of {place.node.op_type}", False


@mutation
def extra_reader(draft: Draft) -> Outcome:
    """A value in the middle of the chain is an output, too, or read by another node."""
    edge = draft.edge()
    if edge is None or not edge[0].main:
        return None
    place, _, name = edge
    known = {value.name for value in (*draft.model.graph.output, *draft.model.graph.input)}
    if draft.rng.random() < 0.5 and name not in known and name not in draft.constants:
        draft.add_output(name, name)
        return f"{name} is an output", True
    kind = draft.rng.choice(("Neg", "Abs", "Identity", "Sigmoid"))
    draft.add_output(draft.put(place, kind, name), name)
    return f"{name} is read elsewhere", True


def _reads(node: onnx.NodeProto) -> list[str]:
    """The names that a node and the subgraphs in it read from around it."""
    out = [name for name in node.input if name]
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graph = attribute.g
            inner = {name for n in graph.node for name in n.output}
            inner |= {v.name for v in (*graph.input, *graph.initializer)}
            read = [v.name for v in graph.output] + [v for n in graph.node for v in _reads(n)]
            out += [name for name in read if name not in inner]
    return out


class _Run:
    """A run of nodes of a scope: what it reads, and what is read of it."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.scope = draft.rng.choice([s for s in draft.scopes() if len(s.nodes) > 1])
        nodes = list(self.scope.nodes)
        start = draft.rng.randrange(len(nodes))
        self.scope.index, end = start, draft.rng.randint(start + 1, len(nodes))
        if draft.rng.random() < 0.4:
            self.scope.index, end = 0, len(nodes)
        self.nodes = nodes[self.scope.index : end]
        own = {name for node in self.nodes for name in node.output if name}
        self.reads = sorted({name for node in self.nodes for name in _reads(node)} - own)
        later = {name for node in nodes[end:] for name in _reads(node)}
        # Of a subgraph only the last node's outputs are known to be read.
        later |= {value.name for value in draft.model.graph.output} | set(nodes[-1].output)
        later |= set(self.scope.function.output) if self.scope.function else set()
        self.outputs = sorted(own & later & set(draft.values))

    def copied(self) -> tuple[list[onnx.NodeProto], dict[str, str]]:
        """The nodes with new names for all that they make."""
        names = {n: self.draft.fresh("inner") for node in self.nodes for n in node.output if n}
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self.nodes]
        for node in copies:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
        self.alias(names)
        return copies, names

    def alias(self, names: dict[str, str]) -> None:
        """The new names have the types and shapes of the old ones."""
        draft = self.draft
        for table in (draft.values, draft.constants):
            table.update({new: table[old] for old, new in names.items() if old in table})

    def infos(self, names: dict[str, str]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(
                names[name], helper.np_dtype_to_tensor_dtype(self.draft.values[name][0]), None
            )
            for name in self.outputs
        ]

    def become(self, nodes: Sequence[onnx.NodeProto]) -> None:
        start = self.scope.index
        del self.scope.nodes[start : start + len(self.nodes)]
        for offset, node in enumerate(nodes):
            self.scope.nodes.insert(start + offset, node)


def _run_of(draft: Draft) -> _Run | None:
    if not any(len(scope.nodes) > 1 for scope in draft.scopes()):
        return None
    run = _Run(draft)
    nested = any(a.HasField("g") for node in run.nodes for a in node.attribute)
    return run if run.outputs and not nested else None


def _constant(name: str, value: object) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value)))


@mutation
def into_if(draft: Draft) -> Outcome:
    """A run of nodes in both branches of an If."""
    if (run := _run_of(draft)) is None:
        return None
    graphs = []
    for branch in ("then", "else"):
        nodes, names = run.copied()
        graphs.append(helper.make_graph(nodes, branch, [], run.infos(names)))
    condition = draft.fresh("condition")
    made = [
        helper.make_node(
            "If", [condition], run.outputs, then_branch=graphs[0], else_branch=graphs[1]
        )
    ]
    if run.scope.function is None and draft.rng.random() < 0.5:
        info = helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, [])
        draft.model.graph.input.append(info)
        draft.signature.inputs[condition] = (np.dtype(np.bool_), ())
    else:
        made.insert(0, _constant(condition, draft.rng.random() < 0.5))
    run.become(made)
    return f"{len(run.nodes)} nodes in an If", True


@mutation
def into_function(draft: Draft) -> Outcome:
    """A run of nodes as a model-local function, stored constants inside or handed over."""
    if (run := _run_of(draft)) is None:
        return None
    nodes, names = run.copied()
    stored = {tensor.name: tensor for tensor in draft.model.graph.initializer}
    inside = [n for n in run.reads if n in stored and draft.rng.random() < 0.5]
    handed = [n for n in run.reads if n not in inside]
    parameters = {name: draft.fresh("parameter") for name in run.reads}
    run.alias(parameters)
    for node in nodes:
        node.input[:] = [parameters.get(name, name) for name in node.input]
    nodes = [
        *(_constant(parameters[n], numpy_helper.to_array(stored[n])) for n in inside), *nodes
    ]  # fmt: skip
    title, function = draft.fresh("function"), run.scope.function
    imports = function.opset_import if function else draft.model.opset_import
    own = [entry for entry in imports if entry.domain != _DOMAIN] + [
        helper.make_opsetid(_DOMAIN, 1)
    ]
    draft.model.functions.append(
        helper.make_function(
            _DOMAIN, title, [parameters[n] for n in handed], [names[n] for n in run.outputs],
            nodes, own,
        )
    )  # fmt: skip
    for owner in (draft.model, *([function] if function else [])):
        if _DOMAIN not in {entry.domain for entry in owner.opset_import}:
            owner.opset_import.append(own[-1])
    draft.model.ir_version = max(draft.model.ir_version, 8)
    run.become([helper.make_node(title, handed, run.outputs, domain=_DOMAIN)])
    return f"{len(run.nodes)} nodes in a function", True
