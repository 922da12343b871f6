"""Mutations around a norm: casts, views, readers, declared shapes, and the scope it stands in."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import helper

from rmsnorm_export.runtime.metrics import is_float
from tests.tools.fuzz.change import BF16, F16, F32, F64, FLOATS
from tests.tools.fuzz.draft import Draft, array_of, become, dtype_of, mutation, shape_of

_DOMAIN = "mutant"


@mutation
def cast_there_and_back(draft: Draft) -> tuple[str, bool]:
    node, position, value = draft.edge()
    dtype, other = dtype_of(value), draft.rng.choice((*FLOATS, np.dtype(np.int32)))
    back = draft.cast(node, draft.cast(node, value, other), dtype)
    node.replace_input_with(position, back)
    lossless = other in (dtype, F64) or (other == F32 and dtype in (F16, BF16))
    return f"{value.name} through {other} in front of {node.op_type}", lossless


@mutation
def cast_elsewhere(draft: Draft) -> tuple[str, bool]:
    """A node that computes in another type."""
    node = draft.pick("Add", "Mul", "Div", "Sqrt", "Reciprocal", "ReduceMean")
    output, kind = node.outputs[0], draft.rng.choice(FLOATS)
    dtype = dtype_of(output)
    if not is_float(dtype):
        raise ValueError(node)
    inputs = [draft.cast(node, v, kind) if is_float(dtype_of(v)) else v for v in node.inputs if v]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    old, wide = node.op_type, draft.put(node, node.op_type, *inputs, **attributes)
    become(node, "Cast", wide, to=helper.np_dtype_to_tensor_dtype(dtype))
    return f"{old} in {kind}", kind == F64 and dtype == F32


_NEUTRAL = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0}
_VIEWS = (
    "Identity", "Sum", "Max", "Neg", *_NEUTRAL, "Dropout", "Concat", "Expand", "Transpose",
    "Unsqueeze", "Reshape", "Reshape",
)  # fmt: skip


def _view(draft: Draft, node: ir.Node, value: ir.Value, way: str) -> ir.Value:
    """Return a value through something that gives it back."""
    shape, rank = shape_of(value), len(shape_of(value))
    if way in _NEUTRAL:
        return draft.put(node, way, value, np.asarray(_NEUTRAL[way]).astype(dtype_of(value)))
    if way == "Neg":
        return draft.put(node, "Neg", draft.put(node, "Neg", value))
    if way in ("Identity", "Sum", "Max", "Dropout"):
        return draft.put(node, way, value)
    if not shape:
        raise ValueError(value)
    if way == "Concat":
        return draft.put(node, "Concat", value, axis=-1)
    if way == "Expand":
        return draft.put(node, "Expand", value, np.ones(rank, np.int64))
    if way == "Transpose":
        perm = draft.rng.sample(range(rank), rank)
        back = [perm.index(axis) for axis in range(rank)]
        return draft.put(node, way, draft.put(node, way, value, perm=perm), perm=back)
    if way == "Unsqueeze":
        axis = draft.rng.randint(0, rank)
        return draft.over(node, "Squeeze", draft.over(node, "Unsqueeze", value, [axis]), [axis])
    forms = [[-1], [-1, shape[-1]], [*[0] * rank, 1], [*[0] * (rank - 1), -1]]
    if shape[-1] % 2 == 0:
        forms.append([*[0] * (rank - 1), -1, shape[-1] // 2])
    middle = draft.put(node, "Reshape", value, np.asarray(draft.rng.choice(forms), np.int64))
    return draft.put(node, "Reshape", middle, draft.put(node, "Shape", value))


def _read_instead(node: ir.Node, old: ir.Value, new: ir.Value, by_all: bool) -> None:
    """Let a node, or it and all behind it, read ``new``."""
    assert node.graph is not None
    nodes = list(node.graph)
    start = nodes.index(node)
    for reader in nodes[start:] if by_all else [node]:
        for position, value in enumerate(reader.inputs):
            if value is old:
                reader.replace_input_with(position, new)


@mutation
def view_there_and_back(draft: Draft) -> tuple[str, bool]:
    """On one edge, or on all that read the value behind it."""
    node, _, value = draft.edge()
    way = draft.rng.choice(_VIEWS)
    _read_instead(node, value, _view(draft, node, value, way), draft.rng.random() < 0.5)
    return f"{way} on {value.name} in front of {node.op_type}", True


@mutation
def view_alone(draft: Draft) -> tuple[str, bool]:
    """A view without its way back: the row is another one, or the shapes no longer fit."""
    node, _, value = draft.edge()
    *lead, second, last = range(len(shape_of(value)))
    if draft.rng.random() < 0.5:
        new = draft.put(node, "Transpose", value, perm=[*lead, last, second])
    else:
        new = draft.put(node, "Reshape", value, np.asarray([-1, *shape_of(value)[1:]], np.int64))
    _read_instead(node, value, new, draft.rng.random() < 0.6)
    return f"a view of {value.name} in front of {node.op_type}", False


@mutation
def extra_reader(draft: Draft) -> tuple[str, bool]:
    """A value in the middle of the chain is an output, too, or read by another node."""
    node, _, value = draft.edge()
    outputs = draft.model.graph.outputs
    if not draft.is_main(node):
        raise ValueError(node)
    made_here = value.producer() is not None and array_of(value) is None
    if draft.rng.random() < 0.5 and made_here and not value.is_graph_output():
        outputs.append(value)
        return f"{value.name} is an output", True
    kind = draft.rng.choice(("Neg", "Abs", "Identity", "Sigmoid"))
    outputs.append(draft.put(node, kind, value))
    return f"{value.name} is read elsewhere", True


class _Run:
    """A run of nodes of a scope without subgraphs: what it reads, and what is read of it.

    Raises:
        IndexError: there is no scope of several nodes.
        ValueError: the scope has subgraphs, or nobody reads the run.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.scope = draft.rng.choice([s for s in draft.scopes() if len(s) > 1])
        nodes = list(self.scope)
        start = draft.rng.randrange(len(nodes))
        end = draft.rng.randint(start + 1, len(nodes))
        self.nodes = nodes if draft.rng.random() < 0.4 else nodes[start:end]
        own = [value for node in self.nodes for value in node.outputs]
        self.outputs = [
            value for value in own
            if value.is_graph_output() or any(user not in self.nodes for user, _ in value.uses())
        ]  # fmt: skip
        reads = [value for node in self.nodes for value in node.inputs if value]
        self.reads = [value for value in dict.fromkeys(reads) if value not in own]
        if not self.outputs or next(self.scope.subgraphs(), None) is not None:
            raise ValueError(self.scope)

    def copied(self, new: dict[ir.Value, ir.Value]) -> tuple[list[ir.Node], list[ir.Value]]:
        """Return nodes that read ``new`` for the values there, and what they give out."""
        copies = []
        for node in self.nodes:
            inputs, attributes = [new.get(v, v) if v else v for v in node.inputs], node.attributes
            count = len(node.outputs)
            copy = ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=count)
            copies.append(copy)
            for old, output in zip(node.outputs, copy.outputs, strict=True):
                output.name, output.type = self.draft.fresh("inner"), old.type
                new[old] = output
        return copies, [new[value] for value in self.outputs]

    def become(self, *nodes: ir.Node) -> None:
        """Put these nodes in the place of the run; the last of them gives what is read of it."""
        ir.convenience.replace_nodes_and_values(
            self.scope, self.nodes[-1], self.nodes, nodes, self.outputs, nodes[-1].outputs
        )


