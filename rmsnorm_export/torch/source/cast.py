"""The effect of a cast to a smaller float type on weights: values that become infinite, or zero."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch

from rmsnorm_export.errors import InputError
from rmsnorm_export.torch.dtypes import dtype_name

_CHUNK = 2**16
"""Elements looked at together: they stay in the cache."""


def check_tensors(tensors: Iterable[tuple[str, torch.Tensor]], target: torch.dtype) -> list[str]:
    """Return notes on what a cast of these tensors to ``target`` loses.

    Raises:
        InputError: a finite value becomes infinite; it names the tensors.
    """
    beyond: dict[str, float] = {}
    vanished: dict[str, int] = {}
    for name, tensor in tensors:
        if tensor.is_floating_point() and not _holds(target, tensor.dtype):
            largest, count = _losses(tensor, target)
            beyond |= {name: largest} if largest else {}
            vanished |= {name: count} if count else {}
    type_name = dtype_name(target)
    if beyond:
        shown = [f"{name} (up to {largest:.6g})" for name, largest in beyond.items()]
        raise InputError(
            f"Weights become infinite in {type_name}.",
            found=f"{len(beyond)} tensors have values above {torch.finfo(target).max:.6g}: "
            + ", ".join(itertools.islice(shown, 4)),
            fix="use --dtype bf16, which has the range of float32, or --dtype f32; or build the "
            "model in a factory that leaves these tensors in float32",
        )
    if not vanished:
        return []
    most, count = max(vanished.items(), key=lambda entry: entry[1])
    return [
        f"{sum(vanished.values())} weights that are not zero become zero in {type_name}, "
        f"the most in {most} ({count})"
    ]


def _losses(tensor: torch.Tensor, target: torch.dtype) -> tuple[float, int]:
    """Return the largest magnitude that becomes infinite, and how many values become zero."""
    beyond, vanished = 0.0, 0
    for part in tensor.detach().reshape(-1).split(_CHUNK):  # type: ignore[no-untyped-call]
        cast = part.to(target)
        vanished += int(part.count_nonzero() - cast.count_nonzero())
        infinite = cast.isinf()
        if infinite.any():
            lost = part[infinite & part.isfinite()].abs().double()
            beyond = max([beyond, *lost.tolist()])
    return beyond, vanished


def _holds(target: torch.dtype, dtype: torch.dtype) -> bool:
    """Return whether no value of ``dtype`` is beyond the range of ``target``."""
    inner, outer = torch.finfo(dtype), torch.finfo(target)
    return inner.max <= outer.max and inner.tiny * inner.eps >= outer.tiny * outer.eps
