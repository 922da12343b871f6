"""The magnitudes that norms, sums and products survive in half precision; runs that overflow."""

from __future__ import annotations

import dataclasses
from typing import Literal

END, BEYOND = 65504.0, 65520.0
"""The largest number of float16, and the least that rounds to infinity."""
RESTORED = 1e-8
"""Epsilon that float16 holds as 0 and float32 does not."""
KEEP, BRAIN, UPCAST = "keep in float32", "bfloat16", "--numerics upcast"
EPSILON = f"{UPCAST} --epsilon {RESTORED}"
STORED = "store an epsilon of 6.1e-05 or more"
"""The cures of a norm, the first for a conversion to float16; each is tried before it is named. The
last is of one that no option gives an epsilon, and that is kept in float32 as well."""


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """The inputs for which a norm, a residual sum or a reduction is a number in its type.

    Sums of squares are taken to be formed in float32 or wider and rounded once, as in ONNX Runtime.

    Attributes:
        site: name of its last node, or of the call that it is in.
        kind: ``norm``, ``residual sum``, or an operator: one that adds up products or elements, or
            of which float16 does not hold a result in the run.
        module: path of the PyTorch module it came from, where the exporter wrote it down.
        scope: ``main`` or the subgraph that holds it.
        dtype: element type of the rows; with ``converted`` that which they would have.
        converted: all its float32, or bfloat16, is taken for float16: a conversion is foreseen.
        largest: the largest magnitude in a row of which the norm is what float64 makes of it; of
            each of two equal addends; of the result of an operator.
        least: below this magnitude a row of such elements gives NaN, infinities or other numbers,
            as without an epsilon; 0: no row does, not even zeros.
        node, op, computed: the node that overflows above ``largest``, its operator, and the element
            type of its result; "" where none does.
        epsilon: as it is in the type in which it is added; None of a sum.
        subnormal: that type holds epsilon as a subnormal number, which some devices take for 0.
        assumed: what the file does not say and was taken for 1: ``scale``, ``bias``, ``gate``.
        problem: why it was not examined, or "".
        measured: the largest magnitude of its row, of the sum or of the result, in float32; None:
            not known.
        cure: the one that was tried and helps, or "".
        keep: tensors of the file that it is enough to keep in float32 for that.
    """

    site: str
    kind: str
    module: str | None
    scope: str
    dtype: str
    converted: bool
    largest: float = 0.0
    least: float = 0.0
    node: str = ""
    op: str = ""
    computed: str = ""
    epsilon: float | None = None
    subnormal: bool = False
    assumed: tuple[str, ...] = ()
    problem: str = ""
    measured: float | None = None
    cure: str = ""
    keep: tuple[str, ...] = ()

    @property
    def is_norm(self) -> bool:
        """Return whether it is a norm, or a sum that one reads."""
        return self.kind in ("norm", "residual sum")

    @property
    def fails(self) -> bool:
        """Return whether a magnitude that the type holds is too large for it."""
        return bool(self.cure) or self.computed == "float16"

    @property
    def beyond(self) -> bool:
        """Return whether the run has a row, or a sum, beyond the magnitude that survives."""
        end = self.largest * (2 if self.kind == "residual sum" else 1)
        return self.measured is not None and self.measured > end


@dataclasses.dataclass(frozen=True, slots=True)
class HealthRun:
    """A run of the model whose values were looked at, and where they stop being numbers.

    Attributes:
        computed: ``in float32``; ``in half precision`` with every value rounded to its type; ``with
            the cures``: likewise, but for what the cures keep in float32 and the constants that
            they replace.
        inputs: ``random, seed 0``, a path, or ``given arrays``.
        values: how many values were looked at.
        problem: why it was not run, or "".
        odd: values that are NaN, or that float16 does not hold. Not those that are infinite in
            float32, too, nor masks.
        tensor: the first of them; "": none.
        size: its largest magnitude; NaN.
        node, op: what makes it.
        module: path of the PyTorch module of the node, where it is known.
        constant: that float16 does not hold, of whose infinity the node makes it, or "".
        cure: that was tried in the last run, or "".
        off: with the cures, the distance of the outputs from float32, of their largest element.
    """

    computed: Literal["in float32", "in half precision", "with the cures"]
    inputs: str
    values: int = 0
    problem: str = ""
    odd: int = 0
    tensor: str = ""
    size: float = 0.0
    node: str = ""
    op: str = ""
    module: str | None = None
    constant: str = ""
    cure: str = ""
    off: float | None = None
