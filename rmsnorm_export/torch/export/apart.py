"""A trace in a fork of this process, which ends with all that PyTorch keeps of a trace.

That is about 9 MB for each layer of a decoder, some of it held by caches and the rest scattered, so
that nothing frees it here. The fork shares the weights and copies none.
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
from rmsnorm_export.graph.load import serialize
from rmsnorm_export.graph.tensors import lent_slots, tensor_slots
from rmsnorm_export.system.process import Fork, ForkEndedError

Rest = TypeVar("Rest")
Storages = Mapping[int, torch.UntypedStorage]
"""Of the weights of a module, by their address, which is the same in a fork."""


@dataclasses.dataclass(frozen=True, slots=True)
class _View:
    """What part of a storage a tensor is."""

    address: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, storages: Storages) -> torch.Tensor:
        tensor = torch.empty(0, dtype=self.dtype)
        return tensor.set_(storages[self.address], self.offset, self.shape, self.stride)


def trace_apart(
    module: torch.nn.Module, trace: Callable[[], tuple[ir.Model, Rest]]
) -> tuple[ir.Model, Rest]:
    """Return what a trace of a module returns, which runs in a fork where one can do it.

    Args:
        module: has the weights.
        trace: returns a graph, whose weights are the module's, and what else there is to know,
            which can be pickled.

    Raises:
        InputError: the fork ended.
        Exception: what ``trace`` raises.
    """
    if sys.platform != "linux" or torch.cuda.is_initialized():  # which no fork can use
        return trace()
    weights = [*module.parameters(), *module.buffers()]
    storages = {w.untyped_storage().data_ptr(): w.untyped_storage() for w in weights}
    storages.pop(0, None)  # of tensors without elements

    def answer() -> tuple[bytes, list[_View], Rest]:
        torch.set_num_threads(1)  # those of the caller are not here
        model, rest = trace()
        return *_without(model, storages), rest

    try:
        content, views, rest = Fork(lambda: answer)()
    except ForkEndedError as error:
        what, fix = "The process that traces the model ended.", "see whether memory was short"
        raise InputError(what, found=f"exit code {error.code}", fix=fix) from error
    return _with(content, views, storages), rest


def _without(model: ir.Model, storages: Storages) -> tuple[bytes, list[_View]]:
    """Return a model without the tensors of these storages, and what these are."""
    views = []
    with lent_slots(model) as slots:
        for slot in slots:
            raw = getattr(slot.tensor, "raw", None)
            if not isinstance(raw, torch.Tensor):
                continue
            address = raw.untyped_storage().data_ptr()
            if address not in storages:
                continue
            place, shape = str(len(views)), slot.tensor.shape
            one = ir.ExternalTensor(place, None, None, slot.tensor.dtype, shape=shape, name=slot.name)
            slot.put(one)
            how = (raw.storage_offset(), tuple(raw.shape), raw.stride())
            views.append(_View(address, raw.dtype, *how))
        return serialize(model), views


def _with(content: bytes, views: list[_View], storages: Storages) -> ir.Model:
    """Return the model again, with its tensors."""
    model = ir.from_proto(onnx.load_model_from_string(content))
    for slot in list(tensor_slots(model)):
        if isinstance(slot.tensor, ir.ExternalTensor):
            tensor = views[int(slot.tensor.location)].of(storages)
            slot.put(TorchTensor(tensor, name=slot.name))
    return model
