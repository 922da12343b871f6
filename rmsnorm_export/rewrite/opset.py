"""Raise the opset of a model with ONNX's own version converter; weights stay out of it."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_export.errors import InputError

_LARGE = 1024


def raise_opset(model: ir.Model, opset: int) -> ir.Model:
    """``model`` at ``opset`` of the default domain, converted by ``onnx.version_converter``.

    Tensors of more than 1 KiB are replaced by inputs while the converter runs, so that a model of
    any size converts, and put back by name. Model-local functions are inlined.

    Raises:
        InputError: the converter cannot convert this model.
    """
    import onnx
    from onnx import version_converter
    from onnx_ir.passes.common import InlinePass

    copy = model.clone()
    if copy.functions:
        # The converter leaves functions as they are, at their old opset.
        copy = InlinePass()(copy).model
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
        raise InputError(
            "The model cannot be raised to another opset.",
            found=(str(error).strip().splitlines() or ["no reason given"])[0][:300],
            fix=f"export with opset_version={opset}, or use --target ort or portable",
        ) from error
    result = ir.serde.deserialize_model(converted)
    for value in list(result.graph.inputs):
        if value.name in held and value.name not in names:
            result.graph.inputs.remove(value)
    by_name = {v.name: v for v in [*result.graph.inputs, *_free_values(result)]}
    for name, tensor in held.items():
        restored = by_name.get(name)
        if restored is not None:
            restored.const_value = tensor
            result.graph.register_initializer(restored)
    result.metadata_props.update(model.metadata_props)
    _restore_metadata(copy, result)
    return result


def _restore_metadata(source: ir.Model, result: ir.Model) -> None:
    """What an exporter said of its nodes (module path, stack trace), which the converter drops."""
    said = {
        node.outputs[0].name: node.metadata_props
        for node in source.graph.all_nodes()
        if node.metadata_props and node.outputs
    }
    for node in result.graph.all_nodes():
        for key, text in said.get(node.outputs[0].name if node.outputs else None, {}).items():
            node.metadata_props.setdefault(key, text)


def _free_values(model: ir.Model) -> list[ir.Value]:
    return [v for node in model.graph.all_nodes() for v in node.inputs if v is not None]
