"""Mutations of the scope in which a norm stands: runs of nodes in an If, a Loop or a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.tools.fuzz.change import mutation
from tests.tools.fuzz.draft import Draft, Scope

_DOMAIN = "mutant"


def _segment(draft: Draft) -> tuple[Scope, int, int, list[str], list[str]] | None:
    """A run of nodes of a scope, what it reads and what is read of it."""
    scopes = [scope for scope in draft.scopes() if len(scope.nodes) > 1]
    if not scopes:
        return None
    scope = draft.rng.choice(scopes)
    nodes = list(scope.nodes)
    start = draft.rng.randrange(len(nodes))
    end = draft.rng.randint(start + 1, len(nodes))
    if draft.rng.random() < 0.4:
        start, end = 0, len(nodes)
    made = {name for node in nodes[start:end] for name in node.output if name}
    read: list[str] = []
    for node in nodes[start:end]:
        read += [name for name in _reads(node) if name not in made and name not in read]
    later = {name for node in nodes[end:] for name in _reads(node)}
    owner = scope.graph.output if scope.graph is not None else ()
    later |= {value.name for value in owner}
    later |= set(scope.function.output) if scope.function is not None else set()
    outputs = sorted(made & later)
    if not outputs or any(draft.dtype(name) is None for name in outputs):
        return None
    return scope, start, end, read, outputs


def _reads(node: onnx.NodeProto) -> list[str]:
    """The names that a node and the subgraphs in it read from around it."""
    out = [name for name in node.input if name]
    for attribute in node.attribute:
        if attribute.HasField("g"):
            inner = {v.name for v in attribute.g.input} | {t.name for t in attribute.g.initializer}
            inner |= {name for n in attribute.g.node for name in n.output}
            out += [name for n in attribute.g.node for name in _reads(n) if name not in inner]
            out += [v.name for v in attribute.g.output if v.name not in inner]
    return out


def _copied(
    draft: Draft, nodes: Sequence[onnx.NodeProto]
) -> tuple[list[onnx.NodeProto], dict[str, str]] | None:
    """The nodes with new names for all that they make."""
    if any(attribute.HasField("g") for node in nodes for attribute in node.attribute):
        return None
    names = {name: draft.fresh("inner") for node in nodes for name in node.output if name}
    out = []
    for node in nodes:
        new = onnx.NodeProto()
        new.CopyFrom(node)
        new.input[:] = [names.get(name, name) for name in node.input]
        new.output[:] = [names.get(name, name) for name in node.output]
        out.append(new)
    return out, names


def _info(draft: Draft, name: str, new: str) -> onnx.ValueInfoProto:
    dtype = draft.dtype(name)
    assert dtype is not None
    return helper.make_tensor_value_info(new, helper.np_dtype_to_tensor_dtype(dtype), None)


@mutation
def into_if(draft: Draft) -> tuple[str, bool] | None:
    """A run of nodes in both branches, or in one, the other computing something else."""
    found = _segment(draft)
    if found is None:
        return None
    scope, start, end, _, outputs = found
    nodes = list(scope.nodes)[start:end]
    graphs = []
    for name in ("then", "else"):
        copied = _copied(draft, nodes)
        if copied is None:
            return None
        inner, names = copied
        infos = [_info(draft, output, names[output]) for output in outputs]
        graphs.append(helper.make_graph(inner, name, [], infos))
    condition = draft.fresh("condition")
    del scope.nodes[start:end]
    node = helper.make_node(
        "If", [condition], outputs, then_branch=graphs[0], else_branch=graphs[1]
    )
    scope.nodes.insert(start, node)
    if scope.function is None and draft.rng.random() < 0.5:
        info = helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, [])
        draft.model.graph.input.append(info)
        draft.signature.add(condition, np.dtype(np.bool_), ())
    else:
        tensor = numpy_helper.from_array(np.asarray(draft.rng.random() < 0.5))
        scope.nodes.insert(start, helper.make_node("Constant", [], [condition], value=tensor))
    return f"{len(nodes)} nodes in an If", True


@mutation
def into_loop(draft: Draft) -> tuple[str, bool] | None:
    """A run of nodes as the body of a loop, once or twice; the last run counts."""
    found = _segment(draft)
    if found is None:
        return None
    scope, start, end, _, outputs = found
    nodes = list(scope.nodes)[start:end]
    copied = _copied(draft, nodes)
    if copied is None:
        return None
    inner, names = copied
    trips = draft.rng.choice((1, 1, 2))
    count, going, still = (draft.fresh(hint) for hint in ("count", "going", "still"))
    inner.append(helper.make_node("Identity", [going], [still]))
    body = helper.make_graph(
        inner,
        "body",
        [
            helper.make_tensor_value_info(count, onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info(going, onnx.TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info(still, onnx.TensorProto.BOOL, []),
            *(_info(draft, output, names[output]) for output in outputs),
        ],
    )
    del scope.nodes[start:end]
    limit, always, zero = (draft.fresh(hint) for hint in ("trips", "always", "last"))
    stacked = [draft.fresh("stacked") for _ in outputs]
    made = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))
        for name, value in ((limit, np.int64(trips)), (always, True), (zero, np.int64(trips - 1)))
    ]
    made.append(helper.make_node("Loop", [limit, always], stacked, body=body))
    made += [
        helper.make_node("Gather", [stack, zero], [output], axis=0)
        for stack, output in zip(stacked, outputs, strict=True)
    ]
    for offset, node in enumerate(made):
        scope.nodes.insert(start + offset, node)
    return f"{len(nodes)} nodes in a Loop of {trips}", True


@mutation
def into_function(draft: Draft) -> tuple[str, bool] | None:
    """A run of nodes as a model-local function, its constants inside or handed over."""
    found = _segment(draft)
    if found is None:
        return None
    scope, start, end, read, outputs = found
    nodes = list(scope.nodes)[start:end]
    copied = _copied(draft, nodes)
    if copied is None:
        return None
    inner, names = copied
    kept: dict[str, str] = {}
    constants = []
    for name in read:
        value = draft.values.get(name)
        stored = {tensor.name for tensor in draft.model.graph.initializer}
        if value is not None and value.constant and name in stored and draft.rng.random() < 0.5:
            kept[name] = draft.fresh("kept")
            tensor = numpy_helper.from_array(value.lo)
            constants.append(helper.make_node("Constant", [], [kept[name]], value=tensor))
    for node in inner:
        node.input[:] = [kept.get(name, name) for name in node.input]
    handed = [name for name in read if name not in kept]
    parameters = {name: draft.fresh("parameter") for name in handed}
    for node in inner:
        node.input[:] = [parameters.get(name, name) for name in node.input]
    title = draft.fresh("function")
    imports = scope.function.opset_import if scope.function else draft.model.opset_import
    needed = [entry for entry in imports if entry.domain != _DOMAIN]
    own = [helper.make_opsetid(_DOMAIN, 1)]
    draft.model.functions.append(
        helper.make_function(
            _DOMAIN,
            title,
            list(parameters.values()),
            [names[output] for output in outputs],
            [*constants, *inner],
            [*needed, *own],
        )
    )
    owners: list[Any] = [draft.model.opset_import]
    if scope.function is not None:
        owners.append(scope.function.opset_import)
    for owner in owners:
        if _DOMAIN not in {entry.domain for entry in owner}:
            owner.extend(own)
    draft.model.ir_version = max(draft.model.ir_version, 8)
    call = helper.make_node(title, handed, outputs, domain=_DOMAIN)
    del scope.nodes[start:end]
    scope.nodes.insert(start, call)
    again = draft.rng.random() < 0.3 and draft.dtype(outputs[0]) is not None and scope.main
    if again:  # called twice: what differs between the calls is another site
        twin = helper.make_node(
            title, handed, [draft.fresh("again") for _ in outputs], domain=_DOMAIN
        )
        scope.nodes.insert(start + 1, twin)
        dtype, shape = draft.dtype(outputs[0]), draft.shape(outputs[0])
        if dtype is not None and shape is not None:
            draft.add_output(twin.output[0], dtype, len(shape))
    return f"{len(nodes)} nodes in a function{', called twice' if again else ''}", True
