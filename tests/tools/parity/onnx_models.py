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
from tests.tools.parity.measure import OPTIMIZED, TARGETS

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
    inputs = [
        ir.val(name, dtype=_dtype(value), shape=ir.Shape(["batch", *value.shape[1:]]))
        for name, value in operands.items()
    ]
    kept = {name: ir.val(name, const_value=ir.tensor(v, name=name)) for name, v in weights.items()}
    for name, value in kept.items():
        value.dtype, value.shape = _dtype(weights[name]), ir.Shape(weights[name].shape)
    count = 2 if spec.kind == "SkipRMSNorm" else 1
    given = [*inputs, kept.get("weight"), kept.get("bias")]
    while given[-1] is None:
        given.pop()
    attributes = dict(spec.attributes())
    node = ir.node(spec.kind, given, attributes, domain=DOMAIN, num_outputs=count, name="norm")
    for name, value in zip(("y", "sum"), node.outputs, strict=False):
        value.name, value.dtype, value.shape = name, inputs[0].dtype, inputs[0].shape
    graph = ir.Graph(
        inputs,
        node.outputs,
        nodes=[node],
        initializers=list(kept.values()),
        opset_imports={"": OPSET, DOMAIN: 1},
        name="parity",
    )
    model = ir.Model(graph, ir_version=10)
    tidy(model)
    return for_targets(model)


def for_targets(model: ir.Model) -> Files:
    """``rx.optimize`` of one model for every target."""
    found = Files({}, {})
    for target in TARGETS:
        result = rx.optimize(model, target=target)
        sites = [*result.report.fused, *result.report.kept]
        classes = {site.numerics for site in sites}
        found.models[target] = result.model
        order = ("upcast", "reordered", "exact")
        found.numerics[target] = next((name for name in order if name in classes), "-")
    return found


def run(files: Files, feeds: Mapping[str, Array]) -> tuple[dict[str, list[Array]], dict[str, str]]:
    """Outputs by side of ONNX Runtime in order, and for the others why there are none."""
    found: dict[str, list[Array]] = {}
    absent: dict[str, str] = {}
    plans = [(target, target, False) for target in TARGETS] + [(OPTIMIZED, "portable", True)]
    for side, target, optimize in plans:
        content = ir.serde.serialize_model(files.models[target]).SerializeToString()
        try:
            session = open_session(content, optimize=optimize, threads=1)
            named = dict(zip([i.name for i in session.get_inputs()], feeds.values(), strict=True))
            found[side] = list(run_session(session, named).values())
        except VerificationError as error:
            absent[side] = reason(error)
    return found, absent


def reason(error: VerificationError) -> str:
    """Why ONNX Runtime has no numbers, in a few words."""
    text = error.found or error.what
    if "NOT_IMPLEMENTED" in text:
        _, _, rest = text.partition("implementation for ")
        return f"no kernel for {rest.split(' node')[0] or 'an operator'} in this type"
    return text[:160]


def _dtype(value: Array) -> ir.DataType:
    return ir.DataType.from_numpy(value.dtype)


def nodes(model: ir.Model) -> list[tuple[str, dict[str, Any]]]:
    """Operators with their attributes, to compare two models."""
    return [
        (node.op_type, {name: a.value for name, a in node.attributes.items()})
        for node in model.graph
    ]
