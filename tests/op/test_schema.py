from typing import get_args

import onnx
import pytest
from norm_models import Case, model

from rmsnorm_export.op.schema import register_schemas, schemas
from rmsnorm_export.op.spec import (
    BFLOAT16,
    DOMAIN,
    FLOAT,
    FLOAT16,
    OPSET_VERSION,
    PLUGIN_NAMESPACE,
    PLUGIN_VERSION,
    Kind,
    NormSpec,
)

KINDS = get_args(Kind)


@pytest.fixture
def registered():
    register_schemas()
    yield
    for kind in KINDS:
        onnx.defs.deregister_schema(kind, OPSET_VERSION, DOMAIN)


def _default(attribute):
    value = onnx.helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("schema", schemas(), ids=KINDS)
def test_attributes_are_those_of_the_spec(schema):
    expected = NormSpec(kind=schema.name).attributes()
    expected.update(plugin_version=PLUGIN_VERSION, plugin_namespace=PLUGIN_NAMESPACE)
    found = {name: _default(attribute) for name, attribute in schema.attributes.items()}
    # float attributes are float32
    assert found.pop("epsilon") == pytest.approx(expected.pop("epsilon"), rel=2**-24)
    assert found == expected
    for name, value in expected.items():
        kind = schema.attributes[name].type.name
        assert kind == {int: "INT", float: "FLOAT", str: "STRING"}[type(value)], name


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs"),
    [
        ("RotaryRMSNorm", ["X", "cos", "sin", "scale", "bias"], ["Y"]),
        ("RMSNorm", ["X", "scale", "bias"], ["Y"]),
        ("SkipRMSNorm", ["X", "residual", "scale", "bias"], ["Y", "sum"]),
        ("GatedRMSNorm", ["X", "gate", "scale", "bias"], ["Y"]),
    ],
)
def test_inputs_and_outputs(kind, inputs, outputs):
    (schema,) = [schema for schema in schemas() if schema.name == kind]
    assert (schema.domain, schema.since_version) == (DOMAIN, OPSET_VERSION)
    assert [parameter.name for parameter in schema.inputs] == inputs
    assert [parameter.name for parameter in schema.outputs] == outputs
    assert (schema.min_input, schema.max_input) == (len(inputs) - 2, len(inputs))
    assert "mean(a_i ** 2)" in schema.doc
    floats = {"tensor(float16)", "tensor(bfloat16)", "tensor(float)", "tensor(double)"}
    assert all(
        set(constraint.allowed_type_strs) == floats for constraint in schema.type_constraints
    )


@pytest.mark.usefixtures("registered")
def test_registering_twice_changes_nothing():
    register_schemas()
    for kind in KINDS:
        assert onnx.defs.get_schema(kind, OPSET_VERSION, DOMAIN).name == kind


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_function", [True, False])
def test_nodes_pass_the_checker_and_get_types(kind, with_function):
    tables = {"table_dtype": FLOAT, "tables": (24,)} if kind == "RotaryRMSNorm" else {}
    proto = model([Case(NormSpec(kind=kind), BFLOAT16, FLOAT, FLOAT16, **tables)], opset=18)
    if not with_function:
        del proto.functions[:]
    onnx.checker.check_model(proto, full_check=True)
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    for output in inferred.graph.output:
        assert output.type.tensor_type.elem_type == BFLOAT16
        assert [dim.dim_value for dim in output.type.tensor_type.shape.dim] == [3, 5, 24]


@pytest.mark.usefixtures("registered")
def test_the_checker_rejects_an_unknown_attribute():
    proto = model([Case(NormSpec(), FLOAT, FLOAT)], opset=18)
    del proto.functions[:]
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("eps", 1e-5))
    with pytest.raises(onnx.checker.ValidationError, match="eps"):
        onnx.checker.check_model(proto)
