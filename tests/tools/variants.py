"""Attributes of the operator that its tests have in common, from ``variants.toml``."""

from __future__ import annotations

from typing import Any

from tests.tools.tables import table

VARIANTS: dict[str, Any] = table(__file__)
