"""Settings of tiny models, as TOML: a table may take others ``with`` it, which it overrules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec.toml

Table = dict[str, Any]


def tables(file: Path) -> Table:
    """Return the tables of a file, those that they name under ``shared`` filled in."""
    read: Table = msgspec.toml.decode(file.read_bytes())
    shared = read.pop("shared")

    def filled(table: Table) -> Table:
        whole: Table = {}
        for name in table.get("with", ()):
            whole |= filled(shared[name])
        own = {key: value for key, value in table.items() if key != "with"}
        return whole | {k: filled(v) if isinstance(v, dict) else v for k, v in own.items()}

    return {name: filled(table) for name, table in read.items()}
