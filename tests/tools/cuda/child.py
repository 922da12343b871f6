"""Runs ONNX files in the CUDA provider of one ONNX Runtime; a program of its own.

On stdin comes one JSON object: ``models``, each with its path and its inputs (name, type, shape),
``runs`` of each, and of ``Provider.run`` the other arguments. With ``together`` all sessions are
made first, and then run at once, in a thread each. On stdout goes a line of JSON for
each model: the error, the operators by provider, the events of each run, and the last outputs.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import sys
import tempfile
import threading

import numpy as np

CUDA = "CUDAExecutionProvider"
_ALL = re.compile(r"All nodes placed on \[(\w+)\]\. Number of nodes: (\d+)")
_SOME = re.compile(r"Node\(s\) placed on \[(\w+)\]\. Number of nodes: (\d+)")
_ONE = re.compile(r"VerifyEachNodeIsAssignedToAnEp\]\s+(\w+) \((.*)\)")


@contextlib.contextmanager
def _captured(lines):
    """Take what the process writes to stderr, which is where ONNX Runtime logs."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()


def _events(path, begin):
    with open(path) as file:
        return file.read().splitlines()[begin:]


def _placed(log):
    nodes, provider = {}, None
    for line in log:
        if match := _ALL.search(line) or _SOME.search(line):
            provider = match[1]
            nodes.setdefault(provider, [])
            if _ALL.search(line):
                nodes[provider] = int(match[2])
        elif provider and (match := _ONE.search(line)):
            nodes[provider].append(match[1])
    return nodes


_TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_}
_TYPES |= {10: np.float16, 11: np.float64}
_BFLOAT16 = 16


def _value(ort, dtype, shape, device):
    """Return the same random numbers each time; ones of a type that has none."""
    if dtype != _BFLOAT16:
        kind = np.dtype(_TYPES[dtype])
        random = np.random.default_rng(0).standard_normal(shape)
        array = (random if kind.kind == "f" else np.ones(shape)).astype(kind)
        return ort.OrtValue.ortvalue_from_numpy(array, device, 0)
    bits = np.full(shape, 0x3F80, np.uint16)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, dtype)


def _stream():
    """Return the address of a stream that ONNX Runtime has not made."""
    stream = ctypes.c_void_p()
    ctypes.CDLL("libcuda.so.1").cudaStreamCreate(ctypes.byref(stream))
    return stream.value


def _opened(ort, request, model, answer):
    """Make a session; bind its inputs and outputs once: a graph is replayed with their memory."""
    options = ort.SessionOptions()
    options.log_severity_level = 0
    options.log_verbosity_level = 1
    options.intra_op_num_threads = 1
    if library := request.get("library"):
        options.register_custom_ops_library(library)
    provider = {"enable_cuda_graph": str(int(request.get("graph", False)))}
    if request.get("own_stream"):
        answer["stream"] = hex(_stream())
        pointer = str(int(answer["stream"], 16))
        provider |= {"has_user_compute_stream": "1", "user_compute_stream": pointer}
    log = []
    with _captured(log):
        session = ort.InferenceSession(
            model["path"], options, providers=[(CUDA, provider), "CPUExecutionProvider"],
            disabled_optimizers=["BiasSoftmaxFusion"],  # of cuDNN, for which nothing stands in
        )  # fmt: skip
    answer["placed"] = _placed(log)
    device = "cuda" if request.get("graph") else "cpu"
    binding = session.io_binding()
    for name, *one in model["inputs"]:
        binding.bind_ortvalue_input(name, _value(ort, *one, device))
    for one in session.get_outputs():
        binding.bind_output(one.name, device)
    return session, binding


def _run(request, session, binding, events, answer):
    for _ in range(request["runs"]):
        begin = len(_events(events, 0))
        session.run_with_iobinding(binding)
        answer["runs"].append(_events(events, begin))
    if request.get("outputs"):
        values = [value.numpy() for value in binding.get_outputs()]
        answer["outputs"] = [value.astype(np.float64).tolist() for value in values]


@contextlib.contextmanager
def _noted(answer):
    try:
        yield
    except BaseException as error:
        answer["error"] = f"{type(error).__name__}: {error}"[:600]


def _one(ort, request, model, events, answer):
    with _noted(answer):
        opened = _opened(ort, request, model, answer)
        with _captured([]):
            _run(request, *opened, events, answer)


def _together(ort, request, events, answers):
    """Of events nobody knows whose they are: each answer has those of all."""
    opened = [_opened(ort, request, *one) for one in zip(request["models"], answers, strict=True)]
    start = threading.Barrier(len(opened))

    def run(session, binding, answer):
        with _noted(answer):
            start.wait()
            _run(request, session, binding, events, answer)

    threads = [
        threading.Thread(target=run, args=(*one, answer))
        for one, answer in zip(opened, answers, strict=True)
    ]
    with _captured([]):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main():
    request = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    events = os.environ["CUDA_EVENTS"]
    open(events, "a").close()
    import onnxruntime as ort

    answers = [{"error": "", "placed": {}, "runs": []} for _ in request["models"]]
    if request.get("together"):
        _together(ort, request, events, answers)
    for model, answer in zip(request["models"], answers, strict=True):
        if not request.get("together"):
            _one(ort, request, model, events, answer)
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
