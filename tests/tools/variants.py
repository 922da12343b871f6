"""Attributes of the operator that its tests have in common, from ``variants.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec.toml

VARIANTS: dict[str, Any] = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
