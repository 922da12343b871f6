"""What a cast to a smaller float type does to weights: values that become infinite, or zero."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from rmsnorm_export.errors import InputError
from rmsnorm_export.torch.dtypes import dtype_name

_CHUNK = 2**16
"""Elements looked at together: they stay in the cache."""

_MOST_NAMES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class _Loss:
    """A tensor's largest magnitude that becomes infinite, and how many values become zero."""

    name: str
    beyond: float
    vanished: int


def check_tensors(tensors: Iterable[tuple[str, torch.Tensor]], target: torch.dtype) -> list[str]:
    """Return notes on what a cast of these tensors to ``target`` loses.

    Tensors without values are left out.

    Raises:
        InputError: a finite value becomes infinite; it names the tensors.
    """
    losses = [
        _loss(name, tensor, target)
        for name, tensor in tensors
        if tensor.is_floating_point() and not tensor.is_meta
    ]
    beyond = [loss for loss in losses if loss.beyond]
    type_name = dtype_name(target)
    if beyond:
        shown = [f"{loss.name} (up to {loss.beyond:.6g})" for loss in beyond][:_MOST_NAMES]
        raise InputError(
            f"Weights become infinite in {type_name}.",
            found=f"{len(beyond)} of {len(losses)} tensors have values above "
            f"{torch.finfo(target).max:.6g}: "
            + ", ".join([*shown, "..."] if len(beyond) > _MOST_NAMES else shown),
            fix="use --dtype bf16, which has the range of float32, or --dtype f32; or build the "
            "model in a factory that leaves these tensors in float32",
        )
    vanished = [loss for loss in losses if loss.vanished]
    if not vanished:
        return []
    first = max(vanished, key=lambda loss: loss.vanished)
    return [
        f"{sum(loss.vanished for loss in vanished)} weights that are not zero become zero in "
        f"{type_name}, in {len(vanished)} of {len(losses)} tensors, the most in {first.name} "
        f"({first.vanished})"
    ]


def stored_tensors(files: Iterable[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of safetensors files, of which nothing is read before it is used.

    Raises:
        OSError, safetensors.SafetensorError: a file cannot be read, or is none of that format.
    """
    from safetensors import safe_open

    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                yield name, file.get_tensor(name)


def _loss(name: str, tensor: torch.Tensor, target: torch.dtype) -> _Loss:
    """Cast the tensor, a part at a time, and look at what comes of it."""
    beyond, vanished = 0.0, 0
    if not _can_lose(tensor.dtype, target):
        return _Loss(name, beyond, vanished)
    for part in tensor.detach().reshape(-1).split(_CHUNK):  # type: ignore[no-untyped-call]
        cast = part.to(target)
        vanished += int(part.count_nonzero() - cast.count_nonzero())
        infinite = cast.isinf()
        if infinite.any():
            lost = part[infinite & part.isfinite()].abs().double()
            beyond = max([beyond, *lost.tolist()])
    return _Loss(name, beyond, vanished)


def _can_lose(dtype: torch.dtype, target: torch.dtype) -> bool:
    """Return whether there are values of ``dtype`` beyond the range of ``target``."""
    return torch.finfo(dtype).max > torch.finfo(target).max or _least(dtype) < _least(target)


def _least(dtype: torch.dtype) -> float:
    """Return the smallest number above zero."""
    return torch.finfo(dtype).tiny * torch.finfo(dtype).eps
