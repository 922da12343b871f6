"""Mutations of what is around a norm: casts, views, readers, declared shapes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.tools.fuzz.change import mutation
from tests.tools.fuzz.draft import Draft, Place, Scope
from tests.tools.fuzz.intervals import BF16, F16, F32, F64, is_float


def _onnx(dtype: np.dtype[Any]) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype))


@mutation
def cast_there_and_back(draft: Draft) -> tuple[str, bool] | None:
    edges = draft.float_edges()
    if not edges:
        return None
    place, position = draft.rng.choice(edges)
    name = place.node.input[position]
    dtype = draft.dtype(name)
    if dtype is None:
        return None
    other = draft.rng.choice((F16, BF16, F32, F64, np.dtype(np.int32), dtype))
    middle, place = draft.put(place, "Cast", name, to=_onnx(other))
    if draft.rng.random() < 0.3:
        back, place = draft.put(place, "CastLike", middle, name)
    else:
        back, place = draft.put(place, "Cast", middle, to=_onnx(dtype))
    place.node.input[position] = back
    lossless = other in (dtype, F64) or (other == F32 and dtype in (F16, BF16))
    return f"{name} through {other} in front of {place.node.op_type}", lossless


@mutation
def cast_removed(draft: Draft) -> tuple[str, bool] | None:
    place = draft.pick("Cast")
    if place is None:
        return None
    x = place.node.input[0]
    draft.replace(place, "Identity", x)
    return "Cast removed", False


@mutation
def cast_elsewhere(draft: Draft) -> tuple[str, bool] | None:
    """Another type to cast to; or a wide stretch between an operator's operands and its result."""
    place = draft.pick("Add", "Mul", "Div", "Sqrt", "Reciprocal", "ReduceMean", "Cast")
    if place is None:
        return None
    node = place.node
    if node.op_type == "Cast":
        kind = draft.rng.choice((F16, BF16, F32, F64))
        for attribute in node.attribute:
            if attribute.name == "to":
                attribute.i = _onnx(kind)
        return f"Cast to {kind}", False
    dtype = draft.dtype(node.output[0])
    if dtype is None or not is_float(dtype):
        return None
    kind = draft.rng.choice([t for t in (F16, BF16, F32, F64) if t != dtype])
    output, op_type = node.output[0], node.op_type
    for position in range(len(node.input)):
        read = draft.dtype(place.node.input[position])
        if read is not None and is_float(read):
            name = place.node.input[position]
            new, place = draft.put(place, "Cast", name, to=_onnx(kind))
            place.node.input[position] = new
    place.node.output[0] = draft.fresh("wide")
    back = helper.make_node("Cast", [place.node.output[0]], [output], to=_onnx(dtype))
    place.scope.nodes.insert(place.index + 1, back)
    lossless = kind == F64 or (kind == F32 and dtype in (F16, BF16))
    return f"{op_type} in {kind}", lossless and dtype == F32


def _neutral_view(draft: Draft, place: Place, name: str, way: str) -> tuple[str, Place] | None:
    """``name`` through something that gives it back."""
    shape, dtype = draft.shape(name), draft.dtype(name)
    if shape is None or dtype is None:
        return None
    rank = len(shape)
    if way in ("Identity", "Sum", "Max"):
        return draft.put(place, way, name)
    if way == "Neg twice":
        middle, place = draft.put(place, "Neg", name)
        return draft.put(place, "Neg", middle)
    if way in ("times 1", "plus 0", "minus 0", "over 1"):
        number = np.asarray(1 if "1" in way else 0).astype(dtype)
        kind = {"times 1": "Mul", "plus 0": "Add", "minus 0": "Sub", "over 1": "Div"}[way]
        pair = [number, name] if kind in ("Mul", "Add") and draft.rng.random() < 0.3 else []
        return draft.put(place, kind, *(pair or [name, number]))
    if way == "Dropout":
        return draft.put(place, "Dropout", name)
    if way == "Concat":
        return draft.put(place, "Concat", name, axis=-1) if rank else None
    if way == "Slice":
        ints = [np.asarray([n], np.int64) for n in (0, 2**40, rank - 1)]
        return draft.put(place, "Slice", name, *ints) if rank else None
    if way == "Expand":
        return draft.put(place, "Expand", name, np.ones(max(rank, 1), np.int64)) if rank else None
    if way == "Where":
        return draft.put(place, "Where", np.asarray(True), name, name)
    if way == "Transpose" and rank:
        perm = list(range(rank))
        draft.rng.shuffle(perm)
        middle, place = draft.put(place, "Transpose", name, perm=perm)
        back = [perm.index(axis) for axis in range(rank)]
        return draft.put(place, "Transpose", middle, perm=back)
    if way == "Unsqueeze":
        axis = draft.rng.randint(0, rank)
        middle, place = draft.with_axes(place, "Unsqueeze", name, [axis])
        return draft.with_axes(place, "Squeeze", middle, [axis])
    return _reshaped(draft, place, name, shape)


