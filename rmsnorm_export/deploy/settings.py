"""Read a pipeline file: every key checked, paths made absolute, tables checked against each other.

Nothing here reads a model, imports a runtime or writes: errors come before any work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec.toml

from rmsnorm_export.deploy.packaged import NAME
from rmsnorm_export.deploy.tables import STEPS, TABLES, Settings
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.options import REQUIRED, OptionError, make, spread
from rmsnorm_export.printable import did_you_mean, one_line, quoted, short
from rmsnorm_export.system.reading import read_file

LARGEST = 1 << 20
"""Bytes of a pipeline file."""


def read_settings(path: Path) -> Settings:
    """Return the settings that a file says.

    Raises:
        InputError: the file, or one that a key names, cannot be read, or is no TOML.
        UsageError: a table or key that there is not, a value that cannot be used, a key that is
            missing, or tables that do not go together.
    """
    inside, tables = f"In {short(path.name)}", read_tables(path)
    settings = Settings(path=path, **tables)
    for where, wrong, found, fix in _problems(settings):
        if wrong:
            raise UsageError(f"{inside}, {where}: this cannot be run.", found=found, fix=fix)
    for table in tables:
        for key, files in settings.paths(table).items():
            for file in files:
                _check_input(f"{inside}, [{table}] {key}", file, settings.folder)
    return settings


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a file by name, as records; raises as ``read_settings``."""
    inside, tables = f"In {short(path.name)}", {}
    for name, values in {"pipeline": {}, **_parsed(path)}.items():
        if name not in TABLES or not isinstance(values, dict):
            fix = f"{did_you_mean(name, TABLES)}the tables are [{'], ['.join(TABLES)}]"
            raise UsageError(f"{inside}: there is no such table.", found=short(name), fix=fix)
        tables[name] = _record(f"{inside}, [{name}]", TABLES[name], values, path.parent)
    return tables


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return dict(msgspec.toml.decode(read_file(path, LARGEST)))
    except OSError as error:
        problem, fix = error.strerror or str(error), "check the path"
    except (ValueError, RecursionError) as error:  # DecodeError is a ValueError
        problem, fix = one_line(str(error), 300), "correct it there; strings need quotes"
    found = f"{short(str(path), 300)}: {problem}"
    raise InputError("The pipeline file cannot be read.", found=found, fix=fix)


def _record(where: str, table: Any, values: dict[str, Any], folder: Path) -> Any:
    """Make a record from a table; paths are relative to ``folder``, wherever the command runs."""
    entries = {entry.key: entry for entry in spread(table) if entry.facts.toml}
    needed = [key for key, entry in entries.items() if entry.default is REQUIRED]
    for key in (*values, *needed):
        if key not in entries or key not in values:
            problem = "there is no such key" if key in values else "the key is missing"
            hint = did_you_mean(key, entries) if key in values else ""
            fix = f"{hint}the keys are {', '.join(entries)}"
            found = f"the keys {short(', '.join(values)) or 'none'}"
            raise UsageError(f"{where} {short(key)}: {problem}.", found=found, fix=fix)
    absolute = {k: _absolute(v, folder) if entries[k].is_path else v for k, v in values.items()}
    try:
        return make(table, absolute)
    except UsageError as error:
        key = f" {error.entry.key}" if isinstance(error, OptionError) else ""
        raise error.at(f"{where}{key}") from error


def _absolute(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_absolute(item, folder) for item in value]
    return Path(os.path.abspath(folder / value)) if isinstance(value, str) and value else value


def _problems(s: Settings) -> Iterator[tuple[str, object, str, str]]:
    """Yield what may be wrong: where, whether it is, what was found and how to mend it."""
    names = "use letters, digits, _ and -: it is the name of files"
    yield "[pipeline] name", not NAME.fullmatch(s.name), quoted(s.name), names
    both = (s.model is None) == (s.export is None)
    yield "[model] or [export]", both, "neither or both", "keep one of them"
    yield "steps", not s.steps, "[model] alone", f"add a table: {', '.join(STEPS[1:])}"
    cache = s.export and not s.export.task and (s.export.static_cache or s.export.multi_token)
    yield "[export]", cache, "keys of a decoder's cache", 'add task = "generation", or omit them'
    nothing = s.verify and not s.optimize and not s.build
    yield "[verify]", nothing, "nothing to compare", "add [optimize] or [build]"
    required = s.verify and s.verify.engine == "require" and not s.build
    yield "[verify] engine", required, "no [build]", "add [build]"
    if s.package and s.package.model == "engine":
        yield "[package] model", s.of_graphs, "a folder of graphs", "omit it"
        yield "[package] model", not s.build, "no [build]", "add [build]"
        rtx = s.build and s.build.backend == "tensorrt-rtx"
        yield "[package] model", rtx, "Triton does not run it", 'give [build] backend = "tensorrt"'


def _check_input(where: str, file: Path, folder: Path) -> None:
    found = short(str(file), 300)
    if not file.exists():
        fix = "check the path; it is relative to the pipeline file"
        raise InputError(f"{where}: the file does not exist.", found=found, fix=fix)
    if Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder)):
        fix = "put it elsewhere, or give another [pipeline] folder"
        raise UsageError(f"{where}: an input is in the pipeline's folder.", found=found, fix=fix)
