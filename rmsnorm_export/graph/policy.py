"""The policies for external data on saving."""

from __future__ import annotations

from typing import Literal, get_args

from rmsnorm_export.errors import UsageError
from rmsnorm_export.printable import short

WeightsPolicy = Literal["auto", "reference", "copy", "embed"]
"""The place of external data after saving.

auto: referenced where it already lies next to the output, else copied. reference: left where it is;
the output must be in the source's folder. copy: in one file OUT.data.
embed: stored inside the model, up to 2 GiB in all.
"""

UsedPolicy = Literal["none", "reference", "copy", "embed"]
"""The treatment of external data; ``none`` where there is none."""


def check_policy(weights: WeightsPolicy) -> None:
    """Raise ``UsageError`` for an unknown policy."""
    if weights not in get_args(WeightsPolicy):
        what, fix = "There is no such policy", f"use one of {', '.join(get_args(WeightsPolicy))}"
        raise UsageError(f"{what} for weights.", found=short(str(weights)), fix=fix)
