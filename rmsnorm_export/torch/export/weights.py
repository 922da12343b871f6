"""Weights that are not in memory while a module is exported, and are read one by one when written.

A module made under ``torch.device("meta")`` has shapes but no values. It is traced with fake
tensors in their place; in the ONNX model each is a lazy tensor, asked for when the file is written
(or when a proof wants a scale) and dropped again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor
from torch._subclasses.fake_tensor import FakeTensorMode

from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.torch.source.cast import check_tensors

WeightValues = Mapping[str, torch.Tensor] | Callable[[str], torch.Tensor]
"""Values by name, as in ``state_dict()``: a mapping, or a function that makes one when asked."""


def missing(module: object) -> dict[str, torch.Tensor]:
    """Parameters and buffers without values, by name; a program has none."""
    if not isinstance(module, torch.nn.Module):
        return {}
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {name: tensor for name, tensor in named if tensor.device.type == "meta"}


def check_state(names: Mapping[str, torch.Tensor], state: WeightValues | None) -> None:
    """Every weight without values can be had from ``state``.

    Raises:
        UsageError: naming the first that cannot.
    """
    # One name of a weight that has several (tied weights) is enough.
    there = names if callable(state) else {n: v for n, v in names.items() if n in (state or ())}
    had = {id(tensor) for tensor in there.values()}
    lacking = [name for name, tensor in names.items() if id(tensor) not in had]
    if lacking:
        raise UsageError(
            "The module has weights without values.",
            found=f"{len(lacking)} on the meta device, the first is {lacking[0]!r}",
            fix="pass state=..., a mapping or a function from the name of a weight to its values, "
            "or load the weights before exporting",
        )


@contextlib.contextmanager
def stand_ins(module: object, names: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Fake tensors on the CPU in the place of the weights without values."""
    if not names or not isinstance(module, torch.nn.Module):
        yield
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    kept: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
    fakes: dict[int, torch.Tensor] = {}
    for owner in module.modules():
        for holder in (owner._parameters, owner._buffers):
            for name, tensor in holder.items():
                if tensor is None or tensor.device.type != "meta":
                    continue
                if id(tensor) not in fakes:
                    with mode:
                        fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                    if isinstance(tensor, torch.nn.Parameter):
                        fake = torch.nn.Parameter(fake, requires_grad=False)
                    fakes[id(tensor)] = fake
                kept.append((holder, name, tensor))  # type: ignore[arg-type]
    for holder, name, tensor in kept:
        holder[name] = fakes[id(tensor)]
    try:
        yield
    finally:
        for holder, name, tensor in kept:
            holder[name] = tensor


def attach(model: ir.Model, names: Mapping[str, torch.Tensor], state: WeightValues | None) -> None:
    """Lazy tensors for the initializers whose values come from ``state``; tied ones become one."""
    first: dict[int, ir.Value] = {}
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if name not in names or tensor is None or state is None:
            continue
        kept = first.setdefault(id(names[name]), value)
        if kept is not value:
            value.replace_all_uses_with(kept)
            del model.graph.initializers[name]
            continue
        aliases = [alias for alias, other in names.items() if other is names[name]]
        value.const_value = ir.LazyTensor(
            functools.partial(_read_weight, state, [name, *aliases], names[name]),
            dtype=tensor.dtype,
            shape=ir.Shape(list(names[name].shape)),
            name=name,
        )


def _read_weight(state: WeightValues, names: list[str], like: torch.Tensor) -> ir.TensorProtocol:
    name = names[0]
    try:
        if isinstance(state, Mapping):
            name = next(name for name in names if name in state)
            values = state[name]
        else:
            values = state(name)
    except (Error, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            "The value of a weight cannot be read.",
            found=f"{name!r}: {type(error).__name__}: {error}",
            fix="check what state does for this name",
        ) from error
    if not isinstance(values, torch.Tensor) or values.device.type == "meta":
        what = type(values).__name__
    elif values.shape != like.shape:
        what = f"shape {list(values.shape)}"
    else:
        check_tensors([(name, values)], like.dtype)
        values = values.detach().to(device="cpu", dtype=like.dtype).contiguous()
        return TorchTensor(values, name=name)
    raise InputError(
        "A weight is not what the module needs.",
        found=f"{name!r}: {what}, needed: a tensor of shape {list(like.shape)}",
        fix="check what state gives for this name",
    )
