"""Random weights that a test can tell apart, the same in every run and process."""

from __future__ import annotations

import torch

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def randomise(module: torch.nn.Module, *, seed: int) -> None:
    """Every parameter and floating buffer from a seeded distribution far from zeros and ones.

    Gains lie in +-[0.25, 1.75], so that a dropped, squared or shifted gain shows; buffers (running
    statistics) are positive, since a variance among them has to be.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            value = torch.rand(parameter.shape, generator=generator) * 1.5 + 0.25
            sign = torch.where(torch.rand(parameter.shape, generator=generator) < 0.2, -1.0, 1.0)
            parameter.copy_((value * sign).to(parameter.dtype))
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
