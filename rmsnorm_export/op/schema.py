"""``onnx.defs`` schemas of the operators, with type and shape inference.

Registering them is optional: it lets ``onnx.checker`` and ``onnx.shape_inference`` know the nodes
even in a model without the function bodies.
"""

from __future__ import annotations

from typing import Any, get_args

import onnx

from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import (
    BFLOAT16,
    DOMAIN,
    DOUBLE,
    FLOAT,
    FLOAT16,
    OPSET_VERSION,
    PLUGIN_NAMESPACE,
    PLUGIN_VERSION,
    Kind,
    NormSpec,
)

_FORMULA = """
For each row a of n elements (the axes of X from `axis` to the last), in the type `stash_type`:

    m   = mean(a_i ** 2)                over the first partial_size elements, or over each group
    rms = sqrt(m + epsilon)             or sqrt(m) + epsilon         (epsilon_outside)
    v   = a / rms                       or T(a) * T(1 / rms)         (round_rstd)
    Y   = T(v) * T(scale_offset + scale) + bias                      in T
    Y   = T(v * (scale_offset + scale) + bias)                       (scale_before_cast)

The defaults are the order of LLaMA: normalise, round to T, multiply by the scale in T.
"""

_DOC: dict[Kind, str] = {
    "RMSNorm": f"Root mean square normalisation.\n{_FORMULA}",
    "SkipRMSNorm": f"sum = T(X + residual), and the root mean square norm of it.\n{_FORMULA}",
    "GatedRMSNorm": (
        "Root mean square normalisation with a gate: Y = T(norm * activation(gate)), or, with "
        "gate_first, the norm of X * activation(gate); the activation is computed in `stash_type`."
        f"\n{_FORMULA}"
    ),
}

_ATTRIBUTES = {
    "epsilon": "Added to the mean square, or to its root.",
    "axis": "First normalised axis, negative; all later axes are normalised with it.",
    "stash_type": "Element type in which the row is normalised.",
    "scale_before_cast": "1: scale in the stash type, then round once. 0: round, then scale in T.",
    "scale_offset": "Added to the scale before it is used (1 for Gemma).",
    "epsilon_outside": "1: epsilon is added to the root instead of to the mean square.",
    "partial_size": "Elements at the start of the row that the mean is taken from; 0: all.",
    "group_size": "Elements of a group, each with its own root mean square; 0: the whole row.",
    "round_rstd": "1: 1 / rms is rounded to T and multiplied with X in T.",
    "association": "In a half stash type, 1: x * (scale / rms); 2: (x * scale) / rms.",
    "activation": "Of the gate: silu or sigmoid.",
    "gate_first": "1: the gate multiplies X before the norm; 0: the gate multiplies the norm.",
    "plugin_version": "Version of the TensorRT plugin that computes the node.",
    "plugin_namespace": "Namespace of the TensorRT plugin that computes the node.",
}

_SECOND_INPUT = {
    "SkipRMSNorm": ("residual", "Added to X; of the shape of X."),
    "GatedRMSNorm": ("gate", "The gate before its activation; of the shape of X."),
}


def schemas() -> tuple[onnx.defs.OpSchema, ...]:
    """The schemas of RMSNorm, SkipRMSNorm and GatedRMSNorm, newly made, not registered."""
    return tuple(_schema(kind) for kind in get_args(Kind))


def register_schemas() -> None:
    """Register the schemas with onnx; those that are registered already stay as they are."""
    for schema in schemas():
        if not onnx.defs.has(schema.name, DOMAIN):
            onnx.defs.register_schema(schema)


def _schema(kind: Kind) -> onnx.defs.OpSchema:
    schema = onnx.defs.OpSchema
    optional = schema.FormalParameterOption.Optional
    inputs = [schema.FormalParameter("X", "T", "Input, [..., n].")]
    if kind in _SECOND_INPUT:
        name, description = _SECOND_INPUT[kind]
        inputs.append(schema.FormalParameter(name, "T", description))
    shape = "n elements in the shape of the normalised axes, leading dimensions of 1 allowed."
    inputs += [
        schema.FormalParameter("scale", "V", f"Gain, {shape}", param_option=optional),
        schema.FormalParameter("bias", "B", f"Added last, {shape}", param_option=optional),
    ]
    outputs = [schema.FormalParameter("Y", "T", "Output, of the shape of X.")]
    if kind == "SkipRMSNorm":
        outputs.append(
            schema.FormalParameter("sum", "T", "T(X + residual).", param_option=optional)
        )
    types = [f"tensor({type_name(t)})" for t in (FLOAT16, BFLOAT16, FLOAT, DOUBLE)]
    types = [name.replace("float32", "float").replace("float64", "double") for name in types]
    made = schema(
        kind,
        DOMAIN,
        OPSET_VERSION,
        _DOC[kind],
        inputs=inputs,
        outputs=outputs,
        type_constraints=[
            ("T", types, "Input and output."),
            ("V", types, "Scale; cast to the type in which the product is computed."),
            ("B", types, "Bias; cast to the type in which the sum is computed."),
        ],
        attributes=[
            schema.Attribute(name, onnx.helper.make_attribute(name, default), _ATTRIBUTES[name])
            for name, default in _defaults(kind).items()
        ],
    )
    # Before onnx 1.19 Python cannot set the inference; the model's function body then does it.
    if hasattr(made, "set_type_and_shape_inference_function"):
        made.set_type_and_shape_inference_function(_infer)
    return made


def _defaults(kind: Kind) -> dict[str, int | float | str]:
    return {
        **NormSpec(kind=kind).attributes(),
        "plugin_version": PLUGIN_VERSION,
        "plugin_namespace": PLUGIN_NAMESPACE,
    }


def _infer(context: Any) -> None:
    """Every output has the type and shape of X."""
    x = context.get_input_type(0)
    for index in range(context.get_num_outputs()):
        context.set_output_type(index, x)
