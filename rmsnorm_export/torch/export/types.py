"""Operands of one operator that have different types, which only a runtime would refuse."""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.recognize.match import module_path


def check_types(model: ir.Model) -> None:
    """Operands that an operator's schema wants of one type have one type.

    PyTorch traces with tensors that have no values, on which some operators (``matmul``) do not
    look at the types as they do on real ones.

    Raises:
        InputError: naming the module, the operator and the types.
    """
    opset = model.opset_imports[""]
    for node in model.graph.all_nodes():
        if node.domain not in ("", "ai.onnx"):
            continue
        bound: dict[str, ir.DataType] = {}
        for value, variable in zip(node.inputs, _variables(node.op_type, opset), strict=False):
            if value is None or value.dtype is None or not variable:
                continue
            first = bound.setdefault(variable, value.dtype)
            if first != value.dtype:
                place = module_path(node)
                raise InputError(
                    "The module computes with operands of different types.",
                    found=(f"module {place!r}: " if place else "")
                    + f"{node.op_type} of {first.name.lower()} and {value.dtype.name.lower()}",
                    fix="give inputs of the type of the weights (--dtype, --shapes)",
                )


@functools.cache
def _variables(op_type: str, opset: int) -> tuple[str, ...]:
    """Type variable of each input, "" where the type is fixed; empty for an unknown operator."""
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return ()
    named = {constraint.type_param_str for constraint in schema.type_constraints}
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    result: list[str] = []
    for formal in schema.inputs:
        variable = formal.type_str if formal.type_str in named else ""
        repeated = formal.option == variadic
        result += [variable if formal.is_homogeneous else ""] * (64 if repeated else 1)
    return tuple(result)
