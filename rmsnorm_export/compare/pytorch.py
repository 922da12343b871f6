"""A module or exported program that PyTorch runs eagerly."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rmsnorm_export.compare.backend import Answer, Backend, Chosen, ReadValues, RunModel
from rmsnorm_export.compare.flow import Flow
from rmsnorm_export.errors import BackendMissingError, InputError, UsageError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.system.packages import is_installed, pip_install

if TYPE_CHECKING:
    from rmsnorm_export.torch.source.example import Loaded


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PyTorch(Backend):
    """A module that PyTorch runs, in evaluation mode.

    Attributes:
        loaded: the module and, where its source gives them, example inputs.
    """

    loaded: Loaded

    name = "torch"
    takes = frozenset({"pytorch", "onnx"})
    closed = ""

    @classmethod
    def require(cls, chosen: Chosen) -> None:
        del chosen
        if not is_installed("torch"):
            raise BackendMissingError(
                "This needs PyTorch.",
                found="no package torch",
                fix=pip_install("[torch]"),
            )

    @classmethod
    def open(cls, chosen: Chosen) -> PyTorch:
        """Load a source as ``export`` takes it, or take a module as it is."""
        from rmsnorm_export.torch.source.example import Loaded
        from rmsnorm_export.torch.source.load import load

        model = chosen.model
        if isinstance(model, str | os.PathLike):
            return cls(
                load(os.fspath(model), arguments={}, dtype=None, trust_source=chosen.trust_source)
            )
        if chosen.kind != "pytorch":
            raise UsageError(
                "The backend torch runs no such model.",
                found=type(model).__name__,
                fix="give a torch.nn.Module, an ExportedProgram, a .pt2 file, or a source that"
                " export takes",
            )
        given = getattr(model, "example_inputs", None)
        program = not callable(getattr(model, "forward", None))
        args, kwargs = given if program and given is not None else (None, None)
        name = f"{type(model).__module__}.{type(model).__qualname__}"
        return cls(Loaded(model, name, args, kwargs))

    @property
    def runtime(self) -> str:
        import torch

        return f"PyTorch {torch.__version__} ({self._device_type().upper()})"

    @property
    def reduced(self) -> str:
        import torch

        tf32 = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
        return "PyTorch allows TF32 on CUDA" if tf32 and self._device_type() == "cuda" else ""

    @property
    def notes(self) -> Sequence[str]:
        return self.loaded.notes

    def _device_type(self) -> str:
        from rmsnorm_export.compare.eager import device_of

        return device_of(self.loaded.module).type

    def limits(self, declared: Mapping[str, Declared]) -> Mapping[str, int]:
        """All integers but masks may be indices of the shortest table."""
        limit = self.loaded.limit
        return {
            name: limit
            for name, one in declared.items()
            if "int" in one.dtype and "mask" not in name
        }

    def example(self) -> Mapping[str, Array] | None:
        from rmsnorm_export.compare.eager import example_feeds

        return example_feeds(self.loaded)

    @contextlib.contextmanager
    def running(self) -> Iterator[RunModel]:
        from rmsnorm_export.compare.eager import bind_feeds, run_eager

        def run(feeds: Mapping[str, Array]) -> Answer:
            args, kwargs = bind_feeds(self.loaded, feeds)
            try:
                return Answer(*run_eager(self.loaded.module, args, kwargs), named=False)
            except InputError as error:
                raise VerificationError(error.what, found=error.found, fix=error.fix) from error

        yield run

    def inside(self, flow: Flow) -> Collection[str]:
        return self._module_results(flow).keys()

    def _module_results(self, flow: Flow) -> Mapping[str, str]:
        import torch

        from rmsnorm_export.compare.modules import module_results

        module = self.loaded.module
        return module_results(flow.model, module) if isinstance(module, torch.nn.Module) else {}

    @contextlib.contextmanager
    def probing(self, feeds: Mapping[str, Array], flow: Flow) -> Iterator[ReadValues]:
        """Results of modules, by the names that they have in the exported graph."""
        from rmsnorm_export.compare.eager import results_of_modules

        modules = self._module_results(flow)

        def read_values(names: Sequence[str]) -> Mapping[str, Array]:
            paths = {name: modules[name] for name in names if name in modules}
            return results_of_modules(self.loaded, feeds, paths)

        yield read_values
