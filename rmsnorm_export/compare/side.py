"""What a comparison knows of each of its two models, whatever runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

import onnx_ir as ir

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.inputs import Declared

Backend = Literal["onnxruntime", "onnxruntime-cuda", "torch", "tensorrt", "tensorrt-rtx"]
BackendChoice = Literal[
    "auto", "onnxruntime", "onnxruntime-cuda", "torch", "tensorrt", "tensorrt-rtx"
]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a model computed.

    Attributes:
        names: of its outputs.
        arrays: one for each.
        named: the names are the model's own; False: the order is what identifies an output.
    """

    names: tuple[str, ...]
    arrays: tuple[Array, ...]
    named: bool = True


class Runner(Protocol):
    """A model that is ready to run."""

    @property
    def declared(self) -> Mapping[str, Declared] | None:
        """Its inputs by name; None: it takes whatever the other model takes."""

    def run(self, feeds: Mapping[str, Array]) -> Answer:
        """Every output.

        Raises:
            VerificationError: it does not run on these inputs.
        """


class Prober(Protocol):
    """A model of which single values can be had."""

    def values(self, names: Sequence[str]) -> Mapping[str, Array]:
        """Those values by name; one that cannot be had is left out."""


class Side(Protocol):
    """One of the two models and what runs it."""

    @property
    def backend(self) -> Backend: ...

    @property
    def description(self) -> str:
        """Where the model came from, safe to print."""

    @property
    def runtime(self) -> str:
        """What runs it, with its version, e.g. ``onnxruntime 1.31.1 (CPU)``."""

    @property
    def optimized(self) -> bool:
        """Whether ONNX Runtime's graph optimization is on."""

    @property
    def reduced(self) -> str:
        """Why it computes float32 with fewer digits, see ``proof.compare.Bounds``; or ""."""

    @property
    def graph(self) -> ir.Model | None:
        """The model as an ONNX graph whose values can be marked as outputs; None without one."""

    def declared(self) -> Mapping[str, Declared] | None:
        """As ``Runner.declared``, before the model is made ready."""

    def shapes(self) -> Mapping[str, Sequence[int]]:
        """Shapes that its inputs should have, as far as it insists on some."""

    def limits(self, declared: Mapping[str, Declared]) -> Mapping[str, int]:
        """Integer inputs that must stay below a number."""

    def example(self) -> Mapping[str, Array] | None:
        """Inputs that came with it, by name."""

    def open(self) -> AbstractContextManager[Runner]:
        """Make it ready; what that takes is given back at the end of the block."""

    def plain(self) -> Side | None:
        """The same without the runtime's own optimization; None where there is no such choice."""
