"""Norms to compute: every combination of attributes that differs, on inputs that leave no slack.

The sum of squares is the one step whose rounding depends on its order. Here x is made of small
integers, whose squares add up exactly in any order, and gates are 0 or 40, whose sigmoid is exact,
so that two correct implementations agree in every bit.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import torch

from rmsnorm_export.op.dtypes import numpy_dtype, round_to
from rmsnorm_export.op.operands import row_shape
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, HALF_TYPES, NormSpec
from tests.op.torch_arrays import to_torch

DTYPES = (FLOAT, FLOAT16, BFLOAT16, DOUBLE)
SIZES = (1, 3, 111, 123, 199, 4104)

FORMS: dict[str, dict] = {
    "plain": {},
    "paper": {"epsilon": 0.0},
    "outside": {"epsilon_outside": True, "epsilon": 1e-3},
    "clamp": {"epsilon_clamp": True, "epsilon": 0.5},
    "offset": {"scale_offset": 1.0},
    "odd offset": {"scale_offset": 0.1},
    "two axes": {"axis": -2},
    "partial": {"partial_size": 0.4},
    "grouped": {"group_size": 1 / 3},
    "grouped outside": {"group_size": 1 / 3, "epsilon_outside": True},
    "skip": {"kind": "SkipRMSNorm"},
    "skip partial": {"kind": "SkipRMSNorm", "partial_size": 0.0625},
    "gated": {"kind": "GatedRMSNorm"},
    "gated sigmoid": {"kind": "GatedRMSNorm", "activation": "sigmoid", "scale_offset": 1.0},
    "gate first": {"kind": "GatedRMSNorm", "gate_first": True, "group_size": 1 / 3},
    "gate first sigmoid": {"kind": "GatedRMSNorm", "gate_first": True, "activation": "sigmoid"},
    "channels": {"axis": -2, "last_axis": -2},
    "gated channels": {"kind": "GatedRMSNorm", "axis": -2, "last_axis": -2, "epsilon_clamp": True},
    "rotary": {"kind": "RotaryRMSNorm", "rotary_dim": 1.0},
    "rotary pairs": {"kind": "RotaryRMSNorm", "rotary_dim": 0.5, "rotary_interleaved": True},
}
"""Sizes are shares of the row here; see ``spec_of``."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One norm on one kind of input."""

    spec: NormSpec
    dtype: int
    scale: int | None
    bias: int | None


def spec_of(form: str, n: int, **attributes) -> NormSpec:
    """The form on rows of n elements: partial and group sizes that fit."""
    values = {**FORMS[form], **attributes}
    if "partial_size" in values:
        values["partial_size"] = max(1, int(n * values["partial_size"]))
    if "group_size" in values:
        values["group_size"] = n // 3 if n % 3 == 0 else n
    if "rotary_dim" in values:
        values["rotary_dim"] = max(2, 2 * int(n * values["rotary_dim"] / 2))
    return NormSpec(**values)


def orders(dtype: int, form: str) -> Iterator[dict]:
    """Stash types and rounding orders that give different numbers for X of ``dtype``."""
    for stash in dict.fromkeys((FLOAT, DOUBLE, dtype)):
        yield {"stash_type": stash}
        if stash != dtype:
            yield {"stash_type": stash, "scale_before_cast": True}
        if stash != dtype or stash in HALF_TYPES:
            yield {"stash_type": stash, "round_rstd": True}
        whole = not {"group_size", "last_axis"} & {*FORMS[form]}
        if whole and stash == dtype and stash in HALF_TYPES:
            yield {"stash_type": stash, "association": 1, "round_rstd": True}
            yield {"stash_type": stash, "association": 2}
            yield {"stash_type": stash, "association": 2, "round_rstd": True}


def cases(dtype: int, form: str, n: int) -> list[Case]:
    """Every order of one form with the operands that matter."""
    if n == 1 and "rotary_dim" in FORMS[form]:
        return []
    other = FLOAT if dtype != FLOAT else FLOAT16
    operands = [(dtype, None), (other, dtype), (dtype, other)]
    if "scale_offset" not in FORMS[form]:
        operands += [(None, None), (None, dtype)]
    return [
        Case(spec_of(form, n, **order), dtype, scale, bias)
        for order, (scale, bias) in itertools.product(orders(dtype, form), operands)
    ]


def arrays(case: Case, shape: tuple[int, ...], *, exact: bool = True) -> dict[str, np.ndarray]:
    """Operands by name; ``exact``: no sum or sigmoid is rounded, see above."""
    rng = np.random.default_rng(shape[-1])
    kind, row = case.spec.kind, row_shape(case.spec, shape)

    # No zero, alone or as a sum: a row of zeros without an epsilon is NaN, which compares nothing.
    x = rng.choice([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0], shape)
    residual = rng.choice([-6.0, -5.0, -4.0, 4.0, 5.0, 6.0], shape)
    if not exact:
        x, residual = rng.normal(size=(2, *shape))
    found = {"x": (case.dtype, x)}
    if kind == "SkipRMSNorm":
        found["residual"] = (case.dtype, residual)
    if kind == "GatedRMSNorm":
        gate = rng.choice([0.0, 40.0], shape) if exact else rng.normal(size=shape) * 2
        gate[..., 0] = 40.0
        found["gate"] = (case.dtype, gate)
    if kind == "RotaryRMSNorm":
        # Of each element in half of the rows' lengths, of each pair in the others.
        size = case.spec.rotary_dim // (1 + shape[-1] % 2)
        for name in ("cos", "sin"):
            found[name] = (case.dtype, rng.normal(size=(shape[-2], size)))
    for name, dtype in (("scale", case.scale), ("bias", case.bias)):
        if dtype is not None:
            found[name] = (dtype, rng.normal(size=row))
    return {
        name: round_to(values, dtype).astype(numpy_dtype(dtype))
        for name, (dtype, values) in found.items()
    }


def tensors(case: Case, shape: tuple[int, ...], *, exact: bool = True) -> dict[str, torch.Tensor]:
    """``arrays`` as PyTorch tensors."""
    return {name: to_torch(value) for name, value in arrays(case, shape, exact=exact).items()}
