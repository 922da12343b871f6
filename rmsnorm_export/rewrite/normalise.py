"""Bring a model into the form that recognition reads: names, functions, defaults.

The fused nodes of another target are decomposed, so that a file written for one target can become
a file for any other, residual sums, gates and groups included.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.functions import inline, own_functions
from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.graph.names import Names
from rmsnorm_export.graph.order import all_graphs, nodes_of, values_in
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.native import SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.op.numerics import NUMERICS_ORDER
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.printable import first_line, plural
from rmsnorm_export.recognize.refusal import FORMERLY, name_of
from rmsnorm_export.rewrite.legalize import Legalizer
from rmsnorm_export.rewrite.options import OptimizeOptions

_INLINED = "_inlfunc_"


def normalise(loaded: LoadedModel, options: OptimizeOptions) -> LoadedModel:
    """Return the model, changed in place, without fused nodes that the target has no use for.

    Its default domain is called by its short name afterwards, and no value inside by a name that
    ONNX Runtime makes.

    This package's operators are replaced by their function bodies, which spell every rounding step.
    SkipSimplifiedLayerNormalization becomes Add and SimplifiedLayerNormalization; in half types it
    normalises a sum that is not rounded, so that both are f32, unless the sum may be rounded.
    RMSNormalization is legalized where runtimes do not take it, whatever the target.
    With single ``sites`` to write out all fused nodes stay.
    """
    model, notes = loaded.model, (*loaded.notes, *_overridable_note(loaded.model))
    _one_default_domain(model)
    _rename_inlined(model)
    if options.sites and options.form == "plain":
        return loaded
    operators, runtime = TARGETS[options.form].operators, options.consumer
    if not any(operator.startswith(DOMAIN) for operator in operators):
        model = _inline_own(model)
    forms = operators if runtime is None else (*runtime.forms, SIMPLIFIED)
    opset = model.opset_imports.get("", 0)
    upcast = NUMERICS_ORDER.index(options.numerics) >= NUMERICS_ORDER.index("upcast")
    keeps = {*operators} & {*forms}
    if options.target is None:
        keeps = {SIMPLIFIED, SKIP_SIMPLIFIED}
    # These express the sum.
    rounded = upcast and not options.sites and options.form in ("portable", "plain")
    legalizer = Legalizer(model, opset, frozenset(keeps), rounded, runtime)
    for graph in all_graphs(model):
        for node in list(graph):
            legalizer.legalize(graph, node)
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
    own = {function.identifier() for function in own_functions(model)}
    if not own:
        return model
    for node in nodes_of(model):
        if node.op_identifier() in own:
            node.metadata_props[FORMERLY] = name_of(node)
    try:
        return inline(model, own)
    except ValueError as error:
        what = "The function bodies of an earlier run cannot be put in the place of their nodes."
        fix = "optimize the original model for this target"
        raise InputError(what, found=first_line(error), fix=fix) from error
