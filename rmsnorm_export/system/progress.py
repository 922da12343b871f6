"""How work says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the work at hand, the steps that are over and the steps in all."""
