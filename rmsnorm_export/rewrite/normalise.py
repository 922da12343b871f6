"""Bring a model into the form that recognition reads: names, functions, defaults.

The fused nodes of another target are taken apart, so that a file written for one target can become
a file for any other, residual sums, gates and groups included.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.functions import inline
from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.lower.builder import FORMERLY
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.printable import plural
from rmsnorm_export.recognize.scan import foreign_functions
from rmsnorm_export.rewrite.mend import mend
from rmsnorm_export.rewrite.names import Names
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
    RMSNormalization is mended where runtimes do not take it, whatever the target (see ``mend``).
    With single ``sites`` to write out all fused nodes stay.
    """
    loaded = _with_defaults(loaded, options.constant_initializers)
    model = loaded.model
    _one_default_domain(model)
    _rename_inlined(model)
    if options.sites:
        return loaded
    operators = _own_form(options)
    if not any(operator.startswith(DOMAIN) for operator in operators):
        model = _inline_own(model)
    if SKIP_SIMPLIFIED not in operators and MICROSOFT_DOMAIN in model.opset_imports:
        for graph in all_graphs(model):
            for node in list(graph):
                _split_skip(graph, node)
    mend(model)
    return dataclasses.replace(loaded, model=model)


def _own_form(options: OptimizeOptions) -> tuple[str, ...]:
    """Return the operators of the target that the runtime, where there is one, knows."""
    operators = TARGETS[options.form].operators
    if (runtime := options.consumer) is None:
        return operators
    return tuple(o for o in operators if o != SKIP_SIMPLIFIED or o in runtime.forms)


def _with_defaults(loaded: LoadedModel, constant: bool) -> LoadedModel:
    """Note the overridable initializers; those that are ``constant`` are no inputs any more."""
    inputs = loaded.model.graph.inputs
    defaults = [value for value in inputs if value.is_initializer()]
    if not defaults:
        return loaded
    many = plural(len(defaults), "initializer")
    which = f"{many} {'is a graph input' if len(defaults) == 1 else 'are graph inputs'} as well"
    note = f"{which}, which a caller may replace; constant with constant_initializers"
    if constant:
        for value in defaults:
            inputs.remove(value)
        note = f"{which} in the source; constant now"
    return dataclasses.replace(loaded, notes=(*loaded.notes, note))


def _one_default_domain(model: ir.Model) -> None:
    """``ai.onnx`` is the default domain's other name; two imports of it could differ."""
    holders: list[ir.Model | ir.Function] = [model, *model.functions.values()]
    for holder in holders:
        version = holder.opset_imports.pop("ai.onnx", None)
        if version is not None:
            holder.opset_imports.setdefault("", version)
    for key, function in list(model.functions.items()):
        if key[0] == "ai.onnx":
            del model.functions[key]
            function.domain = ""
            model.functions[function.identifier()] = function
    for graph in all_graphs(model):
        for node in graph:
            if node.domain == "ai.onnx":
                node.domain = ""


def _rename_inlined(model: ir.Model) -> None:
    """Give values that ONNX Runtime named when it inlined a function names of their own.

    It makes the same names when it inlines the functions of the new file, and then finds them twice
    and does not load it. Inputs and outputs of a graph keep theirs.
    """
    values = [
        value
        for graph in all_graphs(model)
        for value in (
            *graph.initializers.values(),
            *(output for node in graph for output in node.outputs),
        )
        if (value.name or "").startswith(_INLINED)
        and not (value.is_graph_input() or value.is_graph_output())
    ]
    names = Names(model)
    for value in values:
        value.name = names((value.name or "").replace(_INLINED, "inlined_"))


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
        return inline(model, lambda function: function.identifier() in own)
    except ValueError as error:
        raise InputError(
            "The function bodies of an earlier run cannot be put in the place of their nodes.",
            found=str(error).splitlines()[0][:300],
            fix="optimize the original model for this target",
        ) from error


def _split_skip(graph: ir.Graph, node: ir.Node) -> None:
    if node.domain != MICROSOFT_DOMAIN or node.op_type != SKIP_SIMPLIFIED:
        return
    operands = [*node.inputs, None, None, None, None][:4]
    x, skip, scale, bias = operands
    if x is None or skip is None or scale is None or x.dtype not in _WIDE:
        return
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:3]):
        return
    epsilon = node.attributes.get_float("epsilon", 1e-12)
    stem = node.name or node.outputs[0].name or "skip"
    new: list[ir.Node] = []
    total = x
    for index, addend in enumerate(v for v in (bias, skip) if v is not None):
        add = ir.node("Add", [total, addend], name=f"{stem}/Add_{index}")
        add.outputs[0].shape, add.outputs[0].type = x.shape, x.type
        new.append(add)
        total = add.outputs[0]
    norm = ir.node(
        SIMPLIFIED,
        [total, scale],
        {"axis": -1, "epsilon": epsilon, "stash_type": 1},
        name=f"{stem}/RMSNorm",
        metadata_props=dict(node.metadata_props),
    )
    new.append(norm)
    graph.insert_before(node, new)
    pairs = [(node.outputs[0], norm.outputs[0])]
    if len(node.outputs) > 3:
        pairs.append((node.outputs[3], total))
    for old, value in pairs:
        value.shape, value.type = old.shape or x.shape, old.type or x.type
        name = old.name
        old.replace_all_uses_with(value, replace_graph_outputs=True)
        old.name = None
        value.name = name or value.name
    graph.remove(node, safe=True)
