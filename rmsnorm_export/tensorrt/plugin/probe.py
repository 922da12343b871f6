"""Trying a plugin library in a process of its own: whatever happens to it is a finding.

The events that are out when the process dies say how far it came: ``version``, ``begin`` (a check
is about to be made), ``check`` (it was made), ``creator``, ``untested``, ``end``.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rmsnorm_export.op import abi
from rmsnorm_export.op.spec import PLUGIN_NAMESPACE, PLUGIN_VERSION, Kind, NormSpec, scaled_by
from rmsnorm_export.printable import plural
from rmsnorm_export.system.process import Child, Ended, Request, Say
from rmsnorm_export.tensorrt.plugin import result
from rmsnorm_export.tensorrt.plugin.creators import (
    BoundCreator,
    Creator,
    FailedCheckError,
    has_self_test,
    tested_creators,
)
from rmsnorm_export.tensorrt.plugin.fields import (
    QUANTIZE,
    Value,
    faults,
    field,
    fields_of,
    variants,
)

OUTPUTS: dict[Kind, int] = {kind: 1 + (kind == "SkipRMSNorm") for kind in get_args(Kind)}
"""Of a plugin; quantised row by row it has one more, the scales."""

RUNTIMES = ("tensorrt", "tensorrt_lean", "tensorrt_rtx")
"""Python packages that have TensorRT's plugin registry."""

DIRECT = "none"
"""The runtime's name for a library that is used without TensorRT."""

_OTHER_VERSION = re.compile(r"rmsnorm_export: .*built for \D{0,12}(\d+), found \D{0,12}(\d+)")
"""What a library of ours says when it meets another major version of TensorRT."""


def run_probe(
    runtime: str, style: result.Style, library: Path, *, timeout: float, only_creators: bool = False
) -> result.RuntimeCheck:
    """Load ``library`` in ``runtime`` and try it, in a new process.

    Args:
        runtime: one of ``RUNTIMES`` that is installed, or ``DIRECT``; with the style ``register``
            onnxruntime.
        style: how to load it.
        library: the file.
        timeout: seconds after which the process is ended.
        only_creators: list these and try nothing; with ``DIRECT``.
    """
    request = {
        "runtime": runtime,
        "style": style,
        "library": str(library),
        "only_creators": only_creators,
    }
    module = "native" if style == "register" else "probe"
    task = f"rmsnorm_export.tensorrt.plugin.{module}:main"
    ended = Child(task, request, time_limit=timeout).end()
    checks = tuple(
        result.Check(event["name"], event["passed"], event["detail"])
        for event in ended.all("check")
    )
    creators = tuple(
        result.Creator(event["name"], event["version"], event["namespace"], tuple(event["fields"]))
        for event in ended.all("creator")
    )
    status, detail = _outcome(ended, checks, timeout)
    version = (ended.first("version") or {}).get("version", "")
    return result.RuntimeCheck(
        runtime, version, library.name, style, status, detail, creators, checks
    )


def _outcome(
    ended: Ended, checks: tuple[result.Check, ...], timeout: float
) -> tuple[result.RuntimeStatus, str]:
    """Status and the reason for it."""
    if mismatch := _OTHER_VERSION.search(ended.tail):
        return (
            "incompatible",
            f"the library was built for TensorRT {mismatch[1]}, the runtime is {mismatch[2]}",
        )
    if ended.first("untested") is not None:
        return "missing", "the library has no self-test: it takes a TensorRT runtime to check it"
    last = ended.last_line() or "no message"
    if not ended.events and ended.code == 1:
        return "broken", f"its import failed: {last}"
    if ended.first("end") is None:
        begun = ended.all("begin")
        doing = begun[-1]["name"] if begun else "importing the runtime"
        if ended.code is None:
            return "timeout", f"no end after {timeout:g} s, at: {doing}"
        return "crashed", f"{ended.how()}, at: {doing}; last message: {last}"
    failed = [check for check in checks if not check.passed]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        if len(checks) == 1 and ended.last_line():  # it was not even loaded
            more = f"; last message: {last}"
        return "failed", f"{failed[0].name}: {failed[0].detail}{more}"
    return "passed", ""


class Trying:
    """One check, told of when it begins and ends; what is raised in its block fails it."""

    def __init__(self, say: Say, name: str) -> None:
        self._say, self._name = say, name
        self.passed, self.detail = False, ""

    def __enter__(self) -> Trying:
        self._say("begin", name=self._name)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False
        self.passed = error is None
        if error is not None:
            named = "" if isinstance(error, FailedCheckError) else f"{type(error).__name__}: "
            self.detail = f"{named}{error}"
        self._say("check", name=self._name, passed=self.passed, detail=self.detail)
        return True


def main(request: Request, say: Say) -> None:
    """Try one library, in the process that ``run_probe`` starts."""
    style, library = request["style"], request["library"]
    if style == "functions":
        _ask_functions(say, Path(library))
    elif request["runtime"] == DIRECT:
        _without_runtime(say, library, only=request["only_creators"])
    else:
        _in_runtime(say, request["runtime"], style, library)
    say("end")


