"""Encoders of text, sound and images, which transformers runs before ``forward``."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from rmsnorm_export.errors import InputError

Stages = dict[str, tuple[Any, dict[str, Any]]]
"""A module and the inputs of its ``forward``, by the name of the component that it becomes."""

ONE_SIZE = "the images of a call have one size: attention, as exported, takes parts of one length"


def encoders_of(model: Any) -> dict[str, tuple[Any, str]]:
    """Return the module of each encoder and its method that ``generate`` calls, by its name."""
    if model.config.is_encoder_decoder:
        return {"encoder": (model.get_encoder(), "forward")}
    methods = {f"{name}_encoder": f"get_{name}_features" for name in ("image", "video")}
    base = model.base_model
    if hasattr(base, "get_image_features") and takes_grids(base.get_image_features):
        return {"image_encoder": (model.get_encoder("image"), "forward")}
    return {name: (base, method) for name, method in methods.items() if hasattr(base, method)}


def takes_grids(features: Callable[..., Any]) -> bool:
    """Return whether images of several sizes come as patches, with the grid of each (Qwen-VL)."""
    return "image_grid_thw" in inspect.signature(features).parameters


def inputs_of(call: Any, *args: Any, **feeds: Any) -> dict[str, Any]:
    """Return the inputs of an encoder by name, with what the exporter computes of grids before.

    Raises:
        InputError: images have unlike sizes.
    """
    from transformers.exporters.utils import precompute_export_inputs

    inputs = {**dict(zip(inspect.signature(call).parameters, args, strict=False)), **feeds}
    if "grid_thw" in inputs:
        precompute_export_inputs(call.__self__, inputs)
        for name, value in inputs.items():  # it computes in float32; the exporter casts
            if torch.is_tensor(value) and value.is_floating_point():
                inputs[name] = value.to(call.__self__.dtype)
        for name in {"cu_seqlens", "cu_window_seqlens"} & inputs.keys():
            lengths = inputs[name].diff()
            if (lengths != lengths[0]).any():
                raise InputError(
                    "The attention of an exported encoder takes parts of one length.",
                    found=f"{name}: {lengths.tolist()}, grids {inputs['grid_thw'].tolist()}",
                    fix="resize the images to one size, of whole windows where it has windows; or "
                    "use --part language-model",
                )
    return inputs


@contextlib.contextmanager
def replaced(module: Any, method: str, by: Callable[..., Any]) -> Iterator[None]:
    """Let a method compute what ``by`` does; ``generate`` looks at its parameters."""
    before = vars(module).get(method)
    setattr(module, method, functools.wraps(getattr(module, method))(by))
    try:
        yield
    finally:
        delattr(module, method)
        if before is not None:
            setattr(module, method, before)


def _in_order(call: Callable[..., Any]) -> Callable[..., Any]:
    """Give the fields of a result in the order of its class, in which its runner takes them."""

    @functools.wraps(call)
    def ordered(*args: Any, **feeds: Any) -> Any:
        result = call(*args, **feeds)
        return type(result)(**result)

    return ordered


@contextlib.contextmanager
def encoder_calls(model: Any) -> Iterator[Stages]:
    """Catch the encoders that run and their inputs, which transformers' exporter omits."""
    stages: Stages = {}

    def kept(name: str, owner: Any, method: str) -> Callable[..., Any]:
        call = getattr(owner, method)

        def keep(*args: Any, **feeds: Any) -> Any:
            module = copy.copy(owner)
            module.forward = _in_order(call)
            inputs = inputs_of(call, *args, **feeds)
            stages[name] = module, {key: one for key, one in inputs.items() if torch.is_tensor(one)}
            return call(*args, **feeds)

        return keep

    with contextlib.ExitStack() as stack:
        for name, (owner, method) in encoders_of(model).items():
            stack.enter_context(replaced(owner, method, kept(name, owner, method)))
        yield stages
