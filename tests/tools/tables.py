"""Tables of cases and of graphs in text, each beside the module that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec.toml


def table(module: str) -> Any:
    """The TOML file of the name of a module, given by its ``__file__``."""
    return msgspec.toml.decode(Path(module).with_suffix(".toml").read_bytes())
