"""What ended a build, as an error that says what happened, what was found and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.errors import BackendMissingError, Error, InputError, UsageError
from rmsnorm_export.op.native import KINDS
from rmsnorm_export.printable import one_line, quoted, short
from rmsnorm_export.system.files import is_full
from rmsnorm_export.system.process import Ended, Event
from rmsnorm_export.tensorrt.engine.backends import BackendInfo

_PLUGIN_LOOKUP = "Plugin not found"

_OF_ONNX_RUNTIME = {
    "SkipSimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SimplifiedLayerNormalization",
}


def failure(ended: Ended, info: BackendInfo, *, library: str = "") -> Error:
    """The error for a process that ended without an engine; ``library``: of the plugin."""
    event = ended.first("error")
    version = (ended.first("version") or {}).get("version", "")
    label = f"{info.label} {version}".strip()
    if event is None:
        return _death(ended, info, label)
    text = one_line(str(event.get("text", "")), 400)
    kind = event.get("kind")
    if kind == "import":
        return BackendMissingError(f"{label} cannot be imported.", found=text, fix=info.pip)
    if kind == "plugin":
        return BackendMissingError(
            f"{label} does not load the plugin library.",
            found=f"{short(library, 200)}: {last_errors(ended) or text}",
            fix="rmsnorm-export plugin check says why; --plugin never builds without it",
        )
    if kind == "parse":
        return _parse_failure(ended, label, event["errors"])
    if kind == "shape-input":
        return UsageError(
            "An input decides shapes by its values, which no --shapes can say.",
            found=f"{label} says so of input {quoted(str(event['name']))}",
            fix="export with that input as a constant, or take sizes from other inputs' shapes",
        )
    if kind == "build":
        return _build_failure(last_errors(ended) or text, label, info)
    if kind == "system":
        return InputError(
            "A file of the build cannot be read or written.",
            found=f"{label}: {short(text)}: {short(str(event['file']), 300)}",
            fix="free some space, or write to another folder; nothing was changed"
            if is_full(event["errno"])
            else "check the path and its permissions; nothing was changed",
        )
    if kind == "memory":
        return InputError(
            "Memory ran out.",
            found=f"{label} could not allocate",
            fix="use a machine with more memory",
        )
    return Error(
        f"{label} failed while {_stage_words(ended)}.",
        found=text + _backend_words(ended),
        fix="see rmsnorm-export doctor for the versions, and report this message",
    )


def last_errors(ended: Ended, limit: int = 3) -> str:
    """The errors that the backend gave, the last ones; "" without any."""
    errors = [event["text"] for event in ended.all("message") if event["severity"] == "error"]
    return "; ".join(one_line(text, 500) for text in dict.fromkeys(errors[-limit:]))


def cause(ended: Ended) -> str:
    """How the process died: the signal or exit code, and its last line."""
    last = ended.last_line()
    return f"{ended.how()}{': ' + one_line(last, 400) if last else ''}"


def _stage_words(ended: Ended) -> str:
    stages = [event["stage"] for event in ended.all("stage")]
    doing = {"parse": "reading the model", "build": "building the engine"}
    return doing.get(stages[-1], "inspecting the engine") if stages else "starting"


def _backend_words(ended: Ended) -> str:
    errors = last_errors(ended)
    return f"; it said: {errors}" if errors else ""


def _death(ended: Ended, info: BackendInfo, label: str) -> Error:
    if ended.signal_name() == "SIGKILL":
        fix = "this is what the system does when memory runs out: use a machine with more"
    elif ended.first("version") is None:
        fix = f"{info.pip} --force-reinstall, and see rmsnorm-export doctor"
    else:
        fix = (
            "try another --target of optimize, the raw model, or smaller --shapes; the caller and"
            " all files are as they were"
        )
    return InputError(
        f"{label} ended its process.",
        found=f"while {_stage_words(ended)}, {cause(ended)}{_backend_words(ended)}",
        fix=fix,
    )


def _parse_failure(ended: Ended, label: str, errors: Sequence[Event]) -> Error:
    if not errors:
        return InputError(
            f"{label} cannot read the model.",
            found=last_errors(ended) or "no reason was given",
            fix="check the model with onnx.checker, and export it again",
        )
    first = errors[0]
    op, text = str(first["op"]), one_line(str(first["text"]), 300)
    where = f"node {quoted(str(first['node']))} ({short(op)})" if op else "the file"
    if first["inside"]:
        where += f" inside {', '.join(quoted(str(call)) for call in first['inside'])}"
    more = f"; {len(errors) - 1} more nodes" if len(errors) > 1 else ""
    return InputError(
        f"{label} cannot take the model.",
        found=f"{where}: {text} [{short(str(first['code']))}]{more}",
        fix=_parse_fix(op, text),
    )


def _parse_fix(op: str, text: str) -> str:
    if op in KINDS:
        return (
            "the node has no function body in the file and no plugin is loaded: make the model with"
            " optimize --target portable, or build with the plugin"
        )
    if op in _OF_ONNX_RUNTIME:
        return "that is an operator of ONNX Runtime: make the model with optimize --target portable"
    if op == "RMSNormalization":
        return "this parser lacks the operator: make the model with optimize --target portable"
    if _PLUGIN_LOOKUP in text:
        return (
            "no operator or plugin of that name is known: optimize --target onnx or portable writes"
            " norms that are; for another operator, export it in terms of ONNX"
        )
    return "export the model with other operators there, or at another opset"


def _build_failure(found: str, label: str, info: BackendInfo) -> Error:
    lowered = found.lower()
    if "cuda" in lowered and ("driver" in lowered or "no cuda-capable device" in lowered):
        if info.needs_gpu:
            fix = f"{info.label} builds only where a GPU is; --backend tensorrt-rtx needs none"
        else:
            fix = "check the driver with nvidia-smi"
        return BackendMissingError(f"{label} finds no GPU.", found=found, fix=fix)
    if "profile" in lowered:
        fix = "change --shapes: the profile does not fit the model"
    elif "memory" in lowered or "workspace" in lowered:
        fix = "raise --memory-limit, lower the largest shapes, or free the GPU"
    else:
        fix = "try another --target of optimize, or the raw model, and report what differs"
    return InputError(f"{label} cannot build the engine.", found=found, fix=fix)
