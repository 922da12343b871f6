"""A model at the opset that the target, the runtime or the user needs, and its plan there."""

from __future__ import annotations

import dataclasses

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.graph.opset import convert_opset, default_opset
from rmsnorm_export.lower.lower import refuse_match
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.native import RMS_NORMALIZATION
from rmsnorm_export.rewrite.apply import apply_plan
from rmsnorm_export.rewrite.converted import check_conversion
from rmsnorm_export.rewrite.options import OptimizeOptions
from rmsnorm_export.rewrite.plan import Plan, plan_rewrite


def plan_at_opset(loaded: LoadedModel, options: OptimizeOptions) -> tuple[LoadedModel, Plan]:
    """Bring a model to the opset that the target or the user needs, and plan its rewrite.

    It is not raised where no norm would be written, unless the user wants it; where the target
    needs it and it cannot be, every site is refused.

    Raises:
        InputError: it cannot be brought to the opset that the user, or the runtime, wants.
    """
    least, opset = TARGETS[options.target or "portable"].min_opset, default_opset(loaded.model)
    newest = opset if options.consumer is None else options.consumer.opset or opset
    final = options.opset or (newest if least <= newest < opset else opset)
    if final < opset:
        loaded = _converted(_spelled(loaded), final)
    elif final > opset:
        loaded = _converted(loaded, final)
    if least <= final:
        return loaded, plan_rewrite(loaded.model, options)
    try:
        raised = _converted(loaded, least)
    except InputError as error:
        plan = plan_rewrite(loaded.model, options)
        words, found, fix = f"the target needs opset {least}", error.found, error.fix
        plan = plan.without({
            site: refuse_match(site.part, "opset", words, found, fix) for site in plan.sites
        })  # fmt: skip
        refusals = (
            dataclasses.replace(one, message=words, found=found, hint=fix)
            if one.reason == "opset" else one
            for one in plan.refusals
        )  # fmt: skip
        return loaded, dataclasses.replace(plan, refusals=tuple(refusals))
    plan = plan_rewrite(raised.model, options)
    if plan.sites or plan.kept:
        return raised, plan
    return loaded, plan_rewrite(loaded.model, options)


def _spelled(loaded: LoadedModel) -> LoadedModel:
    """Return the model with its RMSNormalization nodes, which no older opset has, written out."""
    options = OptimizeOptions(target="plain", sites=("*",), numerics="exact")
    plan = plan_rewrite(loaded.model, options)
    others = (site for site in plan.sites if site.part.native != RMS_NORMALIZATION)
    words = "the node is of every opset"
    plan = plan.without({s: refuse_match(s.part, "opset", words, found=words) for s in others})
    apply_plan(plan)
    return dataclasses.replace(loaded, model=plan.model)


def _converted(loaded: LoadedModel, opset: int) -> LoadedModel:
    """Return the model at ``opset``, with a note.

    Raises:
        InputError: it cannot be brought to it.
    """
    before, (source, model) = default_opset(loaded.model), convert_opset(loaded.model, opset)
    check_conversion(source, model)
    verb = "raised" if before < opset else "lowered"
    note = f"{verb} from opset {before} to {opset} by onnx.version_converter"
    note += ", functions inlined" if loaded.model.functions else ""
    if any(node.device_configurations for node in loaded.model.graph.all_nodes()):
        note += "; how its nodes are spread over devices is not carried over"
    return dataclasses.replace(loaded, model=model, notes=(*loaded.notes, note))
