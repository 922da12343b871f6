"""Raise or lower a model's opset with ONNX's own version converter; weights stay out of it."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.external import placed
from rmsnorm_export.graph.functions import inline, write_out
from rmsnorm_export.graph.order import (
    all_graphs,
    graphs_in,
    label,
    nodes_of,
    subgraphs,
    values_in,
    variables_in,
)
from rmsnorm_export.graph.tensors import LARGE_BYTES, check_tensor, lent_slots, tensor_slots
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SIMPLIFIED
from rmsnorm_export.printable import first_line
from rmsnorm_export.recognize.contrib import rule_of
from rmsnorm_export.recognize.functions import reached
from rmsnorm_export.recognize.types import Types

if TYPE_CHECKING:
    import onnx

_KEEP = "rmsnorm_export.keep"
"""Domain of nodes that the converter has to leave alone, and of weights that it does not see."""


_AXES_BYTES = 128

_WEIGHTS_APART = 4
"""Version of the format since which weights need not be inputs, too: the converter refuses before
what ONNX Runtime takes."""

_SAME = (
    "Add", "ConstantOfShape", "Div", "Identity", "Mul", "Pow", "Relu", "Reshape", "Shape", "Sub",
)  # fmt: skip
"""Operators of which the converter has no older version, though newer ones since opset 13 brought
element types and attributes alone; both are looked at afterwards."""


def default_opset(model: ir.Model) -> int:
    """Return the version of the default domain that the model imports; 0: none."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))


@functools.lru_cache(maxsize=4096)
def version_of(operator: str, opset: int) -> int:
    """Return the opset up to ``opset`` that changed an operator last; 0 where there is none."""
    import onnx

    known = onnx.defs.has(operator, opset)
    return int(onnx.defs.get_schema(operator, opset).since_version) if known else 0


def convert_opset(model: ir.Model, opset: int) -> tuple[ir.Model, ir.Model]:
    """Return the model, and that at ``opset`` of the default domain, as the converter makes it.

    Tensors of 1 KiB and more are external data while the converter runs, so that a model of any
    size converts. Model-local functions are inlined in both, but for those that replace operators
    of com.microsoft. Operators that a lower opset lacks are written out; what was lowered is
    checked by the operators of that opset. Whether a node computes the same is not checked here.

    Raises:
        InputError: the converter cannot convert this model.
    """
    import onnx
    from onnx import shape_inference, version_converter

    copy, before = model.clone(), default_opset(model)
    copy.ir_version = max(copy.ir_version, _WEIGHTS_APART)
    lower = opset < before
    weights: dict[str, ir.TensorProtocol] = {}
    try:
        if copy.functions:
            # The converter leaves functions as they are, at their old opset. One that replaces
            # ONNX Runtime's operator is not run where that is.
            called = reached(copy, frozenset())
            kept = {key for key in called if key[0] == MICROSOFT_DOMAIN and rule_of(*key[:2])}
            copy = inline(copy, copy.functions.keys() - kept)
        source = copy.graph
        with lent_slots(copy) as slots:
            for slot in slots:
                if slot.is_external or slot.nbytes >= LARGE_BYTES:
                    place = f"{_KEEP}.{len(weights)}"
                    weights[place] = slot.tensor
                    slot.put(placed(slot.tensor, place, "", None))
            written = copy
            if lower:
                _declare(copy)
                light = write_out(ir.serde.serialize_model(copy), opset)
                written = ir.serde.deserialize_model(light)
                _bring_in(written)
            for node in written.graph.all_nodes():
                # The first is ONNX Runtime's, in the default domain.
                same = lower and node.op_type in _SAME and not node.domain
                if node.op_type == SIMPLIFIED or same:
                    node.domain = _KEEP
            written.opset_imports[_KEEP] = 1
            proto = version_converter.convert_version(ir.serde.serialize_model(written), opset)
            if lower:
                shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
        copy.graph = ir.serde.deserialize_model(proto).graph
        for slot in list(tensor_slots(copy)):
            if isinstance(slot.tensor, ir.ExternalTensor):
                # Functions have their own again.
                slot.put(weights.get(str(slot.tensor.location), slot.tensor))
            check_tensor(slot)  # older converters may drop what is external
    except (
        RuntimeError, ValueError, onnx.checker.ValidationError, shape_inference.InferenceError,
        version_converter.ConvertError,
    ) as error:  # fmt: skip
        why = first_line(error).rpartition("failed: ")[2]
        raise not_converted(before, opset, why) from error
    _name_apart(source, copy.graph)
    _restore(source, copy.graph)
    if lower:
        _check_operators(copy, before, opset)
    return ir.Model(source, ir_version=copy.ir_version, functions=[*copy.functions.values()]), copy


def not_converted(before: int, opset: int, why: str) -> InputError:
    """Return the error of a model that cannot be brought from one opset to another."""
    import onnx

    lower = opset < before
    what = f"The model cannot be {'lowered' if lower else 'raised'} to another opset."
    way = "choose a newer runtime or opset" if lower else "use --target ort, which takes any opset"
    fix = f"export with opset_version={opset}, or {way}"
    if opset > (newest := onnx.defs.onnx_opset_version()):
        fix = f"the newest opset that onnx {onnx.__version__} knows is {newest}"
    return InputError(what, found=f"to opset {opset}: {why}", fix=fix)


