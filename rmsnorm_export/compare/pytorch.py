"""A module or exported program that PyTorch runs eagerly."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from onnx_ir.tensor_adapters import TorchTensor
from torch.utils import _pytree as pytree

from rmsnorm_export.compare.backend import Answer, Backend, RunModel, Searchable
from rmsnorm_export.compare.onnx_backend import OnnxRuntime
from rmsnorm_export.errors import InputError, NotRunError, VerificationError
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import first_line
from rmsnorm_export.runtime.sizes import Declared
from rmsnorm_export.torch.export.convert import convert, inference
from rmsnorm_export.torch.export.failure import arguments_text
from rmsnorm_export.torch.source.example import Loaded
from rmsnorm_export.torch.source.load import load
from rmsnorm_export.torch_options import ExportOptions, SourceOptions

_NO_KERNEL = re.compile(r"not implemented for '|Could not run '[^']*' with arguments from the '")
"""The words of PyTorch for an operator without a kernel for a type or a device."""

Module = torch.nn.Module | torch.export.ExportedProgram


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PyTorch(Backend):
    """A module that PyTorch runs, in evaluation mode.

    Attributes:
        loaded: the module and, where its source gives them, example inputs.
    """

    loaded: Loaded

    name = "torch"
    takes = frozenset({"pytorch"})

    @classmethod
    def open(cls, model: Any, *_: Any, trust_source: bool, **__: Any) -> PyTorch:
        """Load a source as ``export`` takes it, or take a module as it is."""
        if isinstance(model, str | os.PathLike):
            return cls(load(os.fspath(model), SourceOptions(trust_source=trust_source)))
        example = None if callable(getattr(model, "forward", None)) else model.example_inputs
        args, kwargs = example or (None, None)  # a program may have some
        return cls(Loaded(model, type(model).__qualname__, args, kwargs))

    @property
    def runtime(self) -> str:
        return f"PyTorch {torch.__version__} ({device_of(self.loaded.module).type.upper()})"

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        return self.loaded.notes

    @contextlib.contextmanager
    def running(self) -> Iterator[RunModel]:
        yield lambda feeds: run_eager(self.loaded.module, *bind_feeds(self.loaded, feeds))

    @contextlib.contextmanager
    def searched(self, feeds: Mapping[str, Array]) -> Iterator[Searchable]:
        """Give the values of a new export, in which every norm is spelled out as PyTorch has it."""
        args, kwargs = bind_feeds(self.loaded, feeds)
        with tempfile.TemporaryDirectory(prefix="rmsnorm-verify-") as folder:
            path = Path(folder) / "plain.onnx"
            options = ExportOptions(kwargs=kwargs, target="plain")
            convert(self.loaded.module, args, options)[0].save(path)
            exported = OnnxRuntime(load_model(path))
            again = dataclasses.replace(self.loaded, args=args, kwargs=kwargs)
            with exported.searched(example_feeds(again, exported.declared())) as searchable:
                yield searchable


def run_eager(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
    """Compute every tensor that a module returns, in order.

    Raises:
        NotRunError: PyTorch has no kernel for its types.
        VerificationError: PyTorch cannot run it on these inputs.
    """
    run = module.module() if isinstance(module, torch.export.ExportedProgram) else module
    try:
        with inference(run):
            result = run(*args, **kwargs)
    except Exception as error:
        kind = NotRunError if _NO_KERNEL.search(str(error)) else VerificationError
        what, fix = "PyTorch cannot run the module on these inputs.", "give other inputs or shapes"
        reason = f"{type(error).__name__}: {first_line(error)}"
        found = f"{reason}; inputs: {arguments_text(args, kwargs)}"
        raise kind(what, found=found, fix=fix) from error
    leaves = tensors(result)
    names = tuple(map(str, result)) if isinstance(result, Mapping) else ()
    if len(names) != len(leaves):
        names = tuple(f"output_{i}" for i in range(len(leaves)))
    arrays = map(to_array, leaves)
    return Answer(dict(zip(names, arrays, strict=True)), named=False)


def tensors(*tree: object) -> list[torch.Tensor]:
    """List the tensors in nested containers, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def bind_feeds(loaded: Loaded, feeds: Mapping[str, Array]) -> tuple[Any, Any]:
    """Return the positional and named inputs of a call that hands these arrays over.

    In the place of the tensors of the example inputs, by their names or in order; without an
    example by the names of ``forward``'s parameters, or in order.
    """
    device, kind = device_of(loaded.module), _float_type(loaded)
    fed = {name: to_tensor(array).to(device) for name, array in feeds.items()}
    fed = {name: one.to(kind) if one.is_floating_point() else one for name, one in fed.items()}
    names = list(_example_tensors(loaded))
    if names and len(names) == len(fed):
        ordered = iter([fed[name] for name in names] if set(names) == set(fed) else fed.values())
        leaves, spec = pytree.tree_flatten((tuple(loaded.args or ()), dict(loaded.kwargs or {})))
        filled = [next(ordered) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return args, kwargs
    if set(fed) <= set(_parameters(loaded.module)):
        return (), fed
    return tuple(fed.values()), {}


def _float_type(loaded: Loaded) -> torch.dtype | None:
    """The type of the example inputs, or of all weights, where it is one."""
    for group in (tensors(loaded.args, loaded.kwargs), _weights_of(loaded.module)):
        types = {one.dtype for one in group if one.is_floating_point()}
        if len(types) == 1:
            return types.pop()
    return None


def _parameters(module: object) -> list[str]:
    """Names of the parameters of ``forward``, or of the inputs of a program."""
    if isinstance(module, torch.export.ExportedProgram):
        return [str(name) for name in module.graph_signature.user_inputs]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(module.forward).parameters.values()  # type: ignore[attr-defined]
    return [p.name for p in parameters if p.kind in kinds]


def _example_tensors(loaded: Loaded) -> dict[str, torch.Tensor]:
    """The tensors among the example inputs, each with a name."""
    args, kwargs = loaded.args or (), loaded.kwargs or {}
    own, leaves = _parameters(loaded.module), tensors(args, kwargs)
    if isinstance(loaded.module, torch.export.ExportedProgram) and len(own) == len(leaves):
        return dict(zip(own, leaves, strict=True))
    keys = [own[i] if i < len(own) else f"input_{i}" for i in range(len(args))]
    named: dict[str, torch.Tensor] = {}
    for key, value in (*zip(keys, args, strict=True), *kwargs.items()):
        inner = tensors(value)
        named |= {key if not inner[1:] else f"{key}_{i}": leaf for i, leaf in enumerate(inner)}
    return named


def example_feeds(loaded: Loaded, declared: Mapping[str, Declared]) -> dict[str, Array]:
    """Return the tensors of the example inputs by the names of a file's inputs.

    By name, or where these are others, in order.
    """
    feeds = {name: to_array(leaf) for name, leaf in _example_tensors(loaded).items()}
    if declared.keys() <= feeds.keys() or len(declared) != len(feeds):
        return feeds
    return dict(zip(declared, feeds.values(), strict=True))


def device_of(module: Module) -> torch.device:
    """Return where the weights of a module are; the CPU without any."""
    return next((one.device for one in _weights_of(module)), torch.device("cpu"))


def _weights_of(module: Module) -> list[torch.Tensor]:
    """List the parameters of a module, or the state of a program."""
    if isinstance(module, torch.export.ExportedProgram):
        return list(module.state_dict.values())
    return list(module.parameters())


def to_array(tensor: torch.Tensor) -> Array:
    """Return the values on the CPU, bfloat16 included."""
    return np.asarray(TorchTensor(tensor).numpy())


def to_tensor(array: Array) -> torch.Tensor:
    """Return the values in PyTorch, bfloat16 included.

    Raises:
        InputError: PyTorch has no such type.
    """
    array = np.array(array, order="C")  # PyTorch takes neither read-only nor unusual strides
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        what = "PyTorch takes no input of this type."
        fix = "compare models whose inputs are float, integer or boolean tensors"
        raise InputError(what, found=str(array.dtype), fix=fix) from error
