"""Modules that are loaded when they are first used, not when they are imported."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


def sympy_when_used() -> None:
    """Half of what a command takes to start is SymPy, for which few have a use.

    onnx_ir imports it for arithmetic with symbolic dimensions. For processes of our own: what else
    runs in a process finds a module that is not loaded yet in ``sys.modules``.
    """
    ir = None if "onnx_ir" in sys.modules else importlib.util.find_spec("onnx_ir")
    sympy = None if "sympy" in sys.modules else importlib.util.find_spec("sympy")
    if ir is None or sympy is None:
        return
    for folder in ir.submodule_search_locations or ():
        path = Path(folder, "_symbolic_shapes.py")  # it reads functions of SymPy when it is loaded
        if path.is_file():
            _lazy(importlib.util.spec_from_file_location(f"onnx_ir.{path.stem}", path))
            _lazy(sympy)
            return


class _Lazy(ModuleType):
    """Loaded at the first look at a name; the LazyLoader of Python loads at the first import."""

    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def _lazy(spec: ModuleSpec | None) -> None:
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _Lazy
        sys.modules[spec.name] = module
