"""torchvision, which other packages import."""

from __future__ import annotations

import contextlib
import functools

import torch


@functools.cache
def without_kernels() -> torch.library.Library:
    """Let torchvision be imported where its own kernels do not load.

    Its wheel is built for one build of PyTorch; beside another one (that for the CPU alone) the
    import fails, as two operators that nobody here calls are not declared.
    """
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # they are there: the kernels load
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
