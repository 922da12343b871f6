"""Bring a model into the form that recognition reads: names, functions, defaults.

The fused nodes of another target are taken apart, so that a file written for one target can become
a file for any other, residual sums, gates and groups included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.functions import inline
from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.lower.builder import FORMERLY
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op import native
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.printable import first_line, plural
from rmsnorm_export.recognize.consts import depends_on_caller
from rmsnorm_export.recognize.context import FLOATS, widens
from rmsnorm_export.recognize.scan import foreign_functions
from rmsnorm_export.rewrite.names import Names, values_in
from rmsnorm_export.rewrite.options import OptimizeOptions

_INLINED = "_inlfunc_"
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def normalise(loaded: LoadedModel, options: OptimizeOptions) -> LoadedModel:
    """Return the model, changed in place, without fused nodes that the target has no use for.

    Its default domain is called by its short name afterwards, and no value inside by a name that
    ONNX Runtime makes.

    This package's operators are replaced by their function bodies, which spell every rounding step.
    SkipSimplifiedLayerNormalization in f32 and f64 becomes Add and SimplifiedLayerNormalization; in
    half types it normalises a sum that is not rounded, which no other operator does, and stays.
    RMSNormalization is mended where runtimes do not take it, whatever the target (``_mend``).
    With single ``sites`` to write out all fused nodes stay.
    """
    model, notes = loaded.model, (*loaded.notes, *_overridable_note(loaded.model))
    _one_default_domain(model)
    _rename_inlined(model)
    if options.sites:
        return loaded
    operators, runtime = TARGETS[options.form].operators, options.consumer
    if not any(operator.startswith(DOMAIN) for operator in operators):
        model = _inline_own(model)
    forms = operators if runtime is None else runtime.forms
    keeps_sums = native.SKIP_SIMPLIFIED in operators and native.SKIP_SIMPLIFIED in forms
    names, opset = Names(model), model.opset_imports.get("", 0)
    for graph in all_graphs(model):
        for node in list(graph):
            operator = node.domain, node.op_type
            if operator == (native.MICROSOFT_DOMAIN, native.SKIP_SIMPLIFIED) and not keeps_sums:
                _split_skip(graph, node)
            elif operator == ("", native.RMS_NORMALIZATION) and opset >= TARGETS["onnx"].min_opset:
                _mend(graph, node, names)
    return dataclasses.replace(loaded, model=model, notes=notes)


def _overridable_note(model: ir.Model) -> tuple[str, ...]:
    """Return the note on initializers that are graph inputs as well; none where there are none."""
    count = sum(value.is_initializer() for value in model.graph.inputs)
    if not count:
        return ()
    verb = "is a graph input" if count == 1 else "are graph inputs"
    way = "onnx_ir's RemoveInitializersFromInputsPass makes them constant"
    return (f"{plural(count, 'initializer')} {verb} as well, which a caller may replace; {way}",)


def _one_default_domain(model: ir.Model) -> None:
    """Call the default domain by its short name; two imports of it could differ."""
    holders: list[ir.Model | ir.Function] = [model, *model.functions.values()]
    for holder in holders:
        if "ai.onnx" in holder.opset_imports:
            holder.opset_imports.setdefault("", holder.opset_imports.pop("ai.onnx"))
    for key in [key for key in model.functions if key[0] == "ai.onnx"]:
        function = model.functions.pop(key)
        function.domain = ""
        model.functions[function.identifier()] = function


def _rename_inlined(model: ir.Model) -> None:
    """Give values that ONNX Runtime named when it inlined a function names of their own.

    It makes the same names when it inlines the functions of the new file, and then finds them twice
    and does not load it. Inputs and outputs of a graph keep theirs.
    """
    names = Names(model)
    values = [value for graph in all_graphs(model) for value in values_in(graph)]
    for value in values:
        name = value.name or ""
        if name.startswith(_INLINED) and not (value.is_graph_input() or value.is_graph_output()):
            value.name = names(name.replace(_INLINED, "inlined_"))


def _inline_own(model: ir.Model) -> ir.Model:
    foreign = foreign_functions(model)
    own = {key for key, f in model.functions.items() if f.domain == DOMAIN and key not in foreign}
    if not own:
        return model
    for graph in all_graphs(model):
        for node in graph:
            if node.op_identifier() in own and node.name:
                node.metadata_props[FORMERLY] = node.name
    try:
        return inline(model, own)
    except ValueError as error:
        raise InputError(
            "The function bodies of an earlier run cannot be put in the place of their nodes.",
            found=first_line(error),
            fix="optimize the original model for this target",
        ) from error


def _split_skip(graph: ir.Graph, node: ir.Node) -> None:
    x, skip, scale, bias = (*node.inputs, None, None, None, None)[:4]
    if x is None or skip is None or scale is None or x.dtype not in _WIDE:
        return
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:3]):
        return
    stem, tape = node.name or node.outputs[0].name or "skip", ir.tape.Tape()
    total = x
    for index, addend in enumerate(v for v in (bias, skip) if v is not None):
        total = tape.op("Add", [total, addend], name=f"{stem}/Add_{index}")
        total.shape, total.type = x.shape, x.type
    epsilon = node.attributes.get_float("epsilon", 1e-12)
    attributes = {"axis": -1, "epsilon": epsilon, "stash_type": 1}
    y = tape.op(native.SIMPLIFIED, [total, scale], attributes, name=f"{stem}/RMSNorm")
    tape.nodes[-1].metadata_props.update(node.metadata_props)
    y.shape, y.type = x.shape, x.type
    old = [node.outputs[0], *(value for value in node.outputs[3:] if value.name)]
    new = [y, total][: len(old)]
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, old, new)


def _mend(graph: ir.Graph, node: ir.Node, names: Names) -> None:
    """Mend a RMSNormalization node in a form that runtimes do not take, where it stands.

    PyTorch's exporter fuses a norm with the casts around it, so that X is float16 and the scale
    float32: the operator's own function body then multiplies two types, and ONNX Runtime does not
    load it. Such a node computes in the wider type, as PyTorch does, and keeps its output's type. A
    scale that is no row of numbers (a modulation ``[batch, 1, n]``) broadcasts by the definition of
    the operator, but not on GPUs: it goes to a Mul behind the node, where the definition has it. A
    single number stays: ONNX Runtime takes it, and rounds in another order than a Mul.
    """
    x, scale = (*node.inputs, None, None)[:2]
    if x is None or scale is None or depends_on_caller(node) or len(node.outputs) != 1:
        return
    narrow, final = x.dtype, scale.dtype
    if narrow not in FLOATS or final not in FLOATS or narrow is None or final is None:
        return
    row = _row_apart(node, x, scale)
    if narrow == final and not row:
        return
    widest = (t for t in (narrow, final) if widens(narrow, t) and widens(final, t))
    wide = next(widest, ir.DataType.FLOAT)
    old, stem = node.outputs[0], node.name or node.outputs[0].name or "norm"
    tape = ir.tape.Tape()

    def add(op: str, inputs: Sequence[ir.Value], like: ir.Value, **attributes: Any) -> ir.Value:
        """Append a node of type ``wide`` and the shape of ``like``."""
        name = names(f"{stem}/{op}")
        output = ir.Value(name=names(f"{name}_output"), shape=like.shape, type=ir.TensorType(wide))
        return tape.op(op, inputs, attributes, name=name, output=output)

    if narrow != wide:
        x = add("Cast", [x], x, to=int(wide))
    if final != wide:
        scale = add("Cast", [scale], scale, to=int(wide))
    factor = scale
    if row:
        size = tape.op("Constant", [], {"value_ints": [row]})
        size.name, size.type = names(f"{stem}/size"), ir.TensorType(ir.DataType.INT64)
        scale = add("ConstantOfShape", [size], size, value=ir.tensor([1.0], dtype=wide))
        scale.shape = ir.Shape([row])
    result = add(native.RMS_NORMALIZATION, [x, scale], old, **node.attributes)
    tape.nodes[-1].name = node.name
    tape.nodes[-1].metadata_props.update(node.metadata_props)
    if row:
        result = add("Mul", [result, factor], old)
    if final != wide:
        result = add("Cast", [result], old, to=int(final))
    old.type = ir.TensorType(final)
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, [old], [result])


def _row_apart(node: ir.Node, x: ir.Value, scale: ir.Value) -> int:
    """Return the elements of a row where the scale is certainly no row of numbers, else 0."""
    if node.attributes.get_int("axis", -1) != -1 or not x.shape or scale.shape is None:
        return 0
    n, dims = x.shape[-1], tuple(scale.shape)
    if not isinstance(n, int) or n < 1 or None in dims:
        return 0
    # A row of numbers, or a single number.
    ordinary = all(dim == 1 for dim in dims[:-1]) and dims[-1:] in ((n,), (1,), ())
    return 0 if ordinary else n
