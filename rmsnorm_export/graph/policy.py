"""The policies for external data on saving."""

from __future__ import annotations

from typing import Literal

WeightsPolicy = Literal["auto", "reference", "copy", "embed"]
"""The place of external data after saving.

auto: referenced where it already lies beside the output, else copied. reference: left where it is;
the output must be in the source's folder. copy: a copy, which costs nothing on file systems that
clone. embed: stored inside the model, up to 2 GiB in all.
"""
