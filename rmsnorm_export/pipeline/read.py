"""Read a pipeline file: its tables with every key checked, paths made absolute.

``tomllib`` tells the line of a syntax error only. The line of a key is looked up in the text, and
said where there is just one line that it can be.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.options import REQUIRED, OptionError, make, spread
from rmsnorm_export.pipeline.tables import TABLES
from rmsnorm_export.printable import nearest, one_line, quoted, short
from rmsnorm_export.system.files import missing_fix

LARGEST = 1 << 20
"""Bytes of a pipeline file."""

_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_\-.\"' ]+?)\s*\]\s*(#.*)?$")


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """A pipeline file.

    Attributes:
        path: absolute.
        text: of the file.
        tables: by name, as dataclasses of ``tables``; paths in them are absolute.
    """

    path: Path
    text: str
    tables: dict[str, Any]

    def error(self, table: str, key: str, what: str, *, found: str, fix: str) -> UsageError:
        """An error that names the file, the table, the key and, where it is known, the line."""
        return UsageError(f"{place(self, table, key)}: {what}", found=found, fix=fix)


def place(document: Document, table: str, key: str = "") -> str:
    """``In decoder.toml, line 12, [build] backend``; of a missing key the line of its table."""
    line = _line(document.text, table, key) or _line(document.text, table, "")
    where = f"In {short(document.path.name)}{f', line {line}' if line else ''}, [{short(table)}]"
    return f"{where} {short(key)}" if key else where


def read_document(path: str | os.PathLike[str], changes: Iterable[str] = ()) -> Document:
    """The file with every table read and every value of the right type.

    Args:
        path: of the file.
        changes: ``TABLE.KEY=VALUE`` each, which hold in its place; a value is TOML, or text.

    Raises:
        InputError: the file cannot be read, or is no TOML.
        UsageError: a table or key that there is not, a value of another type or out of its
            choices, or a key that is missing.
    """
    file = Path(os.path.abspath(os.fspath(path)))
    text = _read_text(file)
    body = _parsed(file, text)
    for change in changes:
        _change(body, change)
    document = Document(file, text, {})
    for name, value in body.items():
        if name not in TABLES:
            _refuse_name(document, name, value)
        if not isinstance(value, dict):
            raise document.error(
                name,
                "",
                "this is no table.",
                found=short(repr(value)),
                fix=f"write [{name}] above keys",
            )
        document.tables[name] = _read_table(document, name, value)
    if "pipeline" not in document.tables:
        raise document.error(
            "pipeline", "", "the table is missing.", found=f"the tables {_table_names(body)}",
            fix='begin the file with [pipeline] and name = "..."',
        )  # fmt: skip
    return document


def _read_text(file: Path) -> str:
    shown = short(str(file), 300)
    try:
        with file.open("rb") as stream:
            data = stream.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ValueError("it is larger than 1 MiB")
        return data.decode("utf-8")
    except FileNotFoundError as error:
        raise InputError(
            "The pipeline file does not exist.",
            found=shown,
            fix=f"{missing_fix(file)}; see docs/examples for some",
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(
            "The pipeline file cannot be read.",
            found=f"{shown}: {getattr(error, 'strerror', None) or one_line(str(error), 200)}",
            fix="give the path of a TOML file; see docs/examples for some",
        ) from error


def _change(body: dict[str, Any], change: str) -> None:
    """Put ``TABLE.KEY=VALUE`` into what was read."""
    place, equals, value = change.partition("=")
    table, dot, key = place.strip().partition(".")
    if not (equals and dot and table and key) or not isinstance(body.get(table, {}), dict):
        raise UsageError(
            "--set: the change cannot be read.",
            found=quoted(change),
            fix="give TABLE.KEY=VALUE, e.g. optimize.target=ort",
        )
    try:
        parsed: Any = _toml().loads(f"value = {value}")
        read = parsed["value"] if len(parsed) == 1 else value
    except (ValueError, RecursionError):
        read = value
    body.setdefault(table, {})[key] = read


def _toml() -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib


def _parsed(file: Path, text: str) -> dict[str, Any]:
    try:
        body: dict[str, Any] = _toml().loads(text)
        return body
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        raise InputError(
            "The pipeline file is no TOML.",
            found=f"{short(file.name)}: {one_line(str(error), 300)}",
            fix="correct it there; strings stand in quotes, paths too",
        ) from error


def _refuse_name(document: Document, name: str, value: Any) -> None:
    if isinstance(value, dict):
        raise document.error(
            name, "", "there is no such table.", found=f"[{short(name)}]",
            fix=_nearest(name, TABLES, "tables", "[{}]"),
        )  # fmt: skip
    raise UsageError(
        f"In {short(document.path.name)}: a key stands outside of every table.",
        found=f"{short(name)} = {short(repr(value))}",
        fix=f"put it below the header of its table: {_table_names(TABLES)}",
    )


def _nearest(name: str, known: Iterable[str], what: str, shape: str) -> str:
    near = nearest(name, list(known))
    all_ = f"the {what} are {', '.join(known)}"
    return f"did you mean {shape.format(near)}? {all_}" if near else all_


def _table_names(tables: Iterable[str]) -> str:
    return ", ".join(f"[{short(name)}]" for name in tables) or "none"


def _read_table(document: Document, name: str, given: dict[str, Any]) -> Any:
    table = TABLES[name]
    known = {entry.key: entry for entry in spread(table) if entry.facts.toml}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise document.error(
                name, key, "there is no such key.", found=f"{short(key)} = {short(repr(value))}",
                fix=_nearest(key, known or ["none"], f"keys of [{name}]", "{}"),
            )  # fmt: skip
        values[key] = _absolute(value, document.path.parent) if known[key].is_path else value
    for key, entry in known.items():
        if key not in values and entry.default is REQUIRED:
            raise document.error(
                name, key, "the key is missing.",
                found=f"keys {', '.join(map(quoted, given)) or 'none'}",
                fix=f"add {key} = ... below [{name}]",
            )  # fmt: skip
    try:
        return make(table, values)
    except UsageError as error:
        key = error.entry.key if isinstance(error, OptionError) else ""
        raise error.at(place(document, name, key)) from error


def _absolute(value: Any, folder: Path) -> Any:
    """Paths are relative to the pipeline file, wherever the command runs."""
    if isinstance(value, str) and value:
        return Path(os.path.abspath(folder / value))
    if isinstance(value, list):
        return [_absolute(item, folder) for item in value]
    return value


def _line(text: str, table: str, key: str) -> int | None:
    """The one line that has ``key`` of ``table``, or its header; None where that is not certain."""
    inside, lines = False, []
    wanted = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]")
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            name = header[1]
            inside = name == table
            exact = f"{table}.{key}" if key else table
            if name == exact:
                lines.append(number)
        elif inside and key and wanted.match(line):
            lines.append(number)
    return lines[0] if len(lines) == 1 else None
