"""onnxruntime: ReduceMax and ReduceMin drop a NaN that is not the first of its row

ReduceMax of [1, NaN, 2, 3] is 3, that of [NaN, 1, 2, 3] is NaN: whether a NaN is seen depends on
where it is, and what is scaled by the largest of a row (codes of int8 and FP8) then hides it.
Expected: NaN wherever it is, as NumPy, PyTorch and the reference evaluator of onnx have it, and as
Max of two tensors has it here. (CPU)
"""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SEEN = "onnxruntime 1.31.1"


def reduced(op: str, rows: np.ndarray) -> np.ndarray:
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "axes"], ["y"], keepdims=0)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])],
        [numpy_helper.from_array(np.array([-1], np.int64), "axes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": rows})[0]


rows = np.tile(np.arange(1, 9, dtype=np.float32), (8, 1))
np.fill_diagonal(rows, np.nan)
missed = 0
for op in ("ReduceMax", "ReduceMin"):
    found = reduced(op, rows)
    print(f"{op} of rows with a NaN at 0, 1, ... 7: {found.tolist()}")
    missed += int(np.count_nonzero(~np.isnan(found)))
raise SystemExit(missed > 0)
