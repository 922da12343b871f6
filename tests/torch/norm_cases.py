"""Norms to compute: every combination of attributes that differs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, HALF_TYPES, NormSpec
from tests.op import norm_models
from tests.op.norm_models import Case
from tests.op.torch_arrays import to_torch

DTYPES = (FLOAT, FLOAT16, BFLOAT16, DOUBLE)
SIZES = (1, 3, 111, 123, 199, 4104)

FORMS: dict[str, dict] = {
    "paper": {"epsilon": 0.0},
    "odd offset": {"scale_offset": 0.1},
    "gated channels": {"kind": "GatedRMSNorm", "axis": -2, "last_axis": -2, "epsilon_clamp": True},
    **{name: form for name, form in norm_models.FORMS.items() if "round_rstd" not in form},
}
"""Sizes are those of rows of 24; see ``spec_of``."""


def spec_of(form: str, n: int, **attributes) -> NormSpec:
    """The form on rows of n elements: partial and group sizes that fit."""
    values = {**FORMS[form], **attributes}
    if "partial_size" in values:
        values["partial_size"] = max(1, n * values["partial_size"] // 24)
    if "group_size" in values:
        values["group_size"] = n // 3 if n % 3 == 0 else n
    if values.get("kind") == "RotaryRMSNorm":
        values["rotary_dim"] = max(2, 2 * (n * values.get("rotary_dim", 24) // 48))
    return NormSpec(**values)


def orders(dtype: int, form: str) -> Iterator[dict]:
    """Stash types and rounding orders that give different numbers for X of ``dtype``."""
    for stash in dict.fromkeys((FLOAT, DOUBLE, dtype)):
        yield {"stash_type": stash}
        if stash != dtype:
            yield {"stash_type": stash, "scale_before_cast": True}
        if stash != dtype or stash in HALF_TYPES:
            yield {"stash_type": stash, "round_rstd": True}
            # From float64 PyTorch rounds twice: here, in front of two more roundings.
            if "group_size" not in FORMS[form] and stash != DOUBLE:
                yield {"stash_type": stash, "round_rstd": True, "scale_rstd": True}
        whole = not {"group_size", "last_axis"} & {*FORMS[form]}
        if whole and stash == dtype and stash in HALF_TYPES:
            yield {"stash_type": stash, "association": 1, "round_rstd": True}
            yield {"stash_type": stash, "association": 2}
            yield {"stash_type": stash, "association": 2, "round_rstd": True}


def case_of(
    spec: NormSpec,
    dtype: int,
    scale: int | None,
    bias: int | None,
    shape: tuple[int, ...] = (2, 3, 6),
) -> Case:
    """A case whose tables have an element for each of a row's, or for each pair where n is odd."""
    if spec.kind != "RotaryRMSNorm":
        return Case(spec, dtype, scale, bias, shape)
    size = spec.rotary_dim // (1 + shape[-1] % 2)
    return Case(spec, dtype, scale, bias, shape, dtype, (shape[-2], size))


def cases(dtype: int, form: str, n: int) -> list[Case]:
    """Every order of one form with the operands that matter."""
    if n == 1 and FORMS[form].get("kind") == "RotaryRMSNorm":
        return []
    other = FLOAT if dtype != FLOAT else FLOAT16
    operands = [(dtype, None), (other, dtype), (dtype, other)]
    if "scale_offset" not in FORMS[form]:
        operands += [(None, None), (None, dtype)]
    return [
        case_of(spec_of(form, n, **order), dtype, scale, bias, (2, 3, n))
        for order, (scale, bias) in itertools.product(orders(dtype, form), operands)
    ]


def tensors(case: Case) -> dict[str, torch.Tensor]:
    """Random operands as PyTorch tensors."""
    return {name: to_torch(value) for name, value in case.operands().items()}
