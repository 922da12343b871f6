"""A module under probe: copies of it with known random parameters, run without leaving a trace.

The module itself is never called. A copy shares its class and its plain attributes, has parameters
of its own in a type of choice and no hooks; it is run without gradients, outside autocast, and the
states of the random number generators are put back.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rmsnorm_export.printable import first_line
from rmsnorm_export.torch.probe.fit import RefusedError

_NARROW = frozenset({torch.float32, torch.float16, torch.bfloat16})
_CONTAINERS = (torch.nn.ParameterList, torch.nn.ParameterDict)
_MAX_SCALE = 2**20  # elements of a scale; the widest models have rows of 2**16


class _Float64Everywhere(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Conversions to a narrower float type become conversions to float64.

    A module that computes in float32 whatever its input is thereby shows its formula to 1e-10.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "rmsnorm_export":
            raise RefusedError("runs the operator already")

        def wide(value: Any) -> Any:
            is_narrow = isinstance(value, torch.dtype) and value in _NARROW
            return torch.float64 if is_narrow else value

        named = {name: wide(value) for name, value in (kwargs or {}).items()}
        return func(*(wide(value) for value in args), **named)


@contextlib.contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast, no warnings; every random state is put back at the end."""
    devices = [device] if device.type == "cuda" else []
    states = random.getstate(), np.random.get_state()
    try:
        with (
            torch.random.fork_rng(devices=devices),
            torch.no_grad(),
            torch.autocast(device.type, enabled=False),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


class ModuleCopies:
    """Runs copies of one module on a device.

    Attributes:
        shapes: of the floating parameters and buffers of more than one element, by name.
        settings: floating parameters and buffers of one element: they keep their values.
    """

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        self.module = module
        self.device = device
        tensors = own_tensors(module)
        floating = {k: t for k, t in tensors.items() if t is not None and t.is_floating_point()}
        self.shapes = {k: tuple(t.shape) for k, t in floating.items() if t.numel() != 1}
        self.settings = tuple(k for k, t in floating.items() if t.numel() == 1)
        self._copies: dict[Any, torch.nn.Module] = {}

    def values(self, dtype: torch.dtype, seed: int = 0) -> dict[str, torch.Tensor]:
        """Random parameters: magnitudes in [0.25, 1.75], a fifth negative, rounded to ``dtype``."""
        generator = torch.Generator().manual_seed(seed)
        values = {}
        for name, shape in self.shapes.items():
            size = torch.rand(shape, generator=generator, dtype=torch.float64) * 1.5 + 0.25
            sign = torch.rand(shape, generator=generator) < 0.2
            values[name] = torch.where(sign, -size, size).to(self.device, dtype)
        return values

    def run(
        self,
        inputs: tuple[torch.Tensor, ...],
        *,
        stored: torch.dtype = torch.float64,
        exact: bool = False,
        training: bool = False,
        zero: frozenset[str] = frozenset(),
        doubled: str = "",
        seed: int = 0,
    ) -> Any:
        """``forward(*inputs)`` of a copy.

        Args:
            stored: type of its parameters.
            exact: replace every narrower type on the way by float64.
            zero: parameters that are zero.
            doubled: a setting that is twice its value.

        Raises:
            RefusedError: the module raises.
        """
        key = (stored, training, zero, doubled, seed)
        if key not in self._copies:
            tensors = self.values(stored, seed)
            tensors.update({name: torch.zeros_like(tensors[name]) for name in zero})
            own = own_tensors(self.module)
            for name in self.settings:
                value = cast(torch.Tensor, own[name]).detach().to(self.device, stored)
                tensors[name] = value * 2 if name == doubled else value
            self._copies[key] = stand_in(self.module, tensors, self.device, training=training)
        copy = self._copies[key]
        mode: Any = _Float64Everywhere if exact else contextlib.nullcontext
        try:
            with mode():
                return type(copy).forward(copy, *(value.clone() for value in inputs))
        except RefusedError:
            raise
        except Exception as error:  # whatever the module raises is its answer
            raise RefusedError(
                f"raises {type(error).__name__}: {first_line(error, 200)}"
            ) from error

    def check_pure(self, inputs: tuple[torch.Tensor, ...]) -> None:
        """Two calls of one copy have to agree and leave it as it was, in and out of training.

        Raises:
            RefusedError: random, or with a state of its own.
        """
        results = []
        for training in (False, True):
            self.run(inputs, exact=True, training=training)
            copy = self._copies[(torch.float64, training, frozenset(), "", 0)]
            before = _snapshot(copy)
            for _ in range(2):
                out = self.run(inputs, exact=True, training=training)
                results.append(out[0] if isinstance(out, tuple) else out)
            after = _snapshot(copy)
            for name in {**before, **after}:
                kept = name in before and name in after
                if not (kept and _same_value(before[name], after[name])):
                    raise RefusedError(f"stateful: a call changes its {name!r}")
        if not _all_equal(results[:2]) or not _all_equal(results[2:]):
            raise RefusedError("random or stateful: two calls with the same input differ")
        if not _all_equal(results):
            raise RefusedError("its training flag changes what it computes")


def own_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Its parameters and buffers by name, and by path those in containers such as ParameterList."""
    tensors = {**module._parameters, **module._buffers}
    for name, child in module._modules.items():
        if isinstance(child, _CONTAINERS):
            tensors |= {f"{name}.{inner}": value for inner, value in own_tensors(child).items()}
    return tensors


def tensor_at(module: torch.nn.Module, path: str) -> torch.Tensor:
    """That of ``own_tensors`` with this path."""
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return cast(torch.Tensor, found)


def has_real_children(module: torch.nn.Module) -> bool:
    """Whether a child does more than an activation could: it has parameters or children."""
    children = [child for child in module.children() if not isinstance(child, _CONTAINERS)]
    return any([*c.children(), *c.parameters(), *c.buffers()] for c in children)


def not_a_candidate(module: torch.nn.Module) -> str:
    """Why ``module`` cannot be probed or be a norm, found without running it; "" if it may be."""
    return _not_runnable(module) or _not_a_scale(module)


def _not_runnable(module: torch.nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return "compiled by TorchScript"
    if not has_forward(module):
        return "has no forward"
    if "forward" in module.__dict__:
        return "its forward is overridden on the instance"
    if type(module).__call__ is not torch.nn.Module.__call__:
        return "its class overrides __call__: optimize what its own exporter writes (keras has one)"
    if hasattr(module, "parametrizations"):
        return "its parameters are parametrized: remove the parametrizations first"
    if has_real_children(module):
        return "no leaf: it has children with parameters or children of their own"
    return ""


def has_forward(module: torch.nn.Module) -> bool:
    """Whether the class says what a call does."""
    # torch's own placeholder has this name; containers keep it.
    return getattr(type(module).forward, "__name__", "") != "_forward_unimplemented"


def _not_a_scale(module: torch.nn.Module) -> str:
    tensors = own_tensors(module)
    stored = {name: value for name, value in tensors.items() if value is not None}
    if len(stored) > 2:
        return f"holds {len(stored)} tensors, a norm at most a scale and a bias"
    for name, value in stored.items():
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return f"its {name!r} is a {type(value).__name__}, no plain tensor"
        if value.is_complex():
            return f"its {name!r} is complex"
        shape = tuple(value.shape)
        if sum(size != 1 for size in shape) > 2 or not 0 < value.numel() <= _MAX_SCALE:
            return f"its {name!r} of shape {shape} is no scale of a row"
        if value.is_meta and not (value.is_floating_point() and value.numel() > 1):
            return f"its {name!r} has no data"
    return ""


def stand_in(
    module: torch.nn.Module,
    tensors: Mapping[str, torch.Tensor],
    device: torch.device,
    *,
    training: bool,
) -> torch.nn.Module:
    """A copy of ``module`` without hooks, with ``tensors`` for its parameters and buffers.

    Those that are not named are cloned.
    """
    copy = object.__new__(type(module))
    for name, value in module.__dict__.items():
        is_hooks = "_hooks" in name and isinstance(value, dict)
        copy.__dict__[name] = type(value)() if is_hooks else _copied_value(value)

    def replacement(name: str, old: torch.Tensor) -> torch.Tensor:
        return tensors[name] if name in tensors else old.detach().clone().to(device)

    copy.__dict__["_parameters"] = {
        name: None if old is None else torch.nn.Parameter(replacement(name, old), False)
        for name, old in module._parameters.items()
    }
    copy.__dict__["_buffers"] = {
        name: None if old is None else replacement(name, old)
        for name, old in module._buffers.items()
    }
    copy.__dict__["_modules"] = {
        name: None
        if child is None
        else stand_in(child, _inside(tensors, name), device, training=training)
        for name, child in module._modules.items()
    }
    copy.__dict__["_compiled_call_impl"] = None
    copy.__dict__["training"] = training
    return copy


def _inside(tensors: Mapping[str, torch.Tensor], child: str) -> dict[str, torch.Tensor]:
    """Those of a child, by the names that they have in it."""
    head = f"{child}."
    return {k.removeprefix(head): value for k, value in tensors.items() if k.startswith(head)}


def _copied_value(value: Any) -> Any:
    """Tensors and plain containers are copied, other objects shared."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple, set):
        return type(value)(_copied_value(item) for item in value)
    if type(value) is dict:
        return {key: _copied_value(item) for key, item in value.items()}
    return value


def _snapshot(module: torch.nn.Module) -> dict[str, Any]:
    """A copy of every attribute, parameter and buffer."""
    holders = ("_parameters", "_buffers", "_modules")
    attributes = {name: value for name, value in vars(module).items() if name not in holders}
    copied: dict[str, Any] = _copied_value({**attributes, **own_tensors(module)})
    return copied


def _same_value(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return _all_equal([a, b])
    if type(a) in (list, tuple) and type(a) is type(b):
        return len(a) == len(b) and all(map(_same_value, a, b))
    if type(a) is dict and type(b) is dict:
        return a.keys() == b.keys() and all(_same_value(a[key], b[key]) for key in a)
    return bool(a is b or a == b)


def _all_equal(tensors: list[Any]) -> bool:
    first = tensors[0]
    if not all(isinstance(t, torch.Tensor) and t.shape == first.shape for t in tensors):
        return False
    return all(torch.equal(first.nan_to_num(), t.nan_to_num()) for t in tensors)
