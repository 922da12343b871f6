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
QUANTIZED_PERPLEXITY: Mapping[str, float] = {"int4": 1.1, "int8": 1.02}
"""Largest perplexity of a text that a quantization may leave, times that of the model before."""


@dataclasses.dataclass(frozen=True, slots=True)
class Quantization:
    """Effect of a quantization, after the norms were fused.

    Attributes:
        kind: ``int4`` or ``int8``.
        products: products of matrices that have quantized weights.
        activations: what the products make of the others: ``in int8`` or ``as they are``.
        kept: products that have not (of two activations, mostly).
        bytes_before, bytes_after: of all weights.
        problem: the loss that is larger than is allowed, or "".
        left: weights that lose most, alone: the KL divergence on a text, or the largest share that
            an output of random inputs is off by. In int4 they have 8 bits, in int8 their type.
        compared: the loss, on what text or inputs, or "".
        not_compared: why they were not, or "".
    """

    kind: str
    products: int
    activations: str
    kept: int
    bytes_before: int
    bytes_after: int
    problem: str = ""
    compared: str = ""
    not_compared: str = ""
    left: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def summary(self) -> str:
        """One line: ``int8: weights of 7 products, activations in int8, 2 kept; 8 to 2 bytes``."""
        sizes = f"{self.bytes_before:,} to {self.bytes_after:,} bytes"
        products = plural(self.products, "product")
        words = f"weights of {products}, activations {self.activations}, {self.kept} kept"
        return f"{self.kind}: {words}; {sizes}"

    def slow_words(self) -> str:
        """Return what takes longer than before, or "" (ONNX Runtime 1.31, float32 and float16)."""
        if self.kind != "int8" or self.activations == "in int8":
            return ""
        why = "since activations are not rounded; in int4 it takes less time than before"
        return f"on a CPU a single row takes 5 times as long as before, {why}"

    def left_words(self) -> str:
        """Return which weights were left as they are, or in 8 bits, and what each lost; or ""."""
        names = "; ".join(f"{name} ({loss:.2g})" for name, loss in self.left.items())
        form = "in 8 bits" if self.kind == "int4" else "as they are"
        return f"left {form}, since they lose most: {names}" if names else ""
