"""Every key of a pipeline file with what it takes, made from the tables themselves."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

from rmsnorm_export.pipeline.convert import expected
from rmsnorm_export.pipeline.tables import TABLES


def reference() -> str:
    """A TOML file with every table and key, each commented out, with its type and default."""
    lines = ["# [model] or [export] is needed; a step runs when its table is there."]
    for name, table in TABLES.items():
        hints = typing.get_type_hints(table)
        lines += ["", f"[{name}]" if name == "pipeline" else f"# [{name}]"]
        for field in dataclasses.fields(table):
            what = expected(hints[field.name], field.metadata.get("least"))
            lines.append(f"# {field.name}: {what}{_default(field)}")
    return "\n".join([*lines, ""])


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return ""
    if field.default is dataclasses.MISSING:
        return "; required"
    return "" if field.default in (None, ()) else f"; default {json.dumps(field.default)}"
