"""The runtimes that run a file, by its norms, opset, format and domains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.functions import inline
from rmsnorm_export.graph.opset import default_opset, version_of
from rmsnorm_export.graph.order import all_graphs, graphs_in, values_in
from rmsnorm_export.op.native import RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.op.spec import FLOAT16
from rmsnorm_export.printable import one_line, plural, short
from rmsnorm_export.recognize.functions import reached
from rmsnorm_export.runtime import consumers
from rmsnorm_export.runtime.support import FACTS

_LAST_TYPES = {
    8: ir.DataType.BFLOAT16,
    9: ir.DataType.FLOAT8E5M2FNUZ,
    10: ir.DataType.INT4,
    11: ir.DataType.FLOAT4E2M1,
}
"""Version of the format -> the last element type that it brought; functions came with 8."""


_WIDENED = "a norm of rows of one number, each repeated by a vector"


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of a file on a runtime.

    Attributes:
        opset, ir_version: versions of the default domain and of the format.
        forms: form of a norm -> name of a node in it.
        operators: other operators that the file does not define, with their domain -> a node.
        versions: those of the default domain, with the opset that changed them last -> a node.
        vectors: a norm node whose X has one axis; "" without.
        bfloat16: an operator in that type, and its node, that ONNX Runtime's CPU provider has not.
        half_sum: a node of a norm and its residual sum in float16; "" without.
    """

    opset: int
    ir_version: int
    forms: Mapping[str, str]
    operators: Mapping[tuple[str, str], str]
    versions: Mapping[tuple[str, int], str]
    vectors: str = ""
    bfloat16: str = ""
    half_sum: str = ""

    @classmethod
    def of(cls, model: ir.Model) -> Needs:
        """Return those of ``model``."""
        forms: dict[str, str] = {}
        operators: dict[tuple[str, str], str] = {}
        opsets: dict[tuple[str, int], str] = {}
        vectors = bfloat16 = half_sum = ""
        bodies = (model.functions[key].graph for key in reached(model, frozenset()))
        for node, opset in (
            (node, root.opset_imports.get("", 0))
            for root in (model.graph, *bodies)
            for graph in graphs_in(root)
            for node in graph
        ):
            name = node.name or node.op_type
            if _widens(node):
                forms.setdefault(_WIDENED, f"node {name}")
            if node.op_type in consumers.NO_BFLOAT16 and not node.domain:
                types = (value.dtype for value in node.inputs if value is not None)
                if not bfloat16 and ir.DataType.BFLOAT16 in types:
                    bfloat16 = f"{node.op_type} of bfloat16 (node {name})"
            if node.op_identifier() in model.functions:
                forms.setdefault(consumers.FUNCTIONS, f"{node.domain}.{node.op_type}, node {name}")
            elif node.op_type in (RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED):
                forms.setdefault(node.op_type, f"node {name}")
                x = node.inputs[0] if node.inputs else None
                if x is not None and x.shape is not None and len(x.shape) == 1:
                    vectors = name
                if node.op_type == SKIP_SIMPLIFIED and x is not None and x.dtype == FLOAT16:
                    half_sum = name
            else:
                operators.setdefault((node.domain, node.op_type), name)
                if not node.domain:
                    opsets.setdefault((node.op_type, opset), name)
        versions = {(name, version_of(name, opset)): node for (name, opset), node in opsets.items()}
        ends = default_opset(model), model.ir_version, forms, operators, versions
        return cls(*ends, vectors, bfloat16, half_sum)

    def refused_by(self, row: consumers.Consumer) -> str:
        """Return why a runtime does not run the file; "" where nothing is known against it."""
        for form, where in self.forms.items():
            if form not in row.forms:
                return f"it was not seen to run {form} ({where})"
        if self.vectors and not row.vectors:
            return f"it runs no norm of a single row without other axes (node {self.vectors})"
        if self.half_sum and (lacks := row.lacks_sum(FLOAT16)):
            return f"{lacks} (node {self.half_sum})"
        if absent := self.absent_in(row):
            return absent
        for (operator, version), name in self.versions.items():
            if not row.has_kernel(operator, version):
                return f"it has no kernel for {operator} of opset {version} (node {name})"
        if row.opset and self.opset > row.opset:
            return f"opset {self.opset}; it loads {row.opset} at most"
        if row.ir and self.ir_version > row.ir:
            return f"format version {self.ir_version}; it loads {row.ir} at most"
        return ""

    def without_kernel(self, lacking: str) -> str:
        """Return which of the operators of ``lacking`` the file has, with a node of each, or ""."""
        names = set(lacking.split())
        return ", ".join(
            f"{operator} of opset {version} (node {name})"
            for (operator, version), name in self.versions.items()
            if f"{operator}-{version}" in names
        )

    def absent_in(self, row: consumers.Consumer) -> str:
        """Return which operator, other than a norm, a runtime is known not to have, or ""."""
        for (domain, operator), name in self.operators.items():
            if row.has_operator(domain, operator) is False:
                if not domain:
                    return f"none of ONNX's own tests of {operator} loads in it (node {name})"
                return f"it has no operator {domain}.{operator} (node {name})"
        return ""


