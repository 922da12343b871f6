"""Models of single norms for every target, and what ONNX Runtime's CPU makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

import rmsnorm_export as rx
from rmsnorm_export.errors import VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import DOMAIN, NormSpec
from rmsnorm_export.runtime.session import open_session, run_session
from rmsnorm_export.torch.export.clean import tidy
from tests.tools.parity.limits import OPTIMIZED, TARGETS

OPSET = 23
"""All three targets can say their norms in it."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Files:
    """One norm or model for every target.

    Attributes:
        models: by target.
        numerics: target -> loosest class of its sites; ``-`` where no site was found.
    """

    models: dict[str, ir.Model]
    numerics: dict[str, str]


def single(spec: NormSpec, operands: Mapping[str, Array], weights: Mapping[str, Array]) -> Files:
    """The model that ``rx.export`` writes for a module with one norm, without tracing a module.

    Args:
        spec: the norm.
        operands: graph inputs in order, named as ``forward`` names them; the first axis is dynamic.
        weights: ``weight`` and ``bias``, where there are some.
    """
    inputs = [_value(name, value, "batch") for name, value in operands.items()]
    kept = {name: _value(name, value) for name, value in weights.items()}
    for name, value in kept.items():
        value.const_value = ir.tensor(weights[name], name=name)
    given = [*inputs, kept.get("weight"), kept.get("bias")]
    while given[-1] is None:
        given.pop()
    names = ("y", "sum")[: 2 if spec.kind == "SkipRMSNorm" else 1]
    outputs = [ir.val(name, dtype=inputs[0].dtype, shape=inputs[0].shape) for name in names]
    attributes = dict(spec.attributes())
    node = ir.node(spec.kind, given, attributes, domain=DOMAIN, outputs=outputs, name="norm")
    opsets = {"": OPSET, DOMAIN: 1}
    graph = ir.Graph(
        inputs, outputs, nodes=[node], initializers=[*kept.values()], opset_imports=opsets
    )
    graph.name = "parity"
    model = ir.Model(graph, ir_version=10)
    tidy(model)
    files = Files({}, {})
    for target in TARGETS:
        result = rx.optimize(model, target=target)
        classes = {site.numerics for site in (*result.report.fused, *result.report.kept)}
        files.models[target] = result.model
        order = ("upcast", "reordered", "exact")
        files.numerics[target] = next((name for name in order if name in classes), "-")
    return files


def run(files: Files, feeds: Mapping[str, Array]) -> tuple[dict[str, list[Array]], dict[str, str]]:
    """Return the outputs by side of ONNX Runtime in order, and why others have none."""
    outputs: dict[str, list[Array]] = {}
    absent: dict[str, str] = {}
    plans = [(target, target, False) for target in TARGETS] + [(OPTIMIZED, "portable", True)]
    for side, target, optimize in plans:
        content = ir.serde.serialize_model(files.models[target]).SerializeToString()
        try:
            session = open_session(content, optimize=optimize, threads=1)
            named = dict(zip([i.name for i in session.get_inputs()], feeds.values(), strict=True))
            outputs[side] = list(run_session(session, named).values())
        except VerificationError as error:
            absent[side] = error.found or error.what
    return outputs, absent


def _value(name: str, value: Array, *first: str) -> ir.Value:
    shape = ir.Shape([*first, *value.shape[len(first) :]])
    return ir.val(name, dtype=ir.DataType.from_numpy(value.dtype), shape=shape)


def nodes(model: ir.Model) -> list[tuple[str, dict[str, Any]]]:
    """Operators with their attributes, to compare two models."""
    return [
        (node.op_type, {name: a.value for name, a in node.attributes.items()})
        for node in model.graph
    ]
