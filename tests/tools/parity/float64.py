"""A whole PyTorch model in float64, although its code says ``float32`` in many places.

``model.double()`` is not enough: norms, softmax and rotary embeddings cast to float32 by name.
Under this mode every operator that is asked for a float32 result gives a float64 one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NARROW = (torch.float32, torch.float16, torch.bfloat16)


class _Widened(TorchDispatchMode):
    """Asks for float64 wherever a narrower type is asked for; remembers what stayed narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow: dict[str, None] = {}

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in _NARROW:
            kwargs["dtype"] = torch.float64
        args = tuple(torch.float64 if _is_narrow(value) else value for value in args)
        out = func(*args, **kwargs)
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor) and value.dtype in _NARROW:
                self.narrow[str(func)] = None
        return out


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in _NARROW


def run(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The result of ``model`` on ``inputs``, computed in float64; ``model`` is converted in place.

    Raises:
        TypeError: an operator gave a narrower type all the same.
    """
    model = model.double()
    wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), _Widened() as mode:
            result = model(*wide)
    finally:
        torch.set_default_dtype(default)
    if mode.narrow or result.dtype != torch.float64:
        raise TypeError(f"not in float64: {', '.join(mode.narrow) or result.dtype}")
    return result
