"""What runs one of the two models of a comparison: a runtime is one class."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import onnx_ir as ir

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.runtime.inputs import graph_inputs, index_limits

if TYPE_CHECKING:
    from rmsnorm_export.compare.flow import Flow

ModelKind = Literal["onnx", "pytorch", "engine"]
"""``onnx`` is every model that is neither of the others, the source of a PyTorch module included:
what it is comes out when it is opened."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """A model, and what is to run it.

    Attributes:
        model: as for ``rmsnorm_export.verify``.
        kind: of the model, one that the backend takes.
        name: of the backend.
        choice: as the user made it: the name, or ``auto``.
        optimize: the runtime's own graph optimization, where it has one.
        trust_source: a .pt2 file may run what it holds.
    """

    model: Any
    kind: ModelKind
    name: str
    choice: str
    optimize: bool
    trust_source: bool = False


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

    def by_name(self) -> dict[str, Array]:
        """The outputs by their names."""
        return dict(zip(self.names, self.arrays, strict=True))


RunModel = Callable[[Mapping[str, Array]], Answer]
"""Every output on these inputs; a ``VerificationError`` where the model does not run on them."""

ReadValues = Callable[[Sequence[str]], Mapping[str, Array]]
"""Values inside by name; one that cannot be had is left out, or a ``VerificationError``."""


class Backend(abc.ABC):
    """A model and the runtime that runs it.

    Its module imports the runtime's packages inside functions, so that ``require`` can name what is
    missing. ``backends.BACKENDS`` has one row for each class.

    Attributes:
        takes: kinds of models that it runs.
        optimized: whether the runtime's own graph optimization is on.
        optimization: what ``plain`` turns off, for the reader.
    """

    __slots__ = ()

    takes: ClassVar[frozenset[ModelKind]] = frozenset({"onnx"})
    optimized: bool = False
    optimization: ClassVar[str] = ""

    @classmethod
    def require(cls, chosen: Chosen) -> None:
        """Before any work: what the runtime needs is there.

        Raises:
            BackendMissingError: a package or a GPU is missing.
        """
        del chosen

    @classmethod
    @abc.abstractmethod
    def open(cls, chosen: Chosen) -> Backend:
        """The model, made ready to the point where work begins.

        Raises:
            UsageError, InputError, BackendMissingError: as for ``rmsnorm_export.verify``.
        """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """As users choose it."""

    @property
    @abc.abstractmethod
    def runtime(self) -> str:
        """What runs it, with its version, e.g. ``onnxruntime 1.31.1 (CPU)``."""

    @property
    def reduced(self) -> str:
        """Why it computes float32 with fewer digits, see ``outputs.Bounds``; or ""."""
        return ""

    @property
    def notes(self) -> Sequence[str]:
        """What the user has to know of how it was loaded."""
        return ()

    @property
    def graph(self) -> ir.Model | None:
        """The model as an ONNX graph, whose values are those inside; None without one."""
        return None

    def declared(self) -> Mapping[str, Declared] | None:
        """Its inputs by name; None: it takes whatever the other model takes."""
        return None if self.graph is None else graph_inputs(self.graph)

    @property
    def float_type(self) -> str:
        """The type of its float inputs where ``declared`` does not tell; or ""."""
        return ""

    @property
    def weights_type(self) -> str:
        """The float type of most of its weights; "" where that is not known."""
        return ""

    def shapes(self) -> Mapping[str, Sequence[int]]:
        """Shapes that its inputs should have, as far as it insists on some."""
        return {}

    def limits(self, declared: Mapping[str, Declared]) -> Mapping[str, int]:  # noqa: ARG002
        """Integer inputs that must stay below a number."""
        return {} if self.graph is None else index_limits(self.graph)

    def example(self) -> Mapping[str, Array] | None:
        """Inputs that came with it, by name."""
        return None

    def plain(self) -> Backend | None:
        """The same without the runtime's own optimization; None where there is no such choice."""
        return None

    @abc.abstractmethod
    def running(self) -> AbstractContextManager[RunModel]:
        """Load the model; what that takes is given back at the end of the block."""

    @property
    def closed(self) -> str:
        """Why values inside cannot be had; "" where ``probing`` gives them."""
        return f"the backend {self.name} gives no values inside"

    def inside(self, flow: Flow) -> Collection[str]:  # noqa: ARG002
        """Without a graph of its own: values of the other model's graph that it has, too."""
        return ()

    def probing(self, feeds: Mapping[str, Array], flow: Flow) -> AbstractContextManager[ReadValues]:
        """Make values inside available, on these inputs, for as long as the block lasts.

        Args:
            feeds: inputs of the first model, by name.
            flow: the graph that names the values: its own, or without one the other model's.

        Raises:
            Error: the model cannot be made ready for that.
        """
        raise NotImplementedError(self.closed)
