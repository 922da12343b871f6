"""Read a pipeline file: its tables with every key checked, paths made absolute."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from rmsnorm_export.deploy.tables import TABLES
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.options import REQUIRED, OptionError, make, spread
from rmsnorm_export.printable import did_you_mean, one_line, short
from rmsnorm_export.system.reading import read_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST = 1 << 20
"""Bytes of a pipeline file."""


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a file by name, as dataclasses of ``tables``.

    Raises:
        InputError: the file cannot be read, or is no TOML.
        UsageError: a table or key that there is not, a value of another type or out of its
            choices, or a key that is missing.
    """
    body = _parsed(path)
    where, tables = f"In {short(path.name)}", {}
    for name, values in {"pipeline": {}, **body}.items():
        if name not in TABLES or not isinstance(values, dict):
            raise UsageError(
                f"{where}: there is no such table.",
                found=short(name),
                fix=f"{did_you_mean(name, TABLES)}the tables are [{'], ['.join(TABLES)}]",
            )
        tables[name] = _record(f"{where}, [{name}]", TABLES[name], values, path.parent)
    return tables


def _record(where: str, table: Any, values: dict[str, Any], folder: Path) -> Any:
    """Make a record from a table; paths are relative to ``folder``, wherever the command runs."""
    known = {entry.key: entry for entry in spread(table) if entry.facts.toml}
    needed = [key for key, entry in known.items() if entry.default is REQUIRED]
    for key in (*values, *needed):
        if key not in known or key not in values:
            what = f"{where} {short(key)}: there is no such key."
            what = what if key in values else f"{where} {key}: the key is missing."
            fix = f"{did_you_mean(key, known)}the keys are {', '.join(known)}"
            raise UsageError(what, found=f"the keys {short(', '.join(values)) or 'none'}", fix=fix)
    try:
        return make(
            table, {k: _absolute(v, folder) if known[k].is_path else v for k, v in values.items()}
        )
    except UsageError as error:
        key = f" {error.entry.key}" if isinstance(error, OptionError) else ""
        raise error.at(f"{where}{key}") from error


def _absolute(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_absolute(item, folder) for item in value]
    return Path(os.path.abspath(folder / value)) if isinstance(value, str) and value else value


def _parsed(path: Path) -> dict[str, Any]:
    problem = fix = ""
    try:
        return dict(tomllib.loads(read_file(path, LARGEST).decode("utf-8")))
    except OSError as error:
        problem, fix = error.strerror or str(error), "check the path; --init makes one"
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        problem, fix = one_line(str(error), 300), "correct it there; strings stand in quotes"
    found = f"{short(str(path), 300)}: {problem}"
    raise InputError("The pipeline file cannot be read.", found=found, fix=fix)