def _without_runtime(say: Say, library: str, *, only: bool) -> None:
    """Load the library as it is; its self-test uses its creators."""
    with Trying(say, "dlopen") as loading:
        loaded = ctypes.CDLL(library)
    if not loading.passed:
        return
    if not has_self_test(loaded):
        say("untested")
        return
    with Trying(say, "getCreators") as asking:
        creators = tested_creators(loaded)
        asking.detail = plural(len(creators), "creator")
    if asking.passed:
        _try_creators(say, creators, only_list=only)


def _ask_functions(say: Say, library: Path) -> None:
    """Load the C functions as PyTorch's operators do, and ask for every variant."""
    with Trying(say, "load") as loading:
        functions = abi.functions(library)
    for kind in get_args(Kind) if loading.passed else ():
        for name, spec in variants(kind):
            half = abi.TYPES["float16"]
            problem = abi.Problem(n=256, x=half, scale=half, bias=half, y=half, has_scale=True)
            problem.set_norm(spec)
            with Trying(say, f"{kind}: {name}"):
                if refused := functions.rmsnorm_refusal(ctypes.byref(problem)):
                    raise FailedCheckError(refused.decode())


def _in_runtime(say: Say, runtime: str, style: str, library: str) -> None:
    """Load the library as programs do that use this runtime, and use its creators from Python."""
    trt = importlib.import_module(runtime)
    say("version", version=str(getattr(trt, "__version__", "")))
    logger = trt.Logger(trt.Logger.ERROR)
    registry = trt.get_plugin_registry()
    keep: list[object] = [logger]
    with Trying(say, style) as loading:
        if style == "load_library":
            handle = registry.load_library(library)
            if handle is None:
                raise FailedCheckError("the registry's load_library returned nothing")
            keep.append(handle)
        else:
            keep.append(ctypes.CDLL(library))
    if not loading.passed:
        return
    ours = [c for c in registry.all_creators if c.plugin_namespace == PLUGIN_NAMESPACE]
    _try_creators(say, [BoundCreator(trt, registry, creator) for creator in ours])
    if style == "load_library":
        del ours
        with Trying(say, "deregister_library"):
            registry.deregister_library(keep.pop())
            left = [c for c in registry.all_creators if c.plugin_namespace == PLUGIN_NAMESPACE]
            if left:
                raise FailedCheckError(f"{len(left)} creators are left behind")


def _try_creators(say: Say, creators: Sequence[Creator], *, only_list: bool = False) -> None:
    """Tell of every creator, look for those that there must be, and use each."""
    for creator in creators:
        say(
            "creator",
            name=creator.name,
            version=creator.version,
            namespace=creator.namespace,
            fields=list(creator.fields),
        )
    if only_list:
        return
    for kind in get_args(Kind):
        with Trying(say, f"creator {kind}") as checking:
            checking.detail = _expected(kind, creators)
    for creator in creators:
        _try_creator(say, creator)


def _expected(kind: Kind, creators: Sequence[Creator]) -> str:
    """The operator has a creator, found under the name that its nodes carry."""
    names = (kind, PLUGIN_VERSION, PLUGIN_NAMESPACE)
    for creator in creators:
        if (creator.name, creator.version, creator.namespace) == names:
            attributes = tuple(NormSpec(kind=kind).attributes())
            if creator.fields != attributes:
                raise FailedCheckError(
                    f"its fields are {creator.fields}, the attributes {attributes}"
                )
            return f"{len(attributes)} fields, those of the operator"
    raise FailedCheckError(f"no creator is {names}")


def _try_creator(say: Say, creator: Creator) -> None:
    """Create every variant, and have every fault refused; one of each for a further name."""
    kind = _operator_of(creator)
    if kind is None:
        return
    quantized = "quantize" in creator.fields
    first: dict[str, Value] = {"quantize": QUANTIZE[0]} if quantized else {}
    good = [(name, fields_of(spec, first), first) for name, spec in variants(kind)]
    # An attribute that a model leaves out has its default.
    good.append(("nothing that has a default", [field(*item) for item in first.items()], first))
    if quantized:
        extras: list[dict[str, Value]] = [{"quantize": value} for value in QUANTIZE]
        good += [(str(e["quantize"]), fields_of(NormSpec(kind=kind), e), e) for e in extras]
    bad = list(faults(kind, first))
    if creator.name not in (kind, f"Quantized{kind}"):
        good, bad = good[:1], bad[:1]
    for name, given, extra in good:
        with Trying(say, f"create {creator.name}: {name}") as creating:
            outputs = creator.outputs(given)
            codes = "quantize" in extra
            expected = OUTPUTS[kind] + (codes and scaled_by(str(extra["quantize"])) != "tensor")
            if outputs != expected:
                raise FailedCheckError(f"it has {outputs} outputs, the operator {expected}")
            creating.detail = f"{outputs} outputs"
    for name, fields in bad:
        with Trying(say, f"refuse {creator.name}: {name}") as refusing:
            if creator.accepts(fields):
                raise FailedCheckError("it was accepted")
            refusing.detail = "refused"


def _operator_of(creator: Creator) -> Kind | None:
    """The operator that the creator's fields belong to; None for a plugin of something else."""
    base = [name for name in creator.fields if name != "quantize"]
    for kind in get_args(Kind):
        named = creator.name.removeprefix("Quantized").startswith(kind)
        if named and base == list(NormSpec(kind=kind).attributes()):
            operator: Kind = kind
            return operator
    return None
