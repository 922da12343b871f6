"""The kinds of quantization, and what one did to a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from rmsnorm_export.printable import plural

Quantize = Literal["int4", "int8"]
QUANTIZED_RTOL: Mapping[str, float] = {"int4": 0.5, "int8": 0.1}
"""Largest difference that a quantization may make, relative to the largest element of an output: an
unrelated output is off by 1 or more, LLaMA and Qwen3 of 4 layers with random weights by 0.25 and
0.05, and trained weights round better."""


@dataclasses.dataclass(frozen=True, slots=True)
class Quantization:
    """Effect of ONNX Runtime's quantizer, after the norms were fused.

    Attributes:
        kind: ``int4`` or ``int8``.
        products: products of matrices that have quantized weights.
        kept: products that have not (of two activations).
        bytes_before, bytes_after: of all weights.
        problem: the output that is further off than is allowed, or "".
        compared: how the outputs compare with those of the graph before, or "".
        not_compared: why they were not, or "".
    """

    kind: str
    products: int
    kept: int
    bytes_before: int
    bytes_after: int
    problem: str = ""
    compared: str = ""
    not_compared: str = ""

    def summary(self) -> str:
        """One line, e.g. ``int8: weights of 17 products, 8 kept; 80.7 to 32.1 MB``."""
        sizes = " to ".join(f"{size / 1e6:,.1f}" for size in (self.bytes_before, self.bytes_after))
        products = plural(self.products, "product")
        return f"{self.kind}: weights of {products}, {self.kept} kept; {sizes} MB"
