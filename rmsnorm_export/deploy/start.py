"""A pipeline file to start with: the lines of ``start.toml``, each key described by its record."""

from __future__ import annotations

import re
from importlib import resources

from rmsnorm_export.deploy.tables import TABLES
from rmsnorm_export.options import OptionEntry, names_in, spread

_TABLE = re.compile(r"(?:# )?\[(\w+)\]")
_KEY = re.compile(r'(?:# )?(\w+) = "?([^"]*)"?')
_END = re.compile(r" \(|, e\.g\.|[.;](?: |$)")
_COLUMN = 40
"""Width of the longest usual line, behind which the descriptions stand."""


def starting_file() -> str:
    """Return a pipeline file whose commented keys work as they stand."""
    text = resources.files(__package__).joinpath("start.toml").read_text(encoding="utf-8")
    lines, entries = [], {}
    for line in text.splitlines():
        if table := _TABLE.match(line):
            entries = {entry.key: entry for entry in spread(TABLES[table[1]])}
        elif key := _KEY.match(line):
            line = f"{line:{_COLUMN}}  # {_description(entries[key[1]], key[2])}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _description(entry: OptionEntry, value: str) -> str:
    """Return the clause of an option's help on a value, or else the first; and possible names."""
    clauses, names = _END.split(entry.facts.help), names_in(entry.written)
    clause = next((one for one in clauses if one.startswith(f"{value}: ")), clauses[0])
    return clause if all(name in clause for name in names) else f"{clause} [{'|'.join(names)}]"
