"""Few things to choose: what ``--help`` lists of each command, and how many flags there are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from rmsnorm_export.cli.main import cli
from rmsnorm_export.cli.options import BRIEF

from .conftest import Run

MOST_LISTED = 15
MOST_FLAGS, MOST_SLOTS = 60, 150


def _commands(group: click.Group = cli, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(_commands())


def _listed(text: str) -> list[str]:
    options = text.partition("\nOptions:\n")[2].partition("\n\n")[0]
    assert not re.search(r"^  [A-Z]", options, re.MULTILINE)  # the arguments are in the first line
    return re.findall(r"^  (?:-\w, )?--([\w-]+)", options, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_at_most_twelve_and_help_all_every_option(run: Run, name: str) -> None:
    text, whole = (run(*name.split(), flag).text for flag in ("--help", "--help-all"))
    options = [one for one in COMMANDS[name].params if isinstance(one, click.Option)]
    flags = [*(one.opts[-1][2:] for one in options), "help"]
    brief = _listed(text)
    assert len(brief) <= MOST_LISTED
    assert brief == [flag for flag in flags if flag in brief]
    assert set(BRIEF.get(name, "").split()) <= set(brief)  # or there is no such flag
    assert _listed(whole) == flags
    more = len(flags) - len(brief)
    assert (
        text.endswith(f"--help-all lists {more} more options.\n") == (name in BRIEF) == (more > 0)
    )


def test_there_are_few_flags() -> None:
    every = [*cli.params, *(one for command in COMMANDS.values() for one in command.params)]
    flags = [one.opts[-1] for one in every if isinstance(one, click.Option)]
    assert len(set(flags)) <= MOST_FLAGS
    assert len(flags) <= MOST_SLOTS
