"""Traces in forks of this process: several at once, and none leaves anything behind.

PyTorch keeps some 9 MB of a trace for each layer of a decoder, in caches or scattered between what
stays, so that nothing frees it here. A fork shares the weights and copies none.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.external import placed
from rmsnorm_export.graph.load import serialize
from rmsnorm_export.graph.tensors import lent_slots, tensor_slots
from rmsnorm_export.system.process import Fork, ForkEndedError, how_ended

Rest = TypeVar("Rest")

Storages = Mapping[int, torch.UntypedStorage]
"""The memory of weights by its address, which a fork has at the same one."""


_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Others are made of several, or are no memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class _View:
    """A tensor, as a part of a storage."""

    address: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def begin_trace(
    module: torch.nn.Module, trace: Callable[[], tuple[ir.Model, Rest]]
) -> Callable[[], tuple[ir.Model, Rest]]:
    """Begin a trace in a fork, and return what waits for its end and returns what it does.

    Where the system or CUDA do not allow a fork, the trace is what is returned.

    Args:
        module: what is traced, whose weights may be in the graph.
        trace: returns a graph, and what else is to be had of it, which can be pickled.

    Raises:
        InputError: the fork ended; raised by what is returned, as whatever ``trace`` raises.
    """
    weights = [*module.parameters(), *module.buffers()]
    cuda: Any = torch.cuda
    if sys.platform != "linux" or cuda.is_initialized() or not all(one.is_cpu for one in weights):
        return trace
    every = (one.untyped_storage() for one in weights if type(one) in _PLAIN and one.numel())
    storages = {storage.data_ptr(): storage for storage in every}

    def traced() -> tuple[bytes, list[_View], Rest]:
        torch.set_num_threads(1)  # the others are the caller's
        model, rest = trace()
        return *_without(model, storages), rest

    wait = Fork(lambda: traced).begin()

    def answer() -> tuple[ir.Model, Rest]:
        try:
            content, views, rest = wait()
        except ForkEndedError as error:
            what = "The process in which the model is traced ended before it was done."
            fix = "see whether the machine is short of memory, and export again"
            raise InputError(what, found=how_ended(error.code), fix=fix) from error
        return _with(content, views, storages), rest

    return answer


def _without(model: ir.Model, storages: Storages) -> tuple[bytes, list[_View]]:
    """Return a model with the numbers of its views where its weights are, and these views."""
    views: list[_View] = []
    with lent_slots(model) as slots:
        for slot in slots:
            raw: Any = getattr(slot.tensor, "raw", None)
            address = raw.untyped_storage().data_ptr() if type(raw) in _PLAIN else 0
            if address in storages:
                slot.put(placed(slot.tensor, str(len(views)), "", None))
                place = raw.storage_offset(), tuple(raw.shape), raw.stride()
                views.append(_View(address, raw.dtype, *place))
        return serialize(model), views


def _with(content: bytes, views: list[_View], storages: Storages) -> ir.Model:
    """Return the model of `_without`, which has its weights again."""
    model = ir.from_proto(onnx.load_model_from_string(content))
    for slot in list(tensor_slots(model)):
        if isinstance(slot.tensor, ir.ExternalTensor):
            view = views[int(str(slot.tensor.location))]
            tensor = torch.empty(0, dtype=view.dtype)
            tensor.set_(storages[view.address], view.offset, view.shape, view.stride)
            slot.put(TorchTensor(tensor, name=slot.tensor.name))
    return model