def _constant(name: str, value: object) -> ir.Node:
    node = ir.node("Constant", [], {"value": ir.tensor(np.asarray(value))})
    node.outputs[0].name = name
    return node


@mutation
def into_if(draft: Draft) -> tuple[str, bool]:
    """A run of nodes in both branches of an If."""
    run, branches = _Run(draft), {}
    for branch in ("then_branch", "else_branch"):
        nodes, outputs = run.copied({})
        branches[branch] = ir.Graph([], outputs, nodes=nodes, name=branch)
    if run.scope is draft.model.graph and draft.rng.random() < 0.5:
        condition, constants = draft.add_input(np.array(True), "condition"), []
    else:
        constants = [_constant(draft.fresh("condition"), draft.rng.random() < 0.5)]
        condition = constants[0].outputs[0]
    count = len(run.outputs)
    run.become(*constants, ir.node("If", [condition], branches, num_outputs=count))
    return f"{len(run.nodes)} nodes in an If", True


@mutation
def into_function(draft: Draft) -> tuple[str, bool]:
    """A run of nodes as a model-local function, stored constants inside or handed over."""
    run, model = _Run(draft), draft.model
    stored = [v for v in run.reads if v.is_initializer() and draft.rng.random() < 0.5]
    handed = [v for v in run.reads if v not in stored]
    constants = [_constant(draft.fresh("parameter"), array_of(value)) for value in stored]
    inputs = [ir.val(draft.fresh("parameter"), type=value.type) for value in handed]
    parameters = dict(zip(handed, inputs, strict=True))
    parameters |= dict(zip(stored, (node.outputs[0] for node in constants), strict=True))
    nodes, outputs = run.copied(parameters)
    title, imports = draft.fresh("function"), {**model.opset_imports, _DOMAIN: 1}
    graph = ir.Graph(inputs, outputs, nodes=[*constants, *nodes], opset_imports=imports)
    function = ir.Function(_DOMAIN, title, graph=graph, attributes=[])
    for owner in (model.graph, *model.functions.values()):
        owner.opset_imports[_DOMAIN] = 1
    model.functions[function.identifier()] = function
    model.ir_version = max(model.ir_version, 8)
    run.become(ir.node(title, handed, domain=_DOMAIN, num_outputs=len(outputs)))
    return f"{len(run.nodes)} nodes in a function", True
