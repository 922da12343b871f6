"""Trying a plugin library: what ``check`` runs in a process of its own.

The events that are out when the process dies say how far it came: ``version``, ``begin`` (a check
is about to be made), ``check`` (it was made), ``creator``, ``end``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from rmsnorm_export.op.spec import PLUGIN_NAMESPACE, PLUGIN_VERSION, Kind, NormSpec
from rmsnorm_export.system.process import Request, Say
from rmsnorm_export.tensorrt.plugin.creators import (
    CREATOR_KIND,
    BoundCreator,
    Creator,
    DirectCreator,
    FailedCheckError,
    direct_creators,
)
from rmsnorm_export.tensorrt.plugin.fields import (
    QUANTIZE,
    Field,
    Value,
    faults,
    fields_of,
    variants,
)

OUTPUTS: dict[Kind, int] = {"RMSNorm": 1, "SkipRMSNorm": 2, "GatedRMSNorm": 1}
"""Of a plugin; quantised row by row it has one more, the scales."""


def _make_check(say: Say, name: str, made: Callable[[], str]) -> bool:
    """Make one check, and tell of it at once; ``made`` returns a remark, or raises."""
    say("begin", name=name)
    try:
        passed, detail = True, made()
    except FailedCheckError as failed:
        passed, detail = False, str(failed)
    except Exception as error:
        passed, detail = False, f"{type(error).__name__}: {error}"
    say("check", name=name, passed=passed, detail=detail)
    return passed


def main(request: Request, say: Say) -> None:
    """Try one library; ``request`` is that of ``run_probe``."""
    style, library = request["style"], request["library"]
    if request["runtime"] == "none":
        _without_runtime(say, style, library, only=request["only_creators"])
    else:
        _in_runtime(say, request["runtime"], style, library)
    say("end")


def _without_runtime(say: Say, style: str, library: str, *, only: bool) -> None:
    """Load the library as it is; what hands out its creators is used without TensorRT."""
    loaded: list[ctypes.CDLL] = []

    def open_library() -> str:
        loaded.append(ctypes.CDLL(library))
        return ""

    if not _make_check(say, "dlopen", open_library) or style != "load_library":
        return
    creators: list[DirectCreator] = []

    def ask() -> str:
        creators.extend(direct_creators(loaded[0]))
        if wrong := [creator.kind for creator in creators if creator.kind != CREATOR_KIND]:
            raise FailedCheckError(f"getCreators gives out {wrong}, expected {CREATOR_KIND}")
        return f"{len(creators)} creators"

    if _make_check(say, "getCreators", ask):
        _try_creators(say, creators, only_list=only)


def _in_runtime(say: Say, runtime: str, style: str, library: str) -> None:
    """Load the library as programs do that use this runtime, and use its creators from Python."""
    trt = importlib.import_module(runtime)
    say("version", version=str(getattr(trt, "__version__", "")))
    logger = trt.Logger(trt.Logger.ERROR)
    registry = trt.get_plugin_registry()
    keep: list[object] = [logger]

    def load() -> str:
        if style == "load_library":
            handle = registry.load_library(library)
            if handle is None:
                raise FailedCheckError("the registry's load_library returned nothing")
            keep.append(handle)
        else:
            keep.append(ctypes.CDLL(library))
        return ""

    if not _make_check(say, style, load):
        return
    ours = [c for c in registry.all_creators if c.plugin_namespace == PLUGIN_NAMESPACE]
    _try_creators(say, [BoundCreator(trt, registry, creator) for creator in ours])
    if style == "load_library":
        del ours

        def unload() -> str:
            registry.deregister_library(keep.pop())
            left = [c for c in registry.all_creators if c.plugin_namespace == PLUGIN_NAMESPACE]
            if left:
                raise FailedCheckError(f"{len(left)} creators are left behind")
            return ""

        _make_check(say, "deregister_library", unload)


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
    _check_expected(say, creators)
    for creator in creators:
        _try_creator(say, creator)


def _check_expected(say: Say, creators: Sequence[Creator]) -> None:
    """Every operator has a creator, found under the name that its nodes carry."""
    for kind in get_args(Kind):

        def ask(kind: Kind = kind) -> str:
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

        _make_check(say, f"creator {kind}", ask)


def _try_creator(say: Say, creator: Creator) -> None:
    """Create every variant, and have every fault refused; one of each for a further name."""
    kind = _operator_of(creator)
    if kind is None:
        return
    quantized = "quantize" in creator.fields
    first: dict[str, Value] = {"quantize": QUANTIZE[0]} if quantized else {}
    good = [(name, spec, first) for name, spec in variants(kind)]
    if quantized:
        good += [(value, NormSpec(kind=kind), {"quantize": value}) for value in QUANTIZE]
    bad = list(faults(kind, first))
    if creator.name not in (kind, f"Quantized{kind}"):
        good, bad = good[:1], bad[:1]
    for name, spec, extra in good:

        def create(spec: NormSpec = spec, extra: dict[str, Value] = extra) -> str:
            outputs = creator.outputs(fields_of(spec, extra))
            expected = OUTPUTS[spec.kind] + str(extra.get("quantize", "")).endswith("_per_row")
            if outputs != expected:
                raise FailedCheckError(f"it has {outputs} outputs, the operator {expected}")
            return f"{outputs} outputs"

        _make_check(say, f"create {creator.name}: {name}", create)
    for name, fields in bad:

        def refuse(fields: list[Field] = fields) -> str:
            with _refusing():
                if creator.create(fields) is not None:
                    raise FailedCheckError("it was accepted")
            return "refused"

        _make_check(say, f"refuse {creator.name}: {name}", refuse)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """An exception of the bindings is a refusal, too."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError):
        return


def _operator_of(creator: Creator) -> Kind | None:
    """The operator that the creator's fields belong to; None for a plugin of something else."""
    base = [name for name in creator.fields if name != "quantize"]
    for kind in get_args(Kind):
        named = creator.name.removeprefix("Quantized").startswith(kind)
        if named and base == list(NormSpec(kind=kind).attributes()):
            operator: Kind = kind
            return operator
    return None
