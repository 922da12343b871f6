"""Target ``plain``: the function body of the portable operator, written out where the norm stands.

Every site has a body of its own, its constants as initializers and its types by name, so that what
knows neither functions nor ``Constant`` with a number in it, nor CastLike, reads the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.lower.builder import SiteBuilder
from rmsnorm_export.lower.lower import LowerContext, Lowered
from rmsnorm_export.lower.portable import Planned, operands, output_type, plan_site
from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.spec import FLOAT
from rmsnorm_export.recognize.consts import Constants
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal


def lower(matches: Sequence[Match], context: LowerContext) -> list[Lowered | Refusal]:
    """Return the definition of the operator in standard operators, for every match of a model."""
    plans = [plan_site(match, context) for match in matches]
    return [p if isinstance(p, Refusal) else _nodes(p, context) for p in plans]


def is_written(lowered: Lowered) -> bool:
    """Return whether the graph has these nodes already, whatever their names.

    A constant is an initializer; in a function, which has none, it is a node.
    """
    constants, in_function = Constants(), not lowered.part.scope.startswith("main")

    def is_same(old: ir.Value | None, new: ir.Value | None) -> bool:
        if old is new or old is None or new is None:
            return old is new
        node, other = old.producer(), new.producer()
        if other is None:
            array = constants.array(old) if node is None or in_function else None
            if array is None or new.const_value is None:
                return False
            same_type = array.dtype == new.const_value.dtype.numpy()
            return same_type and np.array_equal(array, new.const_value.numpy())
        return (
            node is not None
            and (node.op_identifier(), old.index()) == (other.op_identifier(), new.index())
            and node.attributes == other.attributes
            and len(node.inputs) == len(other.inputs)
            and all(map(is_same, node.inputs, other.inputs))
        )

    return all(is_same(old, new) for old, new in lowered.replace)


def _nodes(plan: Planned, context: LowerContext) -> Lowered:
    part, spec = plan.part, plan.spec
    typed = plan.key.casts or plan.key.table_dtype
    key = dataclasses.replace(plan.key, dtype=part.dtype) if typed else plan.key
    body = build_function(spec.kind, key, context.opset)
    site = SiteBuilder(part, plan.numerics, context, spec.kind)
    inputs, weights = operands(plan, key, site, context.types)
    values: dict[ir.Value | None, ir.Value | None] = {None: None}
    values |= zip(body.inputs, [*inputs, *(value for _, value in weights)], strict=True)
    numbers = {"epsilon": spec.epsilon, "scale_offset": spec.scale_offset}
    results = [part.output, *([] if part.residual is None else [part.sum])]
    if part.quantized is not None and part.quantized.scales is not None:
        results.append(part.quantized.scales)
    replace: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    for node in body:
        output = node.outputs[0]
        label = (output.name or "").rpartition(".")[2]
        if node.op_type == "Constant":
            attribute = next(iter(node.attributes.values()))
            if attribute.is_ref():
                array, dtype = np.array(numbers[str(attribute.ref_attr_name)], np.float32), FLOAT
            else:
                tensor = attribute.as_tensor()
                array, dtype = tensor.numpy(), int(tensor.dtype)
            values[output] = site.shared(array, dtype, label)
            continue
        operands_ = [values[value] for value in node.inputs]
        old = next(
            (old for old, new in zip(results, body.outputs, strict=False) if new is output), None
        )
        if old is part.output:
            written = site.like(old, output_type(part), "output")
            attributes = {a.name: a.value for a in node.attributes.values()}
            site.norm(node.op_type, operands_, attributes, [written])
        else:
            written, *more = site.copy(node, operands_, label)
            values.update(zip(node.outputs[1:], more, strict=True))
            if old is not None:
                written.shape, written.type = old.shape, old.type
        values[output] = written
        if old is not None:
            replace[old] = (old, written)
    return site.lowered(*(replace[old] for old in results if old is not None), notes=plan.notes)
