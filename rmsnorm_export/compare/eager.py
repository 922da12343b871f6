"""PyTorch eager as one of the two models; imported only where PyTorch is."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from rmsnorm_export.compare.side import Answer, Backend
from rmsnorm_export.errors import InputError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.inputs import Declared
from rmsnorm_export.torch.export.failure import arguments_text
from rmsnorm_export.torch.export.trace import inference
from rmsnorm_export.torch.source.loaded import Loaded, integer_limit

Module = torch.nn.Module | torch.export.ExportedProgram
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TorchSide:
    """A module that PyTorch runs, in evaluation mode.

    Attributes:
        loaded: the module and, where its source gives them, example inputs.
    """

    loaded: Loaded

    @property
    def backend(self) -> Backend:
        return "torch"

    @property
    def description(self) -> str:
        return self.loaded.name

    @property
    def runtime(self) -> str:
        return f"PyTorch {torch.__version__} ({device_of(self.loaded.module).type.upper()})"

    @property
    def optimized(self) -> bool:
        return False

    @property
    def reduced(self) -> str:
        cuda = device_of(self.loaded.module).type == "cuda"
        if cuda and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32):
            return "PyTorch allows TF32 on CUDA"
        return ""

    @property
    def graph(self) -> ir.Model | None:
        return None

    def declared(self) -> Mapping[str, Declared] | None:
        return None

    def shapes(self) -> Mapping[str, Sequence[int]]:
        return {}

    def limits(self, declared: Mapping[str, Declared]) -> Mapping[str, int]:
        """All integers but masks may be indices of the shortest table."""
        limit = integer_limit(self.loaded.module)
        return {
            name: limit
            for name, wanted in declared.items()
            if wanted.dtype.kind in "iu" and "mask" not in name
        }

    def example(self) -> Mapping[str, Array] | None:
        if self.loaded.args is None and self.loaded.kwargs is None:
            return None
        args, kwargs = tuple(self.loaded.args or ()), dict(self.loaded.kwargs or {})
        names = _names(self.loaded.module, args, kwargs)
        return {
            name: to_array(leaf) for name, leaf in zip(names, tensors(args, kwargs), strict=True)
        }

    @contextlib.contextmanager
    def open(self) -> Iterator[TorchRunner]:
        yield TorchRunner(self.loaded)

    def plain(self) -> None:
        return None


class TorchRunner:
    """A module in evaluation mode."""

    declared: Mapping[str, Declared] | None = None

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    def run(self, feeds: Mapping[str, Array]) -> Answer:
        args, kwargs = bind(self._loaded, feeds)
        try:
            names, arrays = eager(self._loaded.module, args, kwargs)
        except InputError as error:
            raise VerificationError(error.what, found=error.found, fix=error.fix) from error
        return Answer(names, arrays, named=False)


def eager(
    module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[Array, ...]]:
    """Every tensor that a module returns, in order, with the names that ``export`` gives them.

    Raises:
        InputError: PyTorch cannot run it on these inputs.
    """
    run = module.module() if isinstance(module, torch.export.ExportedProgram) else module
    try:
        with inference(run):
            made = run(*args, **kwargs)
    except Exception as error:
        raise InputError(
            "PyTorch cannot run the module on these inputs.",
            found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}; "
            f"inputs: {arguments_text(args, kwargs)}",
            fix="give other inputs or shapes",
        ) from error
    found = [
        (key if len(leaves) == 1 else f"{key}_{i}", leaf)
        for key, leaves in _groups(made)
        for i, leaf in enumerate(leaves)
    ]
    return tuple(name for name, _ in found), tuple(to_array(leaf) for _, leaf in found)


def _groups(made: object) -> list[tuple[str, list[torch.Tensor]]]:
    """The tensors of what a module returns, by key, or one by one as output, output_1, ..."""
    if isinstance(made, Mapping):
        return [(str(key), tensors(value)) for key, value in made.items() if tensors(value)]
    leaves = tensors(made)
    return [("output" if i == 0 else f"output_{i}", [leaf]) for i, leaf in enumerate(leaves)]


def tensors(*tree: object) -> list[torch.Tensor]:
    """The tensors in nested containers, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def bind(loaded: Loaded, feeds: Mapping[str, Array]) -> Call:
    """The call of a module that hands these arrays over.

    By name where ``forward`` has parameters of these names; else in order, in the place of the
    tensors of the example inputs, or as positional arguments.
    """
    device = device_of(loaded.module)
    given = {name: to_tensor(array).to(device) for name, array in feeds.items()}
    ordered = list(given.values())
    args, kwargs = tuple(loaded.args or ()), dict(loaded.kwargs or {})
    program = isinstance(loaded.module, torch.export.ExportedProgram)
    if not program and set(given) <= set(_parameters(loaded.module)):
        others = {k: v for k, v in kwargs.items() if k not in given and not tensors(v)}
        return (), others | given
    names = _names(loaded.module, args, kwargs)
    if len(names) == len(given):
        if set(names) == set(given):
            ordered = [given[name] for name in names]
        leaves, spec = pytree.tree_flatten((args, kwargs))
        rest = iter(ordered)
        filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return tuple(args), dict(kwargs)
    return tuple(ordered), {}


