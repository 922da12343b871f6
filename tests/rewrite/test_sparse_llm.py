"""795 GB of weights: loaded, checked and saved without reading one byte of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import onnx
from graph.folders import snapshot
from onnx import TensorProto, helper

# VmHWM, as ru_maxrss counts the process that forked this one too.
MEASURE = """
import json, re, sys, time
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.graph.save import save_model
start = time.process_time()
loaded = load_model(sys.argv[1])
result = save_model(loaded.model, sys.argv[2], weights=sys.argv[3])
print(json.dumps({
    "seconds": time.process_time() - start,
    "mebibytes": int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) / 1024,
    "weights": result.weights,
    "nodes": len(loaded.model.graph),
}))
"""


def externals(path: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    """Name and external entries of every initializer, in order."""
    graph = onnx.load(path, load_external_data=False).graph
    return [(t.name, [(e.key, e.value) for e in t.external_data]) for t in graph.initializer]


def test_load_and_save(tmp_path: Path) -> None:
    folder, weights = tmp_path / "source", "reference"
    folder.mkdir()
    path = make_sparse_llm(folder)
    before = snapshot(folder)
    command = [sys.executable, "-c", MEASURE, path, folder / "out.onnx", weights]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured = json.loads(done.stdout)
    assert 790e9 < (folder / "llm.data").stat().st_size < 800e9
    assert (measured["weights"], measured["nodes"]) == (weights, 126 * 6)
    # Observed: 0.25 s and 98 MiB; the rest is room for a busy machine.
    assert measured["seconds"] < 1
    assert measured["mebibytes"] < 300
    assert externals(folder / "out.onnx") == externals(path)
    after = snapshot(folder)
    after.pop("out.onnx", None)
    assert after == before


# A model whose weights are holes in one sparse file: large, yet nothing on disk.

_LAYERS, _HIDDEN, _WIDE = 126, 16384, 79872
_LAYER = {
    "norm": (_HIDDEN,), "query": (_HIDDEN, _HIDDEN), "output": (_HIDDEN, _HIDDEN),
    "post_norm": (_HIDDEN,), "up": (_HIDDEN, _WIDE), "down": (_WIDE, _HIDDEN),
}  # fmt: skip


def make_sparse_llm(folder: Path) -> Path:
    """Write a bf16 model with the layers and weights of one of 405 billion parameters.

    Each weight is multiplied once; the 795 GB are one file of ``truncate``, at increasing offsets.

    Returns:
        The path of the model file.
    """
    row = [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["batch", _HIDDEN])]
    graph, offset = helper.make_graph([], "decoder", row, []), 0
    for index in range(_LAYERS):
        for weight, dims in _LAYER.items():
            name, size = f"layers.{index}.{weight}", 2 * math.prod(dims)
            source = graph.node[-1].output[0] if graph.node else "x"
            kind = "MatMul" if len(dims) > 1 else "Mul"
            graph.node.append(helper.make_node(kind, [source, name], [f"{name}.out"], name))
            tensor = graph.initializer.add(name=name, data_type=16, dims=dims, data_location=1)
            place = {"location": "llm.data", "offset": str(offset), "length": str(size)}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)
            offset += size
    graph.output.add(name=graph.node[-1].output[0]).type.CopyFrom(row[0].type)
    with (folder / "llm.data").open("wb") as file:
        file.truncate(offset)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "llm.onnx")
    return folder / "llm.onnx"
