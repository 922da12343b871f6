"""Runs ONNX files in the CUDA provider of one ONNX Runtime; a program of its own.

On stdin comes one JSON object: ``models``, each with its path and its inputs (name, type, shape),
``runs`` of each, and of ``Provider.run`` the other arguments. On stdout goes a line of JSON for
each model: the error, the operators by provider, the events of each run, and the last outputs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile

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


def _try(ort, request, model, events):
    options = ort.SessionOptions()
    options.log_severity_level = 0
    options.log_verbosity_level = 1
    options.intra_op_num_threads = 1
    if library := request.get("library"):
        options.register_custom_ops_library(library)
    provider = {"enable_cuda_graph": str(int(request.get("graph", False)))}
    log, answer = [], {"error": "", "placed": {}, "runs": []}
    try:
        with _captured(log):
            session = ort.InferenceSession(
                model["path"], options, providers=[(CUDA, provider), "CPUExecutionProvider"]
            )
        answer["providers"] = session.get_providers()
        answer["placed"] = _placed(log)
        device = "cuda" if request.get("graph") else "cpu"
        feeds = {name: _value(ort, *one, device) for name, *one in model["inputs"]}
        binding = session.io_binding()  # one: a graph is replayed with the memory that it recorded
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        for one in session.get_outputs():
            binding.bind_output(one.name, device)
        for _ in range(request["runs"]):
            begin = len(_events(events, 0))
            with _captured([]):
                session.run_with_iobinding(binding)
            answer["runs"].append(_events(events, begin))
        if request.get("outputs"):
            values = [value.numpy() for value in binding.get_outputs()]
            answer["outputs"] = [value.astype(np.float64).tolist() for value in values]
    except BaseException as error:
        answer["error"] = f"{type(error).__name__}: {error}"[:600]
    return answer


def main():
    request = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    events = os.environ["CUDA_EVENTS"]
    open(events, "a").close()
    import onnxruntime as ort

    for model in request["models"]:
        print(json.dumps(_try(ort, request, model, events)), file=out, flush=True)


if __name__ == "__main__":
    main()
