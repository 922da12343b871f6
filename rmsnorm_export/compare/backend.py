"""The runtimes of a comparison: one class for each, which runs one of the two models."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Literal

import onnx_ir as ir

from rmsnorm_export.compare.backends import BACKENDS
from rmsnorm_export.errors import NotRunError, UsageError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import short
from rmsnorm_export.runtime.inputs import Limits
from rmsnorm_export.runtime.sizes import Declared
from rmsnorm_export.system.packages import require_package
from rmsnorm_export.tensorrt.engine.backends import is_engine

ModelKind = Literal["onnx", "pytorch", "engine"]
"""``onnx`` is every model that is neither of the others."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The outputs of a model, by name and in order.

    Attributes:
        outputs: the arrays.
        named: the names are the model's own; False: the order is what identifies an output.
    """

    outputs: Mapping[str, Array]
    named: bool = True


RunModel = Callable[[Mapping[str, Array]], Answer]
"""Every output on these inputs; a ``VerificationError`` where the model does not run on them."""


ReadValues = Callable[[Sequence[str]], Mapping[str, Array]]
"""Values inside by name; one that cannot be had is absent, or a ``VerificationError``."""


Searchable = tuple[ir.Model, ReadValues]
"""A model as a graph, and what reads the values of its main graph."""


class Backend(abc.ABC):
    """A model and the runtime that runs it.

    Its module imports the runtime's packages inside functions, so that ``require`` can name what is
    missing. ``backends.BACKENDS`` has one row for each class.

    Attributes:
        name: as users choose it.
        runtime: what runs it, with its version, e.g. ``onnxruntime 1.31.1 (CPU)``.
        takes: kinds of models that it runs.
        reduced: why it computes float32 with fewer digits, see ``outputs.Bounds``; or "".
        notes: what the user has to know of how it was loaded.
    """

    __slots__ = ()

    takes: ClassVar[frozenset[ModelKind]] = frozenset({"onnx"})
    reduced: str = ""
    notes: Sequence[str] = ()

    @property
    @abc.abstractmethod
    def name(self) -> str: ...

    @property
    @abc.abstractmethod
    def runtime(self) -> str: ...

    @classmethod
    def require(cls, name: str) -> None:
        """Raise ``BackendMissingError``, before any work, where a package or a GPU is missing."""
        del name

    @classmethod
    @abc.abstractmethod
    def open(cls, model: Any, name: str, *, optimize: bool, trust_source: bool) -> Backend:
        """Make a model ready to the point where work begins.

        Args:
            model: as for ``rmsnorm_export.verify``.
            name: of the backend.
            optimize: leave the runtime's own graph optimization on, where it has one.
            trust_source: a .pt2 file may run what it holds.

        Raises:
            UsageError, InputError, BackendMissingError: as for ``rmsnorm_export.verify``.
        """

    def declared(self) -> Mapping[str, Declared] | None:
        """Return its inputs by name; None: it takes whatever the other model takes."""
        return None

    def shapes(self) -> Mapping[str, Sequence[int]]:
        """Return shapes that its inputs should have, as far as it insists on some."""
        return {}

    def limits(self) -> Limits:
        """Return integer inputs that must stay below a number, or be one."""
        return {}

    @abc.abstractmethod
    def running(self) -> AbstractContextManager[RunModel]:
        """Load the model; what that takes is given back at the end of the block."""

    def searched(self, feeds: Mapping[str, Array]) -> AbstractContextManager[Searchable]:
        """Make values inside available on these inputs, for as long as the block lasts.

        Raises:
            Error: they cannot be had.
        """
        what = f"The backend {self.name} gives no values inside."
        raise NotRunError(what, found=", ".join(feeds), fix="compare in ONNX Runtime")


_FACTORY = re.compile(r"([\w.]+|.+\.py):[\w.]+")
"""``package.module:factory`` or ``file.py:factory``."""

_AUTO: dict[ModelKind, str] = {"onnx": "onnxruntime", "pytorch": "torch", "engine": "engine"}


def choose_backend(
    model: Any, choice: str, trust_source: bool, *, optimize: bool
) -> functools.partial[Backend]:
    """Return what opens a model on its backend, after what that needs was found to be there.

    Raises:
        UsageError: the backend does not take such a model.
        BackendMissingError: a package or a GPU is missing.
    """
    kind = _kind_of_model(model, choice)
    name = _AUTO[kind] if choice == "auto" else choice
    if name == "torch":
        require_package("torch", "The backend torch", "[torch]")
    cls: type[Backend] = pkgutil.resolve_name(BACKENDS[name])
    if kind not in cls.takes:
        shown = os.fspath(model) if isinstance(model, str | os.PathLike) else type(model).__name__
        what = f"The backend {choice} runs no {kind} model."
        fix = f"omit the backend: {_AUTO[kind]} runs it"
        raise UsageError(what, found=short(str(shown), 300), fix=fix)
    cls.require(name)
    return functools.partial(cls.open, model, name, optimize=optimize, trust_source=trust_source)


def _kind_of_model(model: Any, choice: str) -> ModelKind:
    if isinstance(model, str | os.PathLike):
        if is_engine(model):
            return "engine"
        path, auto = Path(model), choice == "auto"
        with contextlib.suppress(OSError, ValueError):
            named = auto and (path.is_dir() or path.suffix == ".json")  # no folder of graphs
            named |= auto and _FACTORY.fullmatch(str(model)) is not None and not path.exists()
            return (
                "pytorch" if named or choice == "torch" or path.suffix.lower() == ".pt2" else "onnx"
            )
        return "onnx"
    torch: Any = sys.modules.get("torch")  # who has a module has imported it
    modules = torch is not None and hasattr(torch, "nn")
    program = modules and isinstance(model, torch.nn.Module | torch.export.ExportedProgram)
    return "pytorch" if program else "onnx"