def _declare(model: ir.Model) -> None:
    """Declare the types and shapes that follow, of which onnx infers none behind others' operators.

    Bodies of operators depend on them.
    """
    types = Types(model)
    for value in variables_in(all_graphs(model)):
        dtype, dims = types.info(value)
        if value.type is None and dtype is not None:
            value.type = ir.TensorType(ir.DataType(dtype))
        if value.shape is None and dims is not None:
            value.shape = ir.Shape(dims)


def _bring_in(model: ir.Model) -> None:
    """Repeat axes, and other small integers, in the bodies that read them from an outer graph.

    The converter makes attributes of them, and looks in the same graph alone.
    """
    count = 0
    for graph in (graph for graph in all_graphs(model) if graph is not model.graph):
        for node in list(graph):
            for index, value in enumerate(node.inputs):
                if value is None or value.graph is graph or value.is_graph_input():
                    continue
                tensor = value.const_value
                small = tensor is not None and tensor.nbytes <= _AXES_BYTES
                if small and tensor is not None and tensor.dtype == ir.DataType.INT64:
                    output = ir.Value(name=f"{_KEEP}.{node.op_type}_{count}")
                    constant = ir.node("Constant", [], {"value": tensor}, outputs=[output])
                    graph.insert_before(node, constant)
                    node.replace_input_with(index, output)
                    count += 1


def _check_operators(model: ir.Model, before: int, opset: int) -> None:
    """Check for what the older opset does not have, as the converter passes some of it on.

    Raises:
        InputError: an operator or an attribute is not of that opset.
    """
    import onnx

    for node in nodes_of(model):
        if node.domain or node.op_type == SIMPLIFIED:
            continue
        if not onnx.defs.has(node.op_type, opset):
            raise not_converted(before, opset, f"there is no {node.op_type} (node {label(node)})")
        schema = onnx.defs.get_schema(node.op_type, opset)
        for name in node.attributes:
            if name not in schema.attributes:
                why = f"{node.op_type} has no attribute {name} (node {label(node)})"
                raise not_converted(before, opset, why)
        for value, formal in zip((*node.inputs, *node.outputs), _formal(schema, node), strict=True):
            stored = value.type if value is not None else None
            name = stored.dtype.name.lower() if isinstance(stored, ir.TensorType) else ""
            if name and f"tensor({name})" not in formal.types:
                raise not_converted(
                    before, opset, f"{node.op_type} takes no {name} (node {label(node)})"
                )


def _formal(schema: onnx.defs.OpSchema, node: ir.Node) -> list[onnx.defs.OpSchema.FormalParameter]:
    """Return the schema's parameter for each input and output; the last may be variadic."""
    ends = (schema.inputs, len(node.inputs)), (schema.outputs, len(node.outputs))
    return [formal[min(i, len(formal) - 1)] for formal, count in ends for i in range(count)]


def _name_apart(source: ir.Graph, result: ir.Graph) -> None:
    """Give values that the converter adds to a body other names where a graph around it has them:
    it counts them in each graph anew."""
    own = {value.name for graph in graphs_in(source) for value in values_in(graph)}
    pending: list[tuple[ir.Graph, tuple[set[str | None], ...]]] = [(result, (own,))]
    while pending:
        graph, around = pending.pop()
        here = {value.name for value in values_in(graph)}
        for value in variables_in([graph]):
            if value.name not in own and any(value.name in names for names in around):
                wishes = map(f"{value.name}_{{}}".format, itertools.count(2))
                value.name = next(
                    name for name in wishes if not any(name in names for names in (*around, here))
                )
                here.add(value.name)
        pending += [(body, (*around, here)) for node in graph for body in subgraphs(node)]


def _restore(source: ir.Graph, result: ir.Graph) -> None:
    """Put back what the converter drops, and drop the sizes that it invents.

    It names every size that it does not know (``unk__0``), and tells the outputs what it infers; a
    model says of its inputs and outputs what it did before.
    """
    sizes = [size for value in variables_in(graphs_in(source)) for size in value.shape or ()]
    named = {size.value for size in sizes if not isinstance(size, int)}
    for value in variables_in(graphs_in(result)):
        dims = [d if isinstance(d, int) or d.value in named else None for d in value.shape or ()]
        if None in dims:
            value.shape = ir.Shape(dims)
    for old, new in zip(source.outputs, result.outputs, strict=True):
        new.shape = old.shape
    values = {value.name: value for graph in graphs_in(source) for value in values_in(graph)}
    for value in (value for graph in graphs_in(result) for value in values_in(graph)):
        if value.name in values:  # how it is quantized, where the graph says so
            value.meta.update(values[value.name].meta)
    nodes = {node.outputs[0].name: node for node in source.all_nodes() if node.outputs}
    for graph in (source, result):
        graph.opset_imports.pop(_KEEP, None)
        for node in graph.all_nodes():
            node.domain = "" if node.domain == _KEEP else node.domain
    for node in result.all_nodes():
        before = nodes.get(node.outputs[0].name) if node.outputs else None
        if before is not None:
            node.metadata_props.update(before.metadata_props | node.metadata_props)
