"""The bounds of a comparison of two models, by type and with their reasons, and its outcome.

The default bound of an output is relative to its largest element: after many layers single small
elements are differences of large ones and carry no relative accuracy of their own.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.metrics import ErrorMetrics, compare_arrays

# Largest |a - b| over the largest |a|. A fused norm differs from its source by some units of
# roundoff (u), and each layer of a residual network passes such differences on about as large as
# they came; tens of layers make tens of u. float32: u = 6e-8, and the sums inside matrix products
# and softmax add to it; 1e-4 is 1700 u. float16: u = 4.9e-4; 1e-2 is 20 u. bfloat16: u = 3.9e-3;
# 4e-2 is 10 u. A wrong epsilon, weight or axis moves a trained model's logits by far more.
DEFAULT_RTOL = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}

_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Unit roundoff u: half the distance from 1 to the next number of the type."""


@dataclasses.dataclass(frozen=True, slots=True)
class OutputComparison:
    """One output of the two models.

    Attributes:
        name: of the output.
        metrics: of the second model's values against the first model's.
        bound_abs: largest ``max_abs`` allowed: ``atol + rtol * (largest finite |a|)``.
        bound_ulp: largest ``max_ulp`` allowed; None: no such bound.
        passed: every bound held, and NaN and infinities agree.
        reason: the bound that failed, or "".
        tolerance: where the bound comes from, e.g. ``float16: 0.01 of the largest element, 20
            units of roundoff (4.9e-04) through the layers`` or ``given: rtol 0.001``.
    """

    name: str
    metrics: ErrorMetrics
    bound_abs: float
    bound_ulp: float | None
    passed: bool
    reason: str
    tolerance: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DifferenceSite:
    """The RMSNorm at which, or after which, two models begin to differ.

    Attributes:
        name: of its node, or of the last of its nodes.
        op: kind of the norm, e.g. ``RMSNorm``.
        module: path of the PyTorch module that it came from, where the exporter wrote it down.
        place: ``at``: it computes the value that differs from values that agree; ``among``: it does
            so together with other nodes, of which any may be the cause; ``before``: it is the last
            norm on the way to that value.
    """

    name: str
    op: str
    module: str | None
    place: Literal["at", "among", "before"]


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The first value that differs, computed from values that agree.

    Attributes:
        value: its name, which both models have; where one is PyTorch, that of the other.
        node: name of the node that computes it in the second model, or in the first where the
            second is PyTorch; the operator type where it has no name.
        op: type of that node.
        module: path of the PyTorch module of the node, where it is known.
        site: the norm at or before it; None: no norm is on the way to it.
        inputs: the nearest values before it that were compared.
        inputs_agree: all of them are within bounds; False where the search could not go on.
        conclusion: the finding as a sentence.
        comparison: of that value. It may be within its bound, where the difference jumps here and
            grows beyond the bound later, which ``conclusion`` says then. The bound is relative to
            the largest element, huge ones that are equal in both, as of a mask, left out.
        compared: values that both models computed for this.
        shared: values that both models have.
        output: name of the output whose difference was followed to this place.
        notes: what the search did not look into.
    """

    value: str
    node: str
    op: str
    module: str | None
    site: DifferenceSite | None
    inputs: tuple[str, ...]
    inputs_agree: bool
    conclusion: str
    comparison: OutputComparison
    compared: int
    shared: int
    output: str
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of ``verify``.

    Attributes:
        passed: every output passed.
        reason: why not: the outputs that failed, with their bounds; or "".
        outputs: one entry per output of the first model, in its order.
        runtime: what computed both, e.g. ``onnxruntime 1.31.1 (CPU)``; where they differ, the first
            model's and the second model's, joined by ``and``.
        optimized: whether ONNX Runtime's own graph optimization was on, for each model.
        inputs: what was fed, e.g. ``input_ids int64 [2, 3]``.
        source: where the inputs came from: ``random, seed 0``, a path, or ``given arrays``.
        notes: what the reader should know, e.g. that an output holds no finite number.
        backends: what ran each model: ``onnxruntime``, ``onnxruntime-cuda``, ``torch``,
            ``tensorrt`` or ``tensorrt-rtx``.
        first_difference: where the models begin to differ; None where they agree, or where that
            was not looked for (see ``notes``).
    """

    passed: bool
    reason: str
    outputs: tuple[OutputComparison, ...]
    runtime: str
    optimized: tuple[bool, bool]
    inputs: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()
    backends: tuple[str, str] = ("onnxruntime", "onnxruntime")
    first_difference: Difference | None = None

    @property
    def found(self) -> str:
        """The outputs that failed, and where the models begin to differ; "" when all passed."""
        first = self.first_difference
        return self.reason if first is None else f"{self.reason}; {first.conclusion}"


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """How far two arrays may be apart.

    Attributes:
        atol, rtol, max_ulp: as for ``rmsnorm_export.verify``; None: not given.
        reduced: "" or why float32 is computed with fewer digits than it has, e.g. ``TF32 products
            on CUDA``: 11 significant bits, those of float16.
    """

    atol: float | None = None
    rtol: float | None = None
    max_ulp: float | None = None
    reduced: str = ""

    def of(self, dtype: str, through: str = "") -> tuple[float, str]:
        """The bound relative to the largest element, and its reason.

        Args:
            dtype: of the arrays.
            through: a coarser type in which they, or what they come from, were computed; or "".
        """
        given = {"rtol": self.rtol, "atol": self.atol, "max_ulp": self.max_ulp}
        said = ", ".join(f"{name} {value:g}" for name, value in given.items() if value is not None)
        if self.rtol is not None or self.atol is not None:
            return self.rtol or 0.0, f"given: {said}"
        also = f"; given: {said}" if said else ""
        if dtype not in DEFAULT_RTOL:
            return 0.0, f"{dtype}: must be equal{also}"
        why = ""
        computed = dtype
        if dtype == "float32" and self.reduced:
            computed, why = "float16", f", those of 11 significant bits: {self.reduced}"
        if DEFAULT_RTOL.get(through, 0.0) > DEFAULT_RTOL[computed]:
            computed, why = through, f", those of {through}, by way of which it is computed"
        rtol, u = DEFAULT_RTOL[computed], _ROUNDOFF[computed]
        reason = f"{dtype}: {rtol:g} of the largest element, {_count(rtol / u)} units of roundoff"
        return rtol, f"{reason} ({u:.1e}) through the layers{why}{also}"


