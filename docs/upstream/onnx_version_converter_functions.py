"""onnx: version_converter.convert_version drops the functions of a model

The converted model calls `example.F`, and nothing defines it any more: `functions` is empty, and
no runtime loads it. Expected: the functions are kept (and converted), or an error.
"""

import onnx
from onnx import TensorProto, helper, version_converter

SEEN = "onnx 1.23.2"

body = [helper.make_node("Neg", ["x"], ["y"])]
opset = helper.make_opsetid("", 18)
function = helper.make_function("example", "F", ["x"], ["y"], body, [opset])
values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
call = helper.make_node("F", ["x"], ["y"], domain="example")
model = helper.make_model(
    helper.make_graph([call], "g", values[:1], values[1:]),
    opset_imports=[opset, helper.make_opsetid("example", 1)],
    functions=[function],
    ir_version=10,
)
onnx.checker.check_model(model, full_check=True)
converted = version_converter.convert_version(model, 21)
print("functions before:", len(model.functions), "after:", len(converted.functions))
print("nodes after:", [f"{node.domain}.{node.op_type}" for node in converted.graph.node])
raise SystemExit(bool(not converted.functions and converted.graph.node[0].op_type == "F"))
