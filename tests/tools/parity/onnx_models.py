"""Models of single norms for every target, and what ONNX Runtime's CPU makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

import rmsnorm_export as rx
from rmsnorm_export.errors import VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.numerics import NUMERICS_ORDER
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.runtime.session import open_session, run_session
from rmsnorm_export.torch.export.clean import tidy
from tests.tools.parity.limits import OPTIMIZED, TARGETS
from toolbox.node_model import node_model

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
    """Return what ``rx.export`` writes for a module with one norm, without tracing a module.

    Args:
        spec: the norm.
        operands: graph inputs in order; the first axis is dynamic.
        weights: ``weight`` and ``bias``, where there are some.
    """
    x, *others = operands.values()
    proto, _ = node_model(spec, x, weights.get("weight"), weights.get("bias"), *others or [None])
    model = ir.from_proto(proto)
    model.ir_version, model.graph.opset_imports[""] = 10, OPSET
    # In memory an attribute has all digits of epsilon; protobuf's have those of float32.
    attributes = ir.convenience.convert_attributes(dict(spec.attributes()))
    model.graph.node(0).attributes.update((a.name, a) for a in attributes)
    stored = {"scale": "weight", "bias": "bias"}
    for value in [*model.graph.inputs, *model.graph.outputs]:
        if name := stored.get(value.name or ""):
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(weights[name], name=value.name)
            model.graph.register_initializer(value)
        else:
            value.shape = ir.Shape(["batch", *x.shape[1:]])
    tidy(model)
    files = Files({}, {})
    for target in TARGETS:
        result = rx.optimize(model, target=target)
        classes = {site.numerics for site in (*result.report.fused, *result.report.kept)}
        files.models[target] = result.model
        files.numerics[target] = max(classes, key=NUMERICS_ORDER.index, default="-")
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


def nodes(model: ir.Model) -> list[tuple[str, dict[str, Any]]]:
    """Operators with their attributes, to compare two models."""
    return [
        (node.op_type, {name: a.value for name, a in node.attributes.items()})
        for node in model.graph
    ]
