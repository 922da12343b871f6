"""What ended a process of a backend, as an error that says what happened and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rmsnorm_export.errors import BackendMissingError, Error, InputError
from rmsnorm_export.op.native import KINDS
from rmsnorm_export.printable import one_line, quoted, short
from rmsnorm_export.system.process import Ended
from rmsnorm_export.tensorrt.engine.backends import RTX, BackendInfo

_PORTABLE = "make the model with optimize --target portable"
_OF_ONNX_RUNTIME = r"(Skip)?(Simplified)?LayerNormalization"

_NO_GPU = re.compile(r"cuda driver|no cuda-capable device|cudaerror 35\b|cudaerror 100\b", re.I)
"""What a runtime says where no GPU, or no driver for it, is; TensorRT-RTX 1.7.1: cudaError 35."""

_FIXES = (
    (r"SIGKILL|MemoryError", "the memory ran out: use a machine with more"),
    (r"No space left|File too large|quota", "free some space, or write to another folder"),
    (r"load_library|getCreators", "rmsnorm-export plugin check says why; or use --plugin never"),
    (r"profile", "change --shapes: the profile does not fit the model"),
    (r"memory|workspace", "raise --memory-limit, lower the largest shapes, or free the GPU"),
)
_OTHERWISE = "try another --target of optimize, or the raw model, and report what differs"


def cause(answer: Ended) -> str:
    """Return the last errors of the backend and how its process ended."""
    lines = [line for line in answer.tail.splitlines() if line.startswith("error: ")]
    last = dict.fromkeys([*lines[-3:], answer.last_line()])
    return "; ".join([answer.how(), *(one_line(line, 400) for line in last if line)])


def failure(answer: Ended, info: BackendInfo, file: str, what: str, fix: str = "") -> Error:
    """Return the error for a process that ended without a result; ``what`` became of a file."""
    text = f"{file}: {cause(answer)}"
    own = answer.last_line().startswith("ValueError: ")  # of worker
    if _NO_GPU.search(text) and not own:
        fix = f"use a machine with a GPU{'' if info is RTX else ', or --backend tensorrt-rtx'}"
        return BackendMissingError(f"{info.label} finds no GPU.", found=text, fix=fix)
    if re.search(r"\b(ImportError|ModuleNotFoundError)\b", text):
        return BackendMissingError(f"{info.label} cannot be imported.", found=text, fix=info.pip)
    known = (words for pattern, words in _FIXES if re.search(pattern, text, re.I))
    return InputError(f"{info.label} {what}", found=text, fix=next(known, fix or _OTHERWISE))


def refused(errors: Sequence[dict[str, Any]], answer: Ended, info: BackendInfo) -> InputError:
    """Return the error for a model that the parser does not take."""
    if not errors:
        fix = "check the model with onnx.checker, and export it again"
        return InputError(f"{info.label} cannot read the model.", found=cause(answer), fix=fix)
    first = errors[0]
    op, text = str(first["op"]), one_line(str(first["text"]), 300)
    where = f"node {quoted(str(first['node']))} ({short(op)})" if op else "the file"
    if first["inside"]:
        where += f" inside {quoted(str(first['inside']))}"
    more = f"; {len(errors) - 1} more nodes" if len(errors) > 1 else ""
    fix = "export the model with other operators there, or at another opset"
    if op in KINDS:
        fix = f"the node has no function body and no plugin is loaded: {_PORTABLE}"
    elif re.fullmatch(_OF_ONNX_RUNTIME, op):
        fix = f"that is an operator of ONNX Runtime: {_PORTABLE}"
    elif op == "RMSNormalization":
        fix = f"this parser lacks the operator: {_PORTABLE}"
    elif "Plugin not found" in text:
        fix = "no operator or plugin of that name is known: export it in terms of ONNX"
    return InputError(
        f"{info.label} cannot take the model.",
        found=f"{where}: {text} [{short(str(first['code']))}]{more}",
        fix=fix,
    )
