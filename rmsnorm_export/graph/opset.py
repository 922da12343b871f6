"""Raise the opset of a model with ONNX's own version converter; weights stay out of it."""

from __future__ import annotations

import os

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.functions import inline
from rmsnorm_export.graph.tensors import tensor_slots
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SIMPLIFIED

_LARGE = 1024
_KEEP = "rmsnorm_export.keep"
"""Domain of nodes that the converter has to leave alone, while it runs."""
_RUNTIME_OPERATORS = frozenset({SIMPLIFIED})
"""ONNX Runtime's operators in the default domain, which the converter does not know."""


def default_opset(model: ir.Model) -> int:
    """Version of the default domain that the model imports; 0: none."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))


def raise_opset(model: ir.Model, opset: int) -> ir.Model:
    """``model`` at ``opset`` of the default domain, converted by ``onnx.version_converter``.

    Tensors of more than 1 KiB are replaced by inputs while the converter runs, so that a model of
    any size converts, and put back by name. Model-local functions are inlined, but for
    those that stand in for operators of com.microsoft.

    Raises:
        InputError: the converter cannot convert this model.
    """
    import onnx
    from onnx import version_converter

    copy = model.clone()
    try:
        if copy.functions:
            # The converter leaves functions as they are, at their old opset. One that stands in for
            # ONNX Runtime's operator is not run where that is.
            copy = inline(copy, lambda function: function.domain != MICROSOFT_DOMAIN)
    except ValueError as error:
        raise _not_raised(opset, error) from error
    for node in copy.graph.all_nodes():
        if node.op_type in _RUNTIME_OPERATORS:
            node.domain = _KEEP
    copy.opset_imports[_KEEP] = 1
    held = {
        name: value.const_value
        for name, value in copy.graph.initializers.items()
        if value.const_value is not None and value.const_value.nbytes > _LARGE
    }
    names = [value.name for value in copy.graph.inputs]
    for name in held:
        value = copy.graph.initializers.pop(name)
        tensor = value.const_value
        assert tensor is not None
        value.const_value = None
        value.shape = ir.Shape(tensor.shape.numpy())
        value.type = ir.TensorType(tensor.dtype)
        if value not in copy.graph.inputs:
            copy.graph.inputs.append(value)
    proto = ir.serde.serialize_model(copy)
    try:
        converted = version_converter.convert_version(proto, opset)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise _not_raised(opset, error) from error
    result = ir.serde.deserialize_model(converted)
    read = (v for node in result.graph.all_nodes() for v in node.inputs if v is not None)
    by_name = {v.name: v for v in [*read, *result.graph.outputs, *result.graph.inputs]}
    for value in list(result.graph.inputs):
        if value.name in held and value.name not in names:
            result.graph.inputs.remove(value)
    for name, tensor in held.items():
        restored = by_name.get(name)
        if restored is not None:
            restored.const_value = tensor
            result.graph.register_initializer(restored)
    for node in result.graph.all_nodes():
        if node.domain == _KEEP:
            node.domain = ""
    _restore_folders(copy, result)
    _forget_invented_dims(copy, result)
    result.opset_imports.pop(_KEEP, None)
    result.functions.clear()
    result.functions.update(copy.functions)
    result.device_configurations = copy.device_configurations
    result.metadata_props.update(model.metadata_props)
    result.graph.metadata_props.update(model.graph.metadata_props)
    result.graph.doc_string = result.graph.doc_string or model.graph.doc_string
    _restore_metadata(copy, result)
    return result


def _not_raised(opset: int, error: Exception) -> InputError:
    return InputError(
        "The model cannot be raised to another opset.",
        found=(str(error).strip().splitlines() or ["no reason given"])[0][:300],
        fix=f"export with opset_version={opset}, or use --target ort or portable",
    )


def _restore_folders(source: ir.Model, result: ir.Model) -> None:
    """Where the files of small external tensors are: a serialised model does not say."""
    folders = {
        tensor.location: tensor.base_dir
        for tensor in (slot.tensor for slot in tensor_slots(source))
        if isinstance(tensor, ir.ExternalTensor)
    }
    for slot in tensor_slots(result):
        tensor = slot.tensor
        if isinstance(tensor, ir.ExternalTensor) and not os.fspath(tensor.base_dir):
            tensor.base_dir = folders.get(tensor.location, "")


def _forget_invented_dims(source: ir.Model, result: ir.Model) -> None:
    """The converter names every size that it does not know (``unk__0``), and tells the outputs what
    it infers; a model says of its inputs and outputs what it said before."""
    named = {d.value for v in _values(source) for d in v.shape or () if not isinstance(d, int)}
    for value in _values(result):
        dims = [d if isinstance(d, int) or d.value in named else None for d in value.shape or ()]
        if None in dims:
            value.shape = ir.Shape(dims)
    for old, new in zip(source.graph.outputs, result.graph.outputs, strict=True):
        new.shape = old.shape


def _restore_metadata(source: ir.Model, result: ir.Model) -> None:
    """What was said of nodes and values (module path, documentation), which the converter drops."""
    values = {v.name: v for v in _values(source)}
    for value in _values(result):
        old = values.get(value.name)
        if old is not None:
            value.doc_string = value.doc_string or old.doc_string
            value.metadata_props.update(old.metadata_props)
            value.meta.update(old.meta)
    metadata = {
        node.outputs[0].name: node.metadata_props
        for node in source.graph.all_nodes()
        if node.metadata_props and node.outputs
    }
    for node in result.graph.all_nodes():
        for key, text in metadata.get(node.outputs[0].name if node.outputs else None, {}).items():
            node.metadata_props.setdefault(key, text)


def _values(model: ir.Model) -> list[ir.Value]:
    made = [v for node in model.graph.all_nodes() for v in node.outputs]
    return [*model.graph.inputs, *model.graph.initializers.values(), *made]
