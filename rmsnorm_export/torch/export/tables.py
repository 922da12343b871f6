"""The tables of PyTorch's exporter, made in each export without work that changes nothing in them.

``torch.onnx.export`` makes a table of translations and one of decompositions in every call. For
the domain of five hundred translations it parses the source of each, it reads the signature of
each again, and for each namespace of operators it looks up all operators of all namespaces. That
is three quarters of the time of a small export, and the tables are the same without.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

_LOCK = threading.Lock()
_entered = 0
_undo = contextlib.ExitStack()


@contextlib.contextmanager
def quick_tables() -> Iterator[None]:
    """While the block runs, exports make their tables the short way; for several threads at once.

    What a version of PyTorch or onnxscript does not have stays as it is.
    """
    global _entered
    with _LOCK:
        if not _entered:
            for owner, name, stand_in in _SHORTCUTS:
                if hasattr(owner, name):
                    original = getattr(owner, name)
                    _undo.callback(setattr, owner, name, original)
                    setattr(owner, name, stand_in(original))
        _entered += 1
    try:
        yield
    finally:
        with _LOCK:
            _entered -= 1
            if not _entered:
                _undo.close()


class _Parsed:
    """A translation's source as it would be parsed: its domain at once, all else when asked."""

    def __init__(self, function: Any, parse: property) -> None:
        self.domain = function.opset.domain
        self._parse = functools.partial(parse.__get__, function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parse(), name)


def _parsed_when_asked(parse: property) -> property:
    return property(lambda function: _Parsed(function, parse))


_signatures: dict[Callable[..., Any], Callable[..., Any]] = {}


def _read_once(read: Callable[..., Any]) -> Callable[..., Any]:
    return _signatures.setdefault(read, functools.cache(read))


def _looked_up_when_new(look_up: Callable[[], None]) -> Callable[[], None]:
    seen: list[str] = []

    def look_up_new() -> None:
        now = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if now != seen:
            look_up()
            seen[:] = now

    return look_up_new


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_SHORTCUTS: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (
        getattr(_module("onnxscript.values"), "TracedOnnxFunction", None),
        "function_ir",
        _parsed_when_asked,
    ),
    (
        _module("torch.onnx._internal.exporter._schemas"),
        "op_signature_from_function",
        _read_once,
    ),
    (_module("torch._export.utils"), "_materialize_cpp_cia_ops", _looked_up_when_new),
)
"""Owner and name of each function, and what makes of it the one that does the same in less."""