def _widens(node: ir.Node) -> bool:
    """Return whether a vector repeats what may be a norm of rows of one number.

    ONNX Runtime takes such a vector for the scale of a norm that squares by Pow, and then refuses
    to run it.
    """
    if node.op_type != "Mul" or node.domain:
        return False
    for value, other in (node.inputs, node.inputs[::-1]):
        producer = None if value is None else value.producer()
        if producer is None or other is None or other.const_value is None:
            continue
        shaped = (v.shape for v in (value, *producer.inputs[:1]) if v is not None)
        row = next((shape for shape in shaped if shape is not None), ir.Shape([]))
        vector = other.const_value.shape
        if _squares_by_pow(producer) and row[-1:] == (1,) and len(vector) == 1 and vector[0] != 1:
            return True
    return False


def _squares_by_pow(node: ir.Node) -> bool:
    """Return whether it divides by the root of a mean of squares, as exporters write that."""
    operators = [node.op_type]
    while len(operators) < 5 and node.inputs:
        value = node.inputs[1 if node.op_type == "Div" else 0]
        if value is None or (producer := value.producer()) is None:
            break
        node = producer
        operators.append(node.op_type)
    return operators == ["Div", "Sqrt", "Add", "ReduceMean", "Pow"]


def _unknown(needs: Needs, row: consumers.Consumer) -> tuple[str, bool]:
    """Return what is not known of a runtime, and whether that is of an operator of the file."""
    parts = [] if row.tried else ["its operators other than norms were not tried"]
    if names := row.unknown(needs.operators):
        parts.append(f"not known whether it has {short(', '.join(names), 200)}")
    if bfloat16 := needs.bfloat16 if is_of_cpu(row) else "":
        parts.append(f"its CPU provider has no {bfloat16}, and others were not tried")
    return "; ".join(parts), bool(names or bfloat16)


def is_of_cpu(row: consumers.Consumer) -> bool:
    """Return whether a runtime is ONNX Runtime with its CPU provider, as far as it was tried."""
    return consumers.ENGINES.get(row.name) == FACTS["bfloat16"]["name"] and row.cuda is None


def lacks_bfloat16(model: ir.Model, row: consumers.Consumer) -> str:
    """Return an operator of the model, with its node, that a runtime lacks in bfloat16, or ""."""
    lacks = Needs.of(model).bfloat16 if is_of_cpu(row) else ""
    return lacks and f"its CPU provider has no {lacks}"


def runs_in(model: ir.Model) -> tuple[consumers.RunsIn, ...]:
    """Return for every runtime of the table whether it runs ``model``."""
    needs, verdicts = Needs.of(model), []
    for name, rows in consumers.BY_NAME.items():
        newest, since = rows[-1], ""
        for row in reversed(rows):
            if needs.refused_by(row):
                break
            since = row.since
        unknown, doubtful = _unknown(needs, newest) if since else ("", False)
        doubtful = doubtful or bool(needs.absent_in(newest))
        facts = consumers.versions(rows), needs.refused_by(newest), newest.evidence
        verdicts.append(consumers.RunsIn(name, since, *facts, unknown, doubtful))
    return tuple(verdicts)


def fit_model(model: ir.Model, row: consumers.Consumer) -> tuple[ir.Model, tuple[str, ...]]:
    """Inline functions and lower the format version as a runtime needs; return the notes, too.

    Raises:
        InputError: the runtime cannot run it: which operator, and why.
    """
    notes = []
    if model.functions and consumers.FUNCTIONS not in row.forms:
        count = len(model.functions)
        try:
            model = inline(model)
        except ValueError as error:
            raise _cannot_run(row, f"it has no functions, and {error}") from error
        notes.append(f"{plural(count, 'function')} inlined, for it has none")
    newest = max((v.dtype for g in all_graphs(model) for v in values_in(g) if v.dtype), default=0)
    if model.ir_version > row.ir and newest <= _LAST_TYPES.get(min(row.ir, 11), -1):
        notes.append(f"format version {row.ir} instead of {model.ir_version}")
        model.ir_version = row.ir
    needs = Needs.of(model)
    if reason := needs.refused_by(row):
        raise _cannot_run(row, reason)
    if row.cuda is not None and (slow := needs.without_kernel(row.cuda.lacks)):
        notes.append(f"its CUDA provider has no kernel for {slow}, which runs on the CPU")
    flow = [name for one in ("If", "Loop", "Scan") if (name := needs.operators.get(("", one)))]
    if row.cuda is not None and flow:
        notes.append(f"enable_cuda_graph is refused for control flow (node {flow[0]})")
    if unknown := _unknown(needs, row)[0]:
        notes.append(f"{unknown}; what is not known is taken as it is")
    return model, tuple(notes)


def _cannot_run(row: consumers.Consumer, reason: str) -> InputError:
    what = f"The runtime {row.label} cannot run this model."
    fix = "choose another runtime, or see docs/reference/targets.md for what runs where"
    return InputError(what, found=one_line(reason), fix=fix)
