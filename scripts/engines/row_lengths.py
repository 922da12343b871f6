"""One RMSNormalization alone, by length of the row: for scripts/engines/run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_export.tensorrt.engine.build import build_engine

ROW_LENGTHS = (64, 1000, 4096, 8192, 12288, 16384, 65536, 262144)
ROW_TYPES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
ROW_TYPES |= {"float32": TensorProto.FLOAT}
ROWS = 4096


def model(n: int, dtype: str) -> onnx.ModelProto:
    """The norm of [rows, n]."""
    kind = ROW_TYPES[dtype]
    weight = np.ones(n, helper.tensor_dtype_to_np_dtype(kind))
    graph = helper.make_graph(
        [helper.make_node("RMSNormalization", ["x", "w"], ["y"], name="norm")],
        "one_norm",
        [helper.make_tensor_value_info("x", kind, ["rows", n])],
        [helper.make_tensor_value_info("y", kind, ["rows", n])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def row_lengths(folder: Path, backend: str) -> list[dict[str, Any]]:
    """Kernels of the norm for every length and type, up to 4096 rows."""
    found = []
    for dtype in ROW_TYPES:
        for n in ROW_LENGTHS:
            result = build_engine(
                model(n, dtype),
                folder / "row.engine",
                shapes={"x": ((1, n), (16, n), (ROWS, n))},
                backend=backend,  # type: ignore[arg-type]
                force=True,
            )
            (norm,) = result.record.norms
            found.append({"n": n, "dtype": dtype, "how": norm.how, "names": norm.names})
    return found
