"""A module or exported program that PyTorch runs eagerly."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from rmsnorm_export.compare.backend import Answer, Backend, Chosen, ReadValues, RunModel
from rmsnorm_export.compare.flow import SKIP, Flow
from rmsnorm_export.errors import InputError, UsageError, VerificationError
from rmsnorm_export.lower.builder import REPLACES
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.recognize.match import name_scopes
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.system.packages import require_package
from rmsnorm_export.torch_options import SourceOptions

if TYPE_CHECKING:
    import torch

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
        require_package("torch", "The backend torch", "[torch]")

    @classmethod
    def open(cls, chosen: Chosen) -> PyTorch:
        """Load a source as ``export`` takes it, or take a module as it is."""
        from rmsnorm_export.torch.source.example import Loaded
        from rmsnorm_export.torch.source.load import load

        model = chosen.model
        if isinstance(model, str | os.PathLike):
            return cls(load(os.fspath(model), SourceOptions(trust_source=chosen.trust_source)))
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

    @property
    def float_type(self) -> str:
        """That of the example inputs, or of all weights."""
        import torch

        from rmsnorm_export.compare.eager import tensors

        module = self.loaded.module
        given = tensors(self.loaded.args or (), dict(self.loaded.kwargs or {}))
        weights = () if isinstance(module, torch.export.ExportedProgram) else module.parameters()
        for group in (given, weights):
            types = {str(one.dtype) for one in group if one.is_floating_point()}
            if len(types) == 1:
                return types.pop().removeprefix("torch.")
        return ""

    @property
    def weights_type(self) -> str:
        import torch

        module, sizes = self.loaded.module, Counter[str]()
        state: Any = module.state_dict  # a dictionary of a program, a method of a module
        for weight in (state() if isinstance(module, torch.nn.Module) else state).values():
            if weight.is_floating_point():
                sizes[str(weight.dtype).removeprefix("torch.")] += weight.numel()
        return sizes.most_common(1)[0][0] if sizes else ""

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


_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
"""What PyTorch 2.13 writes where it lost track."""

_OPERANDS = 2
"""The first inputs of ``SKIP`` are the operands of the Add that it holds."""

_SHAPE_ONLY = ("Shape", "Size")


def module_results(model: ir.Model, module: torch.nn.Module) -> dict[str, str]:
    """Value of a graph that was exported from ``module`` -> path of the module whose result it is.

    ``torch.onnx.export(dynamo=True)`` writes on each node the modules that it came from. A value is
    the result of a module where it is the only one of its values that nodes elsewhere read. What
    may hide another one is left out: a reader that tells no module, and, in a graph with fused
    norms, which may hold the Add that ended a module, all modules but those without children.
    """
    known = {path: child for path, child in module.named_modules() if path}
    fused = any(_is_fused(node) for node in model.graph)
    leaving, spoiled = _values_leaving(model)
    paths: dict[str, str] = {}
    for path, values in leaving.items():
        child = known.get(path)
        if child is None or path in spoiled or len(values) != 1:
            continue
        value = next(iter(values))
        if fused and not _ends_module(value, child):
            continue
        # One value may leave several modules, one inside the other: the innermost is told.
        if value.name and len(path) > len(paths.get(value.name, "")):
            paths[value.name] = path
    return paths


def _values_leaving(model: ir.Model) -> tuple[dict[str, set[ir.Value]], set[str]]:
    """By path the values that nodes outside the module read, and paths where that is uncertain."""
    scopes = {node: _modules_around(node) for node in model.graph}
    outputs = set(model.graph.outputs)
    leaving: dict[str, set[ir.Value]] = {}
    spoiled: set[str] = set()
    for node, own in scopes.items():
        # The sum of a fused norm came from an Add of a module that is not known any more.
        for value in node.outputs[:1] if node.op_type in SKIP else node.outputs:
            readers = [
                scopes.get(user) for user, _ in value.uses() if user.op_type not in _SHAPE_ONLY
            ]
            for path in own or ():
                if None in readers:
                    spoiled.add(path)
                elif value in outputs or any(path not in (reader or ()) for reader in readers):
                    leaving.setdefault(path, set()).add(value)
    return leaving, spoiled


def _ends_module(value: ir.Value, module: torch.nn.Module) -> bool:
    """In a graph with fused norms: no Add that a norm took with it can have ended this module."""
    if next(module.children(), None) is not None:
        return False
    added = any(user.op_type in SKIP and place < _OPERANDS for user, place in value.uses())
    producer = value.producer()
    own = producer is not None and _is_fused(producer)
    return own or not added or type(module).__module__.startswith("torch.nn.modules.")


def _is_fused(node: ir.Node) -> bool:
    return node.domain == DOMAIN or REPLACES in node.metadata_props or node.op_type in SKIP


def _modules_around(node: ir.Node) -> frozenset[str] | None:
    """Paths of the modules around a node, the whole model not counted; None where unknown."""
    module, _, op = node.name.rpartition("/") if node.name else ("", "", "")
    turned = node.op_type.startswith("RotaryRMSNorm")
    if _is_fused(node) and module and op.startswith(node.op_type) and not turned:
        # Written by this package: the name is that of the norm, the scopes may be the Add's. What
        # is turned behind the norm is no result of it, and has the scopes of the embedding.
        parts = module.split(".")
        return frozenset(".".join(parts[: i + 1]) for i in range(len(parts)))
    scopes = name_scopes(node)
    if len(scopes) < 2 or _NO_MODULE in scopes:  # the last is the operation itself
        return None
    return frozenset(scope for scope in scopes[:-1] if scope)
