"""``onnx.defs`` schemas of the operators, with type and shape inference.

Registering them is optional: it lets ``onnx.checker`` and ``onnx.shape_inference`` know the nodes
even in a model without the function bodies.
"""

from __future__ import annotations

from typing import Any, get_args

import onnx

from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import (
    ATTRIBUTE_WORDS,
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
    "RotaryRMSNorm": (
        "Root mean square normalisation and the rotary embedding behind it: "
        "T(y * cos + rot(y) * sin), each step rounded to C, with y the norm, rounded to T, and "
        "rot(y) the row in which each pair (a, b) is (-b, a).\n"
        f"{_FORMULA}"
    ),
}

_PLUGIN_ATTRIBUTES = {
    "plugin_version": (PLUGIN_VERSION, "Version of the TensorRT plugin that computes the node."),
    "plugin_namespace": (
        PLUGIN_NAMESPACE,
        "Namespace of the TensorRT plugin that computes the node.",
    ),
}

_TABLE = (
    "of rotary_dim elements, one for each, or of half as many, one for each pair; the dimensions "
    "in front of them broadcast to those of X."
)
_MORE_INPUTS = {
    "SkipRMSNorm": (("residual", "T", "Added to X; of the shape of X."),),
    "GatedRMSNorm": (("gate", "T", "The gate before its activation; of the shape of X."),),
    "RotaryRMSNorm": (
        ("cos", "C", f"Cosines of the angles, {_TABLE}"),
        ("sin", "C", "Sines of the angles, of the shape of cos."),
    ),
}


def schemas() -> tuple[onnx.defs.OpSchema, ...]:
    """The schemas of all operators, newly made, not registered."""
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
    inputs += [schema.FormalParameter(*more) for more in _MORE_INPUTS.get(kind, ())]
    shape = (
        "n elements in the shape of the normalised axes, dimensions of 1 allowed in front, and "
        "for the axes behind the row."
    )
    inputs += [
        schema.FormalParameter("scale", "V", f"Scale, {shape}", param_option=optional),
        schema.FormalParameter("bias", "B", f"Added last, {shape}", param_option=optional),
    ]
    outputs = [schema.FormalParameter("Y", "T", "Output, of the shape of X.")]
    if kind == "SkipRMSNorm":
        outputs.append(
            schema.FormalParameter("sum", "T", "T(X + residual).", param_option=optional)
        )
    types = [f"tensor({type_name(t)})" for t in (FLOAT16, BFLOAT16, FLOAT, DOUBLE)]
    types = [name.replace("float32", "float").replace("float64", "double") for name in types]
    tables = [("C", types, "Tables: T, or float32 for a half T.")]
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
            *(tables if kind == "RotaryRMSNorm" else ()),
        ],
        attributes=[
            schema.Attribute(name, onnx.helper.make_attribute(name, default), words)
            for name, (default, words) in _described_attributes(kind).items()
        ],
    )
    # Before onnx 1.19 Python cannot set the inference; the model's function body then does it.
    if hasattr(made, "set_type_and_shape_inference_function"):
        made.set_type_and_shape_inference_function(_infer)
    return made


def _described_attributes(kind: Kind) -> dict[str, tuple[int | float | str, str]]:
    """Default and meaning of every attribute."""
    values = NormSpec(kind=kind).attributes()
    own = {name: (value, ATTRIBUTE_WORDS[name]) for name, value in values.items()}
    return {**own, **_PLUGIN_ATTRIBUTES}


def _infer(context: Any) -> None:
    """Every output has the type and shape of X."""
    x = context.get_input_type(0)
    for index in range(context.get_num_outputs()):
        context.set_output_type(index, x)
