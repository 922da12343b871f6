"""Few things to choose: what ``--help`` lists of each command, and how many flags there are."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rmsnorm_export.cli.main import cli
from rmsnorm_export.cli.options import BRIEF
from tests import warm

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
def test_help_lists_at_most_fifteen_and_help_all_every_option(run: Run, name: str) -> None:
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


# What only a real process shows: a light start, terminals, pipes, signals.

PROGRAM = [sys.executable, "-m", "rmsnorm_export"]
HEAVY = (
    "numpy", "onnx", "onnx_ir", "onnxruntime", "rich", "torch", "ml_dtypes", "logging", "ctypes",
    "tensorrt", "tensorrt_rtx", "polygraphy", "jinja2", "rmsnorm_export.tensorrt.plugin",
    "jsonschema", "matplotlib", "onnxscript", "tomli", "tomllib", "transformers", "tritonclient",
    "yaml",
)  # fmt: skip
PROCESSES = ("", "optimize", "inspect", "verify", "export", "build", "doctor", "plugin")


def test_help_loads_nothing_but_click() -> None:
    """And the package itself not even that."""
    code = (
        "import sys, rmsnorm_export, rmsnorm_export.errors\nassert 'click' not in sys.modules\n"
        "from rmsnorm_export.cli.main import main\n"
        f"for name in {PROCESSES!r}:\n    assert main([*name.split(), '--help']) == 0\n"
        f"print('loaded', *sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("Usage: rmsnorm-export") == len(PROCESSES)
    assert done.stdout.splitlines()[-1] == "loaded"


@pytest.mark.parametrize("arguments", [["optimize", "three.onnx", "-o", "-"], ["inspect", "-"]])
def test_no_model_is_written_to_or_read_from_a_terminal(three: Path, arguments: list[str]) -> None:
    master, slave = pty.openpty()
    streams = {"stdin": slave, "stdout": slave, "stderr": slave}
    process = subprocess.Popen([*PROGRAM, *arguments], **streams, cwd=three.parent)
    os.close(slave)
    assert process.wait(timeout=60) == 2
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert "error: " in shown
    assert "terminal" in shown


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "arguments", [["inspect", "three.onnx"], ["optimize", "three.onnx", "-o", "-"], ["inspect"]]
)
def test_a_reader_that_goes_away(three: Path, arguments: list[str], as_json: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PROGRAM, *arguments, *(["--format", "json"] if as_json else [])],
        cwd=three.parent,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    wrong = arguments == ["inspect"]
    assert done.returncode == (2 if wrong and not as_json else 141)
    assert done.stderr.startswith(b"error: ") if wrong else done.stderr == b""


INTERRUPTED = """
import os, signal
from rmsnorm_export import api
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
api.optimize = lambda *_, **__: os.kill(os.getpid(), signal.{})
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_ctrl_c(three: Path, name: str) -> None:
    arguments = ("optimize", "three.onnx", "-o", "out.onnx", "--format", "json")
    done = warm.run(INTERRUPTED.format(name) + warm.COMMAND, *arguments, folder=three.parent)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert [path.name for path in three.parent.iterdir()] == ["three.onnx"]
