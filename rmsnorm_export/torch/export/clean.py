"""Tidy and check what the exporter wrote, without changing a number.

``torch.onnx.export(optimize=True)`` is not used: its rules compare constants with a tolerance
(``x + 0`` matches every addend up to 1e-8), which deletes the epsilon of a norm that has a small
one, and at opset 23 it fuses norms in an order of rounding that is not the source's.
"""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxscript import optimizer
from onnxscript.rewriter import RewritePass
from onnxscript.rewriter.rules import common as rules

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.tensors import memory_of
from rmsnorm_export.recognize.match import module_path
from rmsnorm_export.torch.export.translate import spell_out

_EXACT_RULES = (
    rules.collapse_slice_rule,
    rules.collapse_slice2_rule,
    rules.no_op_cast_rule,
    rules.no_op_dynamic_scatter_nd_rule,
    rules.no_op_expand_rule,
    rules.no_op_static_scatter_nd_rule,
    rules.no_op_transpose_rule,
    rules.reshape_reshape_rule,
    rules.squeeze_reshape_1d_rule,
    rules.transpose_transpose_rule,
    rules.unsqueeze_unsqueeze_rule,
)
"""Rules that move elements or remove what does nothing, whatever the values are."""

_KEPT_NOTE = "pkg.torch.onnx.name_scopes"
"""Of what the exporter notes of each node: its modules. The others name them again, and files of
this machine; they are half of the graph of a decoder whose weights are elsewhere."""

_OF_ONE_TYPE = {"Add", "Concat", "Conv", "Div", "Gemm", "MatMul", "Mul", "Sub"}


def tidy(model: ir.Model) -> None:
    """Inline functions, fold small constants, remove what is unused or twice there; in place."""
    spell_out(model)
    _name_types(model)
    passes.InlinePass()(model)
    _omit_squeezes(model)
    weights = frozenset(model.graph.initializers.values())

    def should_fold(node: ir.Node) -> bool | None:
        """Not what is made of a weight: it would lose its name, and be stored in another type."""
        return False if any(value in weights for value in node.inputs) else None

    optimizer.fold_constants(model, onnx_shape_inference=True, should_fold=should_fold)
    RewritePass(_EXACT_RULES)(model)
    optimizer.fold_constants(model, onnx_shape_inference=True, should_fold=should_fold)
    _omit_biases(model)
    ir.passes.Sequential(
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        passes.RemoveUnusedOpsetsPass(),
        # Before the constants are initializers: weights that happen to be equal stay apart.
        passes.CommonSubexpressionEliminationPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.LiftSubgraphInitializersToMainGraphPass(),
        passes.OutputFixPass(),
        passes.NameFixPass(),
    )(model)
    _share_storage(model)
    _forget_notes(model)
    _check_types(model)


def _name_types(model: ir.Model) -> None:
    """Cast for CastLike: constant folding would do so and lose the node's metadata."""
    for node in model.graph.all_nodes():
        if node.op_type != "CastLike" or node.domain != "" or len(node.inputs) != 2:
            continue
        like = node.inputs[1]
        if like is not None and like.dtype is not None:
            node.op_type = "Cast"
            node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))
            node.resize_inputs(1)


def _omit_squeezes(model: ir.Model) -> None:
    """Omit a Squeeze of an axis longer than one: nothing in PyTorch, an error in ONNX."""
    for node in model.graph.all_nodes():
        if node.op_type != "Squeeze" or node.domain != "":
            continue
        value, result = node.inputs[0], node.outputs[0]
        if value is None or value.shape is None or result.shape is None:
            continue
        if len(value.shape) == len(result.shape) and not result.is_graph_output():
            result.replace_all_uses_with(value)


def _omit_biases(model: ir.Model) -> None:
    """Omit the bias that onnxscript gives a Conv3d without one: zeros of shape [channels, 2]."""
    for node in model.graph.all_nodes():
        bias = node.inputs[2] if node.op_type == "Conv" and len(node.inputs) == 3 else None
        if bias is not None and bias.shape is not None and len(bias.shape) == 2:
            node.resize_inputs(2)


def _share_storage(model: ir.Model) -> None:
    """Use one initializer where two are the same memory: tied weights."""
    first: dict[Hashable, ir.Value] = {}
    for name, value in list(model.graph.initializers.items()):
        key = memory_of(value.const_value)
        shared = value if key is None else first.setdefault(key, value)
        if shared is not value and not value.is_graph_output() and not value.is_graph_input():
            value.replace_all_uses_with(shared)
            del model.graph.initializers[name]


def _forget_notes(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        for noted in (node, *node.inputs, *node.outputs):
            props = {} if noted is None else noted.metadata_props
            for name in [n for n in props if n == "namespace" or n.startswith("pkg.")]:
                if name != _KEPT_NOTE:
                    del props[name]


def _check_types(model: ir.Model) -> None:
    """Refuse operands of two types where ONNX has one.

    PyTorch traces with tensors that have no values, on which some operators (``matmul``) do not
    look at the types as they do on real ones.

    Raises:
        InputError: naming the module, the operator and the types.
    """
    for node in model.graph.all_nodes():
        types = {value.dtype.name.lower() for value in node.inputs if value and value.dtype}
        if len(types) > 1 and node.domain == "" and node.op_type in _OF_ONE_TYPE:
            raise InputError(
                "The module computes with operands of different types.",
                found=f"module {module_path(node)!r}: {node.op_type} of "
                + " and ".join(sorted(types)),
                fix="give inputs of the type of the weights (--dtype, --shapes)",
            )
