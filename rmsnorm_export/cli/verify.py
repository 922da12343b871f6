"""``verify``: run two models on the same inputs and compare every output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.options import State, format_option, logging_options

if TYPE_CHECKING:
    from rmsnorm_export.cli.failure import Failure


def _shapes(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, list[int]]:
    """``NAME=1x16`` as a pair; the name may hold ``=``."""
    shapes: dict[str, list[int]] = {}
    for value in values:
        name, equals, dims = value.rpartition("=")
        sizes = dims.split("x")
        if not equals or not name or not all(s.isascii() and s.isdigit() for s in sizes):
            raise click.BadParameter(f"{value!r} is not NAME=SIZExSIZE..., e.g. input_ids=1x16")
        if name in shapes:
            raise click.BadParameter(f"the shape of {name!r} is given twice")
        if any(len(s) > 18 or int(s) == 0 for s in sizes):
            raise click.BadParameter(f"every size in {value!r} must be from 1 to 10**18")
        shapes[name] = [int(s) for s in sizes]
    return shapes
