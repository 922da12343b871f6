"""A conversion to half precision: what stayed float32 and why, and what that costs."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rmsnorm_export.printable import plural

Half = Literal["f16", "bf16"]
KeptFor = Literal["range", "rule", "type", "interface", "between"]
"""``range``: a measured magnitude; ``rule``: an operator that is computed in float32 by rule;
``type``: an operator without a half form; ``interface``: an input or output of the model;
``between``: a node all of whose neighbours are float32, which would cost Casts alone."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """A node that stayed float32.

    Attributes:
        node, op: its name and operator.
        module: path of the PyTorch module that it came from, where the exporter wrote it down.
        kind: of the reason.
        reason: half a sentence.
        tensor, size: the value that does not fit the type, and its largest magnitude, of ``range``.
    """

    node: str
    op: str
    module: str | None
    kind: KeptFor
    reason: str
    tensor: str = ""
    size: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Precision:
    """Effect of a conversion to half precision, after the norms were fused.

    Attributes:
        dtype: ``float16`` or ``bfloat16``.
        limit: the largest number of the type.
        margin: what measured magnitudes were multiplied by before they were compared with it.
        inputs: of the runs in which they were measured: ``random, seed 0``, paths or arrays.
        runs: how many there were.
        kept: the nodes that stayed float32, in order.
        nodes: how many nodes compute floats, those included.
        products, products_kept: how many multiply matrices, and how many of these are float32.
        casts: how many Casts there are more.
        bytes_before, bytes_after: of all stored tensors.
        other, other_kept: the other half type, and how many nodes would stay float32 for it; "" of
            a model that was in half precision already.
        compared: how the outputs differ from those in float32, or "".
        not_compared: why they were not compared, or "".
        problem: an output whose infinities and NaN are not those of float32, or "".
    """

    dtype: str
    limit: float
    margin: float
    inputs: str
    runs: int
    kept: tuple[Kept, ...]
    nodes: int
    products: int
    products_kept: int
    casts: int
    bytes_before: int
    bytes_after: int
    other: str
    other_kept: int
    compared: str = ""
    not_compared: str = ""
    problem: str = ""

    def summary(self) -> str:
        """One line: ``float16: 95 of 99 nodes, 8 of 8 products; 2 Casts more; 84 to 42 bytes``."""
        half = self.nodes - len(self.kept), self.products - self.products_kept
        sizes = f"{self.bytes_before:,} to {self.bytes_after:,} bytes"
        return (
            f"{self.dtype}: {half[0]:,} of {plural(self.nodes, 'node')}, {half[1]} of "
            f"{plural(self.products, 'product')}; {plural(self.casts, 'Cast')} more; {sizes}"
        )
