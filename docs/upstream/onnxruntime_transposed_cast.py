"""onnxruntime: Transpose and MatMul in float16 end the process by a segmentation fault at load

x (float16, [B, S, 8]), Transpose with perm [1, 0, 2], MatMul with a constant matrix: two nodes, the
default graph optimization, x86-64 (a processor with avx512_fp16, and emulated Haswell and Nehalem).
On the CPU the MatMul runs in float32, behind an inserted Cast. MatmulTransposeFusion swaps that
Cast with the Transpose (ReorderCastAndTranspose); then it finds that the batch moves and the ranks
of the operands differ, does not fuse, and does not report that it changed the graph. Nothing
resolves it again, so the new nodes have no schema, and NchwcTransformer follows the null pointer of
`node.Op()` (IsSupportedOptypeVersionAndDomain). Issue 28392 is the same with a Cast of the file.
Releases 1.23 to 1.28 and 1.30 to 1.32 do it, 1.22 and 1.29 do not, and none with
ORT_ENABLE_EXTENDED. Where a node without a float16 kernel stands before the Transpose the model is
loaded, until that node is fused into one that has a kernel. Expected: the fusion decides before it
swaps, or reports what it changed.
"""

import subprocess
import sys

SEEN = "onnxruntime 1.31.1"

LOAD = """
import numpy as np
import onnxruntime
from onnx import numpy_helper, parser

model = parser.parse_model('''<ir_version: 8, opset_import: ["" : 18]>
g (float16[B, S, 8] x) => (float16[S, B, 6] y) {
    t = Transpose <perm = [1, 0, 2]> (x)
    y = MatMul (t, w)
}''')
model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 6), np.float16), "w"))
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.LEVEL
onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
"""

codes = {}
for level in ("ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
    code = LOAD.replace("LEVEL", level)
    codes[level] = subprocess.run([sys.executable, "-c", code], check=False).returncode
    print(f"{level}: the process that loads the model ends with {codes[level]}")
raise SystemExit(int(codes["ORT_ENABLE_ALL"] < 0))
