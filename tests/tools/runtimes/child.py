"""Runs ONNX files in one runtime; a program of its own, for the environment of that runtime.

Its argument is the name of a function below. On stdin comes one JSON object: the file with the
input as raw float32, its shape, how many sessions are to run each model how often, and for each
model its path and the file with the expected output. On stdout goes a line of JSON for each model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import numpy as np


def onnxruntime(path, x):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = path + ".optimized"
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"input": x})[0]


def onnx_reference(path, x):
    from onnx.reference import ReferenceEvaluator

    session = ReferenceEvaluator(path)
    return lambda: session.run(None, {"input": x})[0]


def openvino(path, x):
    import openvino as ov

    core = ov.Core()
    # The CPU plugin computes f32 models in bf16 where the processor can.
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()

    def run():
        return request.infer({0: x})[0]

    nodes = compiled.get_runtime_model().get_ops()
    run.norms = sum(node.get_rt_info()["layerType"].astype(str) == "RMS" for node in nodes)
    return run


def opencv(path, x):
    import cv2

    net = cv2.dnn.readNetFromONNX(path)

    def run():
        net.setInput(x)
        return net.forward()

    return run


def tract(path, x):
    from tract import onnx

    model = onnx().load(path).into_model().into_runnable()
    return lambda: model.run([x])[0].to_numpy()


def tvm(path, x):
    import onnx
    import tvm as runtime
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(onnx.load(path), keep_params_in_input=False)
    module = relax.transform.DecomposeOpsForInference()(module)
    built = runtime.compile(relax.transform.LegalizeOps()(module), target="llvm")
    machine = relax.VirtualMachine(built, runtime.cpu())

    def run():
        result = machine["main"](runtime.runtime.tensor(x))
        return (result[0] if hasattr(result, "__len__") and len(result) == 1 else result).numpy()

    return run


def iree(path, x):
    import iree.compiler as compiler
    import iree.runtime as runtime

    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "model.mlir")
        command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", path, "-o", source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        code = compiler.compile_file(
            source,
            target_backends=["llvm-cpu"],
            input_type="onnx",
            extra_args=["--iree-llvmcpu-target-cpu=generic"],
        )
    # The plain entry waits for its result; the other, which the importer names, takes fences.
    module = runtime.load_vm_flatbuffer(code, driver="local-sync")
    names = [name for name in module.vm_module.function_names if not name.startswith("__")]
    entry = next(name for name in names if not name.endswith("$async"))
    return lambda: module[entry](x).to_host()


def main():
    request = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a runtime prints is no answer
    x = np.fromfile(request["input"], np.float32).reshape(request["shape"])
    prepare = globals()[sys.argv[1]]
    for model in request["models"]:
        expected = np.fromfile(model["expected"], np.float32)
        answer = {"error": "", "off": []}
        try:
            for _ in range(request["sessions"]):
                run = prepare(model["model"], x)
                if hasattr(run, "norms"):
                    answer["norms"] = run.norms
                for _ in range(request["runs"]):  # the second run meets the memory of the first
                    y = np.asarray(run()).astype(np.float32).ravel()
                    off = np.abs(y - expected).max() if y.shape == expected.shape else np.inf
                    answer["off"].append(float(np.nan_to_num(off, nan=1e30, posinf=1e30)))
        except BaseException as error:  # Rust panics derive from it
            answer["error"] = f"{type(error).__name__}: {error}"[:600] or type(error).__name__
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