def _count(number: float) -> str:
    """Two significant digits: 20, 1700, 9e+06."""
    return f"{number:.1e}" if number >= 1e5 else f"{float(f'{number:.2g}'):.0f}"


def compare_output(
    name: str,
    found: Array,
    expected: Array,
    *,
    atol: float | None,
    rtol: float | None,
    max_ulp: float | None,
    reduced: str = "",
    largest: float | None = None,
    through: str = "",
) -> OutputComparison:
    """One output against what it should be.

    Args:
        name: of the output.
        found, expected: arrays of one type and shape.
        atol, rtol, max_ulp: bounds, as for ``verify``; with neither atol nor rtol, the default
            rtol of the type.
        reduced: as in ``Bounds``.
        largest: what the relative bound refers to; None: the largest finite ``|expected|``.
        through: as for ``Bounds.of``.
    """
    metrics = compare_arrays(found, expected)
    relative, tolerance = Bounds(atol, rtol, max_ulp, reduced).of(metrics.dtype, through)
    if largest is None:
        largest = _largest(expected) if relative else 0.0
    bound = (atol or 0.0) + relative * largest
    reason = ""
    if not metrics.nan_inf_agree:
        reason = "NaN or infinities in different places"
    elif metrics.max_abs > bound:
        reason = f"largest difference {metrics.max_abs:.3g}, {bound:.3g} allowed"
    elif max_ulp is not None and metrics.max_ulp > max_ulp:
        reason = f"largest difference {metrics.max_ulp:g} ulp, {max_ulp:g} allowed"
    return OutputComparison(name, metrics, bound, max_ulp, not reason, reason, tolerance)


def _largest(array: Array) -> float:
    if array.dtype.kind in "OSU":
        return 0.0
    sizes = np.abs(array.astype(np.float64))
    return float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
