"""Raise the opset of a model with ONNX's own version converter; weights stay out of it."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.external import placed
from rmsnorm_export.graph.functions import inline
from rmsnorm_export.graph.tensors import LARGE_BYTES, check_tensor, lent_slots, tensor_slots
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SIMPLIFIED
from rmsnorm_export.printable import first_line

_KEEP = "rmsnorm_export.keep"
"""Domain of nodes that the converter has to leave alone, and of weights that it does not see."""


def default_opset(model: ir.Model) -> int:
    """Return the version of the default domain that the model imports; 0: none."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))


def raise_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model at ``opset`` of the default domain, by ``onnx.version_converter``.

    Tensors of 1 KiB and more are external data while the converter runs, so that a model of any
    size converts. Model-local functions are inlined, but for those that stand in for operators of
    com.microsoft.

    Raises:
        InputError: the converter cannot convert this model.
    """
    import onnx
    from onnx import version_converter

    copy = model.clone()
    weights: dict[str, ir.TensorProtocol] = {}
    try:
        if copy.functions:
            # The converter leaves functions as they are, at their old opset. One that stands in for
            # ONNX Runtime's operator is not run where that is.
            copy = inline(copy, {key for key in copy.functions if key[0] != MICROSOFT_DOMAIN})
        for node in copy.graph.all_nodes():
            if node.op_type == SIMPLIFIED:  # of ONNX Runtime, in the default domain
                node.domain = _KEEP
        copy.opset_imports[_KEEP] = 1
        with lent_slots(copy) as slots:
            for slot in slots:
                if slot.is_external or slot.nbytes >= LARGE_BYTES:
                    place = f"{_KEEP}.{len(weights)}"
                    weights[place] = slot.tensor
                    slot.put(placed(slot.tensor, place, "", None))
            proto = version_converter.convert_version(ir.serde.serialize_model(copy), opset)
        source, copy.graph = copy.graph, ir.serde.deserialize_model(proto).graph
        for slot in list(tensor_slots(copy)):
            if isinstance(slot.tensor, ir.ExternalTensor):
                # Functions have their own again.
                slot.put(weights.get(str(slot.tensor.location), slot.tensor))
            check_tensor(slot)  # older converters may drop what is external
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        what, found = "The model cannot be raised to another opset.", first_line(error)
        fix = f"export with opset_version={opset}, or use --target ort or portable"
        raise InputError(what, found=found, fix=fix) from error
    copy.opset_imports.pop(_KEEP, None)
    _restore(source, copy.graph)
    return copy


def _restore(source: ir.Graph, result: ir.Graph) -> None:
    """Put back what the converter drops, and drop the sizes that it invents.

    It names every size that it does not know (``unk__0``), and tells the outputs what it infers; a
    model says of its inputs and outputs what it said before.
    """
    sizes = [size for value in _values(source) for size in value.shape or ()]
    named = {size.value for size in sizes if not isinstance(size, int)}
    for value in _values(result):
        dims = [d if isinstance(d, int) or d.value in named else None for d in value.shape or ()]
        if None in dims:
            value.shape = ir.Shape(dims)
    for old, new in zip(source.outputs, result.outputs, strict=True):
        new.shape = old.shape
    result.metadata_props.update(source.metadata_props)
    result.doc_string = result.doc_string or source.doc_string
    nodes = {node.outputs[0].name: node for node in source.all_nodes() if node.outputs}
    for node in result.all_nodes():
        node.domain = "" if node.domain == _KEEP else node.domain
        before = nodes.get(node.outputs[0].name) if node.outputs else None
        if before is not None:
            node.metadata_props.update(before.metadata_props | node.metadata_props)


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(value for node in graph.all_nodes() for value in node.outputs)]
