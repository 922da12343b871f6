"""``check``: whether an engine can run on this machine, and whether a report is still true."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files, file_options
from rmsnorm_export.cli.folder import is_folder
from rmsnorm_export.cli.options import FILE, State
from rmsnorm_export.errors import BackendMissingError, Error, InputError, NotRunError, UsageError

if TYPE_CHECKING:
    from rmsnorm_export.tensorrt.engine.result import EngineCheck


@define("check", short_help="Say whether an engine can run here, or a report still holds.")
@click.argument("file", type=FILE, metavar="ENGINE|REPORT.json")
@file_options("--report", "--html")
def command(state: State, file: str, files: Files) -> None:
    """Say whether ENGINE can run on this machine, before something tries to run it.

    The record that build wrote beside it, ENGINE.json, is compared with the file and with what is
    installed; then the backend is asked, in a process of its own. Nothing is changed. Without a GPU
    no engine can be called good: the answer is then "unknown", unless something stands against it.

    Of a folder of engines each is checked.

    Of a JSON report (of --report or --format json, or the deploy.json of a run), say whether the
    files that it is about are still the same. Relative paths in it are looked for in its folder
    first. An ONNX model is neither: see inspect and verify.

    \b
    Exit code 0 when it can be used; 3 when it cannot, and when it cannot be
    read; 6 when all it lacks here is its backend; 7 when only a GPU could tell.
    Of a report: 4 when a file is changed or missing.

    \b
    Examples:
      rmsnorm-export check fused.engine
      rmsnorm-export check fused.json
    """
    files.check(file)
    if Path(file).suffix.lower() == ".json":
        from rmsnorm_export.system.provenance import check_report

        with console.progress(state, "Reading the files"):
            checked = check_report(file)
        files.finish(checked, checked.error)
        return
    from rmsnorm_export.tensorrt.engine.check import check_engine

    if is_folder(file):
        _check_folder(state, Path(file), files)
        return
    _refuse_model(file)
    with console.progress(state, "Asking the backend"):
        result = check_engine(file)
    files.finish(result, _unusable_engine(result), inputs=[file])


def _check_folder(state: State, folder: Path, files: Files) -> None:
    """Every engine in a folder, as build makes it of prefill and decode."""
    from rmsnorm_export.graph.bundle import Components
    from rmsnorm_export.tensorrt.engine.backends import engines_in
    from rmsnorm_export.tensorrt.engine.check import check_engine

    engines = engines_in(folder)
    if not engines:
        raise InputError(
            "There is no engine in the folder.",
            found=f"no file of {folder} is one",
            fix="give a folder that build made, or an engine",
        )
    with console.progress(state, "Asking the backend"):
        results = {path.name: check_engine(path) for path in engines}
    errors = [error for error in map(_unusable_engine, results.values()) if error is not None]
    worst = min(errors, key=lambda error: error.exit_code, default=None)
    files.finish(Components(folder, results), worst, inputs=[folder])


def _refuse_model(file: str) -> None:
    """Raise ``UsageError`` for what is an ONNX model: that it can be read proves nothing of it."""
    from rmsnorm_export.graph.load import model_files
    from rmsnorm_export.tensorrt.engine.backends import is_engine

    if is_engine(file) or not Path(file).is_file():
        return
    if Path(file).suffix.lower() != ".onnx":
        try:
            model_files(file)
        except Error:
            return
    raise UsageError(
        "An ONNX model is neither an engine nor a report, which check takes.",
        found=file,
        fix="rmsnorm-export inspect MODEL lists its norms, verify MODEL OTHER compares it; or give "
        "an engine, or a JSON report of --report",
    )


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
