"""onnx: RMSNormalization infers the type of X for Y, where the schema says that of scale

In opset 23 the output is `Y: V`, and V is the type of scale. Shape inference gives Y the type of
X, the reference evaluator too, and the function body multiplies the two types, so that ONNX
Runtime 1.31.1 does not load the model. A model whose Y has the type of the schema fails strict
inference. Expected: the type of scale (or a schema that says `Y: T`), and a body with a Cast.
"""

from onnx import TensorProto, parser, shape_inference

SEEN = "onnx 1.23.2"

model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 23]>
g (float16[2,4] x) => (float[2,4] y) <float[4] scale = {1, 1, 1, 1}> {
    n = RMSNormalization(x, scale)
    y = Identity(n)
}""")
(inferred,) = shape_inference.infer_shapes(model).graph.value_info
kind = inferred.type.tensor_type.elem_type
print("X float16, scale float32, Y by the schema float32, inferred:", end=" ")
print(TensorProto.DataType.Name(kind))
raise SystemExit(kind != TensorProto.FLOAT)