def _reshaped(
    draft: Draft, place: Place, name: str, shape: Sequence[int]
) -> tuple[str, Place] | None:
    """Flat or split, and back to the sizes that the value has, by number or by its own Shape."""
    rank = len(shape)
    if not rank:
        return None
    forms = [[-1], [-1, shape[-1]], [0] * (rank - 1) + [-1, 1], [*[0] * rank, 1]]
    if shape[-1] % 2 == 0:
        forms.append([*[0] * (rank - 1), -1, shape[-1] // 2])
    forms.append([*[0] * (rank - 1), -1])
    target = np.asarray(draft.rng.choice(forms), np.int64)
    middle, place = draft.put(place, "Reshape", name, target)
    if draft.rng.random() < 0.5:
        sizes, place = draft.put(place, "Shape", name)
        return draft.put(place, "Reshape", middle, sizes)
    dynamic = set(draft.signature.sizes.values())
    back = [-1 if i == 0 else size for i, size in enumerate(shape)]
    if any(size in dynamic for size in back[1:]):
        back = [0] * (rank - 1) + [shape[-1]]
    return draft.put(place, "Reshape", middle, np.asarray(back, np.int64))


_VIEWS = (
    "Identity", "Sum", "Max", "Neg twice", "times 1", "plus 0", "minus 0", "over 1", "Dropout",
    "Concat", "Slice", "Expand", "Where", "Transpose", "Unsqueeze", "Reshape", "Reshape",
)  # fmt: skip


@mutation
def view_there_and_back(draft: Draft) -> tuple[str, bool] | None:
    """On one edge, or on all that read the value behind it."""
    edges = draft.float_edges()
    if not edges:
        return None
    place, position = draft.rng.choice(edges)
    name, way = place.node.input[position], draft.rng.choice(_VIEWS)
    done = _neutral_view(draft, place, name, way)
    if done is None:
        return None
    new, place = done
    everywhere = draft.rng.random() < 0.5
    for index in range(place.index, len(place.scope.nodes) if everywhere else place.index + 1):
        node = place.scope.nodes[index]
        node.input[:] = [new if given == name else given for given in node.input]
    return f"{way} on {name} in front of {place.node.op_type}", True


@mutation
def view_alone(draft: Draft) -> tuple[str, bool] | None:
    """A view without its way back: the row is another one, or the shapes no longer fit."""
    edges = draft.float_edges()
    if not edges:
        return None
    place, position = draft.rng.choice(edges)
    name = place.node.input[position]
    shape = draft.shape(name)
    if not shape or len(shape) < 2:
        return None
    perm = list(range(len(shape)))
    perm[-1], perm[-2] = perm[-2], perm[-1]
    if draft.rng.random() < 0.5:
        new, place = draft.put(place, "Transpose", name, perm=perm)
    else:
        new, place = draft.put(place, "Reshape", name, np.asarray([-1, *shape[1:]], np.int64))
    everywhere = draft.rng.random() < 0.6
    for index in range(place.index, len(place.scope.nodes) if everywhere else place.index + 1):
        node = place.scope.nodes[index]
        node.input[:] = [new if given == name else given for given in node.input]
    return f"a view of {name} in front of {place.node.op_type}", False


@mutation
def transposed_around(draft: Draft) -> tuple[str, bool] | None:
    """Two axes of an input are swapped, and those of the output that has its shape."""
    graph = draft.model.graph
    inputs = [v for v in graph.input if len(draft.shape(v.name) or ()) >= 2]
    if not inputs or not graph.node:
        return None
    value = draft.rng.choice(inputs)
    name, rank = value.name, len(draft.shape(value.name) or ())
    perm = list(range(rank))
    a, b = draft.rng.sample(range(rank), 2)
    perm[a], perm[b] = perm[b], perm[a]
    first = Place(Scope(graph.node, graph, None, True), 0)
    new, place = draft.put(first, "Transpose", name, perm=perm)
    for index in range(place.index, len(graph.node)):
        node = graph.node[index]
        node.input[:] = [new if given == name else given for given in node.input]
    return f"{name} transposed by {perm}", False


# readers and constants


@mutation
def extra_output(draft: Draft) -> tuple[str, bool] | None:
    """A value in the middle of the chain is an output of the model, too."""
    known = {value.name for value in draft.model.graph.output}
    found = [
        name
        for node in draft.model.graph.node
        for name in node.output
        if name and name not in known and draft.dtype(name) is not None
    ]
    if not found:
        return None
    name = draft.rng.choice(found)
    dtype, shape = draft.dtype(name), draft.shape(name)
    if dtype is None or shape is None:
        return None
    draft.add_output(name, dtype, len(shape))
    return f"{name} is an output", True


@mutation
def extra_reader(draft: Draft) -> tuple[str, bool] | None:
    """A value in the middle of the chain is read by a node that has nothing to do with it."""
    edges = [(p, i) for p, i in draft.float_edges() if p.scope.main]
    if not edges:
        return None
    place, position = draft.rng.choice(edges)
    name = place.node.input[position]
    dtype, shape = draft.dtype(name), draft.shape(name)
    if dtype is None or shape is None:
        return None
    new, _ = draft.put(place, draft.rng.choice(("Neg", "Abs", "Identity", "Sigmoid")), name)
    draft.add_output(new, dtype, len(shape))
    return f"{name} is read elsewhere", True


@mutation
def duplicate(draft: Draft) -> tuple[str, bool] | None:
    """A node twice: some readers read the copy."""
    place = draft.pick()
    if place is None or len(place.node.output) != 1:
        return None
    twin = onnx.NodeProto()
    twin.CopyFrom(place.node)
    name, new = place.node.output[0], draft.fresh("twin")
    twin.output[0] = new
    twin.name = new if twin.name else ""
    if any(attribute.HasField("g") for attribute in twin.attribute):
        return None
    place.scope.nodes.insert(place.index + 1, twin)
    changed = 0
    for node in list(place.scope.nodes)[place.index + 2 :]:
        for position, given in enumerate(node.input):
            if given == name and draft.rng.random() < 0.5:
                node.input[position] = new
                changed += 1
    return f"{place.node.op_type} twice, {changed} readers of the copy", True


@mutation
def constant_form(draft: Draft) -> tuple[str, bool] | None:
    """An initializer as a Constant node, as an input with a default, or copied."""
    graph = draft.model.graph
    if not graph.initializer:
        return None
    index = draft.rng.randrange(len(graph.initializer))
    tensor = graph.initializer[index]
    form = draft.rng.choice(("node", "default", "identity"))
    inputs = {value.name for value in graph.input}
    if form == "node":
        if tensor.name in inputs or tensor.name in {v.name for v in graph.output}:
            return None
        node = helper.make_node("Constant", [], [tensor.name], value=copy.deepcopy(tensor))
        graph.node.insert(0, node)
        del graph.initializer[index]
        return f"{node.output[0]} is a Constant node", True
    if form == "default":
        if tensor.name in inputs:
            return None
        dims = list(tensor.dims)
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, dims))
        array = numpy_helper.to_array(tensor)
        if draft.rng.random() < 0.5 and is_float(array.dtype):
            draft.signature.add(tensor.name, array.dtype, tuple(dims))
        return f"{tensor.name} is an input with a default", False
    name = tensor.name
    first = Place(Scope(graph.node, graph, None, True), 0)
    new, place = draft.put(first, "Identity", name)
    for node in list(graph.node)[place.index :]:
        node.input[:] = [new if given == name else given for given in node.input]
    return f"{name} behind Identity", True


