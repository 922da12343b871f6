"""What the spelled operators compute, in float64, from the definition alone."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def rms(x: Array, axes: int, epsilon: float, place: str, partial: int) -> Array:
    """Root mean square over the last ``axes`` axes, kept as axes of length 1.

    ``sqrt(mean(x**2) + epsilon)``, or ``sqrt(mean(x**2)) + epsilon`` where ``outside``; the larger
    of the two where ``clamp_inside`` and ``clamp``; the mean is that of the first ``partial``
    elements if ``partial`` is not 0 (Zhang & Sennrich 2019, 3.2).
    """
    first = x[..., :partial] if partial else x
    mean = np.mean(np.square(first), axis=tuple(range(-axes, 0)), keepdims=True)
    join = np.maximum if place.startswith("clamp") else np.add
    root_first = place in ("outside", "clamp")
    return join(np.sqrt(mean), epsilon) if root_first else np.sqrt(join(mean, epsilon))


def rms_norm(
    x: Array, *, axes: int, epsilon: float, place: str, partial: int, group: int, zero_of_zero: bool
) -> Array:
    """``x / rms(x)``; with ``group`` the row is cut in groups of that many elements.

    ``zero_of_zero``: a row of zeros stays one, as LpNormalization has it; otherwise 0 / 0.
    """
    rows = x.reshape(*x.shape[:-1], -1, group) if group else x
    root = rms(rows, axes, epsilon, place, partial)
    if zero_of_zero:
        root = np.where(root == 0, 1.0, root)
    with np.errstate(all="ignore"):
        return (rows / root).reshape(x.shape)


def sigmoid(z: Array) -> Array:
    """``1 / (1 + exp(-z))``."""
    return 1.0 / (1.0 + np.exp(-z))


def silu(z: Array) -> Array:
    """``z * sigmoid(z)``."""
    return z * sigmoid(z)
