"""What a PyTorch module computes: its call made from arrays, its tensors turned into arrays."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils import _pytree as pytree

from rmsnorm_export.errors import InputError, NotRunError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.torch.export.failure import arguments_text
from rmsnorm_export.torch.export.trace import inference
from rmsnorm_export.torch.source.example import Loaded

_NO_KERNEL = re.compile(r"not implemented for '|Could not run '[^']*' with arguments from the '")
"""What PyTorch says of an operator without a kernel for a type or a device."""

Module = torch.nn.Module | torch.export.ExportedProgram
Call = tuple[tuple[Any, ...], dict[str, Any]]


def run_eager(
    module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[Array, ...]]:
    """Every tensor that a module returns, in order, with the names that ``export`` gives them.

    Raises:
        NotRunError: PyTorch has no kernel for its types.
        InputError: PyTorch cannot run it on these inputs.
    """
    run = module.module() if isinstance(module, torch.export.ExportedProgram) else module
    try:
        with inference(run):
            made = run(*args, **kwargs)
    except Exception as error:
        kind = NotRunError if _NO_KERNEL.search(str(error)) else InputError
        raise kind(
            "PyTorch cannot run the module on these inputs.",
            found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}; "
            f"inputs: {arguments_text(args, kwargs)}",
            fix="give other inputs or shapes",
        ) from error
    if isinstance(made, Mapping):
        groups = [(str(key), tensors(value)) for key, value in made.items()]
    else:
        groups = [
            (f"output_{i}" if i else "output", [leaf]) for i, leaf in enumerate(tensors(made))
        ]
    outputs = [pair for key, leaves in groups for pair in _numbered(key, leaves)]
    return tuple(name for name, _ in outputs), tuple(to_array(leaf) for _, leaf in outputs)


def _numbered(key: str, leaves: Sequence[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """The tensors under one key, each with a name of its own."""
    return [(key if len(leaves) == 1 else f"{key}_{i}", leaf) for i, leaf in enumerate(leaves)]


def tensors(*tree: object) -> list[torch.Tensor]:
    """The tensors in nested containers, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def bind_feeds(loaded: Loaded, feeds: Mapping[str, Array]) -> Call:
    """The call of a module that hands these arrays over.

    By name where ``forward`` has parameters of these names; else in order, in the place of the
    tensors of the example inputs, or as positional arguments.
    """
    device = device_of(loaded.module)
    given = {name: to_tensor(array).to(device) for name, array in feeds.items()}
    ordered = list(given.values())
    args, kwargs = tuple(loaded.args or ()), dict(loaded.kwargs or {})
    program = isinstance(loaded.module, torch.export.ExportedProgram)
    if not program and set(given) <= set(_forward_parameters(loaded.module)):
        others = {k: v for k, v in kwargs.items() if k not in given and not tensors(v)}
        return (), others | given
    names = [name for name, _ in _named_tensors(loaded.module, args, kwargs)]
    if len(names) == len(given):
        if set(names) == set(given):
            ordered = [given[name] for name in names]
        leaves, spec = pytree.tree_flatten((args, kwargs))
        rest = iter(ordered)
        filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return tuple(args), dict(kwargs)
    return tuple(ordered), {}


def _forward_parameters(module: object) -> list[str]:
    """Names of the parameters of ``forward``."""
    forward = getattr(module, "forward", None)
    if forward is None:
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(forward).parameters.values() if p.kind in kinds]


def _named_tensors(
    module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[tuple[str, torch.Tensor]]:
    """The tensors among the arguments of a call, each with a name."""
    own = _forward_parameters(module)
    if isinstance(module, torch.export.ExportedProgram):
        own = [str(name) for name in module.graph_signature.user_inputs]
        leaves = tensors(args, dict(kwargs))
        if len(own) == len(leaves):
            return list(zip(own, leaves, strict=True))
    keys = [own[i] if i < len(own) else f"input_{i}" for i in range(len(args))]
    entries = [*zip(keys, args, strict=True), *kwargs.items()]
    return [pair for key, value in entries for pair in _numbered(str(key), tensors(value))]


def example_feeds(loaded: Loaded) -> dict[str, Array] | None:
    """The tensors of the example inputs by name; None without any."""
    if loaded.args is None and loaded.kwargs is None:
        return None
    args, kwargs = tuple(loaded.args or ()), dict(loaded.kwargs or {})
    return {name: to_array(leaf) for name, leaf in _named_tensors(loaded.module, args, kwargs)}


def feeds_of_call(
    names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Array]:
    """The tensors of a call by the names of a file's inputs: by name where they fit, or in order.

    Raises:
        VerificationError: they are not as many.
    """
    given = tensors(args, dict(kwargs))
    if not args and set(kwargs) == set(names):
        given = [kwargs[name] for name in names]
    if len(given) != len(names):
        raise VerificationError(
            "The file has other inputs than the module.",
            found=f"{len(names)} ({', '.join(names)}) for {len(given)} tensors",
            fix="compare a file that was exported from this module",
        )
    return {name: to_array(tensor) for name, tensor in zip(names, given, strict=True)}


def results_of_modules(
    loaded: Loaded, feeds: Mapping[str, Array], paths: Mapping[str, str]
) -> dict[str, Array]:
    """What modules inside return; only of those that are called once and return one tensor.

    Args:
        loaded: the model.
        feeds: its inputs.
        paths: name of each result -> path of the module.
    """
    module = loaded.module
    assert isinstance(module, torch.nn.Module)
    calls: dict[str, list[list[torch.Tensor]]] = {name: [] for name in paths}
    args, kwargs = bind_feeds(loaded, feeds)
    with contextlib.ExitStack() as hooks:
        for name, path in paths.items():

            def keep(
                _: object, __: object, made: object, kept: list[list[torch.Tensor]] = calls[name]
            ) -> None:
                # A later operation may work in place.
                kept.append([tensor.clone() for tensor in tensors(made)])

            hooks.callback(module.get_submodule(path).register_forward_hook(keep).remove)
        run_eager(module, args, kwargs)
    return {
        name: to_array(made[0][0])
        for name, made in calls.items()
        if len(made) == 1 and len(made[0]) == 1
    }


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