@mutation
def declared_shapes(draft: Draft) -> tuple[str, bool] | None:
    """Value infos dropped; dimensions of the inputs unnamed, or without a rank."""
    graph = draft.model.graph
    way = draft.rng.choice(("value infos", "dynamic", "rank", "outputs", "named"))
    del graph.value_info[:]
    if way == "outputs":
        for value in graph.output:
            value.type.tensor_type.ClearField("shape")
    elif way in ("dynamic", "rank", "named") and graph.input:
        value = draft.rng.choice(list(graph.input))
        shape = value.type.tensor_type.shape
        if way == "rank":
            value.type.tensor_type.ClearField("shape")
        elif len(shape.dim):
            axis = draft.rng.randrange(len(shape.dim))
            shape.dim[axis].Clear()
            if way == "named":
                shape.dim[axis].dim_param = "some"
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")
    return f"declared shapes: {way}", way in ("value infos", "outputs")


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, and the bodies in it: what they declare is the same sizes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _graphs(inner)


@mutation
def empty_dimension(draft: Draft) -> tuple[str, bool] | None:
    """A fixed size of an input is 0, everywhere where it stands."""
    graph = draft.model.graph
    names = [v.name for v in graph.input if v.name in draft.signature.inputs]
    if not names:
        return None
    dims = [d for d in draft.signature.inputs[names[0]][1] if isinstance(d, int) and d > 0]
    if not dims:
        return None
    size = draft.rng.choice(dims)
    for name, (dtype, shape) in list(draft.signature.inputs.items()):
        draft.signature.inputs[name] = (dtype, tuple(0 if d == size else d for d in shape))
    for inner in _graphs(graph):
        for value in (*inner.input, *inner.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value == size:
                    dim.dim_value = 0
        del inner.value_info[:]
    for index, tensor in enumerate(graph.initializer):
        array = numpy_helper.to_array(tensor)
        if size in array.shape and is_float(array.dtype):
            empty = np.zeros(tuple(0 if d == size else d for d in array.shape), array.dtype)
            graph.initializer[index].CopyFrom(numpy_helper.from_array(empty, tensor.name))
    return f"sizes of {size} are 0", False


@mutation
def raised_opset(draft: Draft) -> tuple[str, bool] | None:
    """A later version of the operators, by name alone: the checker says whether it can be."""
    imports = [e for e in draft.model.opset_import if e.domain in ("", "ai.onnx")]
    if not imports or draft.model.functions:
        return None
    version = draft.rng.randint(13, 24)
    old, imports[0].version = imports[0].version, version
    draft.model.ir_version = max(draft.model.ir_version, 10)
    return f"opset {old} -> {version}", True


@mutation
def residual(draft: Draft) -> tuple[str, bool] | None:
    """An Add in front of a value: of another input, of itself, of a constant; read again or not."""
    edges = [(p, i) for p, i in draft.float_edges() if p.node.op_type in ("Cast", "Pow", "Mul")]
    if not edges:
        return None
    place, position = draft.rng.choice(edges)
    name = place.node.input[position]
    shape, dtype = draft.shape(name), draft.dtype(name)
    if not shape or dtype is None:
        return None
    # In front of every reader it is another row; of a gain, a mean or one reader, no norm is left.
    earlier = {given for node in list(place.scope.nodes)[: place.index] for given in node.input}
    keeps = name not in earlier and draft.is_row(name)
    other = name
    if draft.rng.random() < 0.7 and place.scope.function is None:
        wanted = draft.dims(shape) if draft.rng.random() < 0.7 else shape[-1:]
        other = draft.add_input(dtype, wanted, "residual")
    new, place = draft.put(place, "Add", *draft.rng.sample([name, other], 2))
    for node in list(place.scope.nodes)[place.index :]:
        node.input[:] = [new if given == name else given for given in node.input]
    return f"{name} plus {'itself' if other == name else 'a residual'}", keeps
