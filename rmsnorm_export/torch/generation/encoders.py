"""Encoders of text, sound and images, which transformers runs before ``forward``."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

Stages = dict[str, tuple[Any, dict[str, Any]]]
"""A module and the inputs of its ``forward``, by the name of the component that it becomes."""


def encoders_of(model: Any) -> dict[str, tuple[Any, str]]:
    """Return the module of each encoder and its method that ``generate`` calls, by its name."""
    if model.config.is_encoder_decoder:
        return {"encoder": (model.get_encoder(), "forward")}
    methods = {f"{name}_encoder": f"get_{name}_features" for name in ("image", "video")}
    base = model.base_model
    return {name: (base, method) for name, method in methods.items() if hasattr(base, method)}


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
        taken = inspect.signature(call).parameters

        def keep(*args: Any, **feeds: Any) -> Any:
            module = copy.copy(owner)
            module.forward = _in_order(call)
            tensors = {key: feeds[key] for key in taken if torch.is_tensor(feeds.get(key))}
            stages[name] = module, tensors
            return call(*args, **feeds)

        return keep

    with contextlib.ExitStack() as stack:
        for name, (owner, method) in encoders_of(model).items():
            stack.enter_context(replaced(owner, method, kept(name, owner, method)))
        yield stages
