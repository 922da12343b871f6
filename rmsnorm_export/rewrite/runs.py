"""Who can run a file: what its norms, opset, format and domains ask of a runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.functions import inline
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.op.native import DEFAULT_DOMAINS, RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.printable import one_line, plural
from rmsnorm_export.rewrite.names import values_in
from rmsnorm_export.runtime.consumers import (
    FUNCTIONS,
    Consumer,
    RunsIn,
    by_name,
    has_operator,
    unknown,
    versions,
)

_IR_OF_TYPES = {
    ir.DataType.BFLOAT16: 8,  # the newest that brought what such a model may need: functions
    ir.DataType.FLOAT8E5M2FNUZ: 9,
    ir.DataType.INT4: 10,
    ir.DataType.FLOAT4E2M1: 11,
}
"""The last element type that a version of the format brought."""


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of a file beside the standard operators.

    Attributes:
        opset, ir_version: versions of the default domain and of the format.
        forms: form of a norm -> name of a node in it.
        operators: other operators that the file does not define, with their domain -> a node.
    """

    opset: int
    ir_version: int
    forms: Mapping[str, str]
    operators: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, model: ir.Model) -> Needs:
        """Return those of ``model``."""
        forms: dict[str, str] = {}
        operators: dict[tuple[str, str], str] = {}
        first: dict[ir.OperatorIdentifier, ir.Node] = {}
        for graph in all_graphs(model):
            for node in graph:
                first.setdefault((node.domain, node.op_type, node.overload), node)
        for key, node in first.items():
            name = node.name or node.op_type
            if key in model.functions:
                forms.setdefault(FUNCTIONS, f"{node.domain}.{node.op_type}, node {name}")
            elif node.op_type in (RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED):
                forms.setdefault(node.op_type, f"node {name}")
            else:
                operators.setdefault(key[:2], name)
        return cls(default_opset(model), model.ir_version, forms, operators)

    def refused_by(self, row: Consumer) -> str:
        """Return why a runtime does not run the file; "" where nothing is known against it."""
        for form, where in self.forms.items():
            if form not in row.forms:
                return f"it was not seen to run {form} ({where})"
        for (domain, operator), name in self.operators.items():
            has = has_operator(row, domain, operator)
            if domain in DEFAULT_DOMAINS:
                if has is False:
                    return f"none of ONNX's own tests of {operator} loads in it (node {name})"
            elif domain not in row.domains or has is False:
                return f"it has no operator {domain}.{operator} (node {name})"
        if row.opset and self.opset > row.opset:
            return f"opset {self.opset}; it loads {row.opset} at most"
        if row.ir and self.ir_version > row.ir:
            return f"format version {self.ir_version}; it loads {row.ir} at most"
        return ""


def runs_in(model: ir.Model) -> tuple[RunsIn, ...]:
    """Tell for every runtime of the table whether it runs ``model``."""
    needs, verdicts = Needs.of(model), []
    for name, rows in by_name().items():
        newest, since = rows[-1], ""
        for row in reversed(rows):
            if needs.refused_by(row):
                break
            since = row.since
        reason = needs.refused_by(newest)
        open_ = "" if reason else unknown(newest, tuple(needs.operators))
        verdicts.append(RunsIn(name, since, versions(rows), reason, newest.evidence, open_))
    return tuple(verdicts)


def fit_model(model: ir.Model, row: Consumer) -> tuple[ir.Model, tuple[str, ...]]:
    """Inline functions and lower the format version as a runtime needs; return the notes, too.

    Raises:
        InputError: the runtime cannot run it: which operator, and why.
    """
    notes = [f"{row.why}; {row.source}"]
    if model.functions and FUNCTIONS not in row.forms:
        count = len(model.functions)
        try:
            model = inline(model)
        except ValueError as error:
            raise _cannot_run(row, f"it has no functions, and {error}") from error
        notes.append(f"{plural(count, 'function')} inlined, for it has none")
    if row.ir and model.ir_version > row.ir >= _needed_ir(model):
        notes.append(f"format version {row.ir} instead of {model.ir_version}")
        model.ir_version = row.ir
    needs = Needs.of(model)
    if reason := needs.refused_by(row):
        raise _cannot_run(row, reason)
    if open_ := unknown(row, tuple(needs.operators)):
        notes.append(open_)
    return model, tuple(notes)


def _cannot_run(row: Consumer, reason: str) -> InputError:
    return InputError(
        f"The runtime {row.name} {row.since} cannot run this model.",
        found=one_line(reason),
        fix="choose another runtime, or see docs/reference/targets.md for what runs where",
    )


def _needed_ir(model: ir.Model) -> int:
    """Return the lowest version of the format that has the element types of ``model``."""
    values = (value for graph in all_graphs(model) for value in values_in(graph))
    newest = max((value.dtype for value in values if value.dtype is not None), default=0)
    return next((version for last, version in _IR_OF_TYPES.items() if newest <= last), 99)