def _parameters(module: object) -> list[str]:
    """Names of the parameters of ``forward``."""
    forward = getattr(module, "forward", None)
    if forward is None:
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(forward).parameters.values() if p.kind in kinds]


def _names(module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """A name for each tensor among the arguments of a call."""
    leaves = tensors(args, dict(kwargs))
    own = _parameters(module)
    if isinstance(module, torch.export.ExportedProgram):
        own = [str(name) for name in module.graph_signature.user_inputs]
        if len(own) == len(leaves):
            return own
    keys = [own[i] if i < len(own) else f"input_{i}" for i in range(len(args))]
    named = [*zip(keys, args, strict=True), *kwargs.items()]
    found: list[str] = []
    for key, value in named:
        count = len(tensors(value))
        found += [str(key)] if count == 1 else [f"{key}_{i}" for i in range(count)]
    return found


def named(
    names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Array]:
    """The tensors of a call by the names of a file's inputs: by name where they fit, or in order.

    Raises:
        VerificationError: they are not as many.
    """
    found = tensors(args, dict(kwargs))
    if not args and set(kwargs) == set(names):
        found = [kwargs[name] for name in names]
    if len(found) != len(names):
        raise VerificationError(
            "The file has other inputs than the module.",
            found=f"{len(names)} ({', '.join(names)}) for {len(found)} tensors",
            fix="compare a file that was exported from this module",
        )
    return {name: to_array(tensor) for name, tensor in zip(names, found, strict=True)}


class TorchProber:
    """Results of single modules, by the names that the values have in an ONNX graph."""

    def __init__(
        self, loaded: Loaded, feeds: Mapping[str, Array], modules: Mapping[str, str]
    ) -> None:
        self._loaded, self._feeds, self._modules = loaded, feeds, modules

    def values(self, names: Sequence[str]) -> Mapping[str, Array]:
        """Only of modules that are called once and return one tensor."""
        module = self._loaded.module
        assert isinstance(module, torch.nn.Module)
        calls: dict[str, list[list[torch.Tensor]]] = {name: [] for name in names}
        handles = []
        try:
            for name in names:
                if name in self._modules:
                    hook = _keep(calls[name])
                    child = module.get_submodule(self._modules[name])
                    handles.append(child.register_forward_hook(hook))
            args, kwargs = bind(self._loaded, self._feeds)
            eager(module, args, kwargs)
        finally:
            for handle in handles:
                handle.remove()
        return {
            name: to_array(made[0][0])
            for name, made in calls.items()
            if len(made) == 1 and len(made[0]) == 1
        }


def _keep(calls: list[list[torch.Tensor]]) -> Callable[[object, object, object], None]:
    def hook(module: object, args: object, made: object) -> None:
        del module, args
        # A later operation may work in place.
        calls.append([tensor.clone() for tensor in tensors(made)])

    return hook


def device_of(module: Module) -> torch.device:
    """Where the weights of a module are; the CPU without any."""
    if isinstance(module, torch.export.ExportedProgram):
        first = next(iter(module.state_dict.values()), None)
    else:
        first = next(iter(module.parameters()), None)
    return torch.device("cpu") if first is None else first.device


def to_array(tensor: torch.Tensor) -> Array:
    """The values on the CPU, bfloat16 included."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def to_tensor(array: Array) -> torch.Tensor:
    """The values in PyTorch, bfloat16 included.

    Raises:
        InputError: PyTorch has no such type.
    """
    array = np.array(array, order="C")  # PyTorch takes neither read-only nor unusual strides
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise InputError(
            "PyTorch takes no input of this type.",
            found=str(array.dtype),
            fix="compare models whose inputs are float, integer or boolean tensors",
        ) from error
