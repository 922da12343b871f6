"""``check``: whether an engine can run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.options import State
from rmsnorm_export.errors import BackendMissingError, Error, InputError, NotRunError

if TYPE_CHECKING:
    from rmsnorm_export.tensorrt.engine.result import EngineCheck


@define("check", short_help="Say whether an engine can run here.")
@click.argument("engine")
def command(state: State, engine: str) -> None:
    """Say whether ENGINE can run on this machine, before something tries to run it.

    The record that build wrote beside it, ENGINE.json, is compared with the file and with what is
    installed; then the backend is asked, in a process of its own. Nothing is changed. Without a GPU
    no engine can be called good: the answer is then "unknown", unless something stands against it.

    \b
    Exit code 0 when it can be used; 3 when it cannot, and when it cannot be
    read; 6 when all it lacks here is its backend; 7 when only a GPU could tell.

    \b
    Example:
      rmsnorm-export check fused.engine
    """
    from rmsnorm_export.tensorrt.engine.check import check_engine

    with console.progress(state, "Asking the backend"):
        result = check_engine(engine)
    console.finish(state, result, _unusable_engine(result))


def _unusable_engine(found: EngineCheck) -> Error | None:
    """The error that the exit code stands for; None when the engine can be used."""
    from rmsnorm_export.system.packages import is_installed
    from rmsnorm_export.tensorrt.engine import backends

    if found.usable == "yes":
        return None
    if found.usable == "unknown":
        return NotRunError(
            "The engine could not be loaded here, so that nothing is known of it but its file.",
            found="; ".join(found.notes),
            fix="check it where its backend and a GPU are",
        )
    info = backends.BACKENDS.get(found.backend)
    # What else stands against it would remain with the backend installed.
    lacking = info is not None and not is_installed(info.module) and len(found.problems) == 1
    kind = BackendMissingError if lacking else InputError
    return kind(
        "The engine cannot be used here.",
        found="; ".join(found.problems),
        fix="; ".join(dict.fromkeys(found.fixes)),
    )
