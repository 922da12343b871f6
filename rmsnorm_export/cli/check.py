"""``check``: whether an engine can run on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import FILE
from rmsnorm_export.cli.outcome import is_folder
from rmsnorm_export.errors import InputError


@define("check", reports=False, params=[click.Argument(["file"], type=FILE, metavar="ENGINE")])
def command(files: Files, file: str) -> None:
    """Say whether ENGINE can run on this machine, before something tries to run it.

    The record that build wrote beside it, ENGINE.json, is compared with the file and with what is
    installed; then the backend is asked, in a process of its own. Nothing is changed. Without a GPU
    no engine can be called good: the answer is then "unknown", unless something stands against it.
    Of a folder of engines each is checked.

    Exit code 0 when it can be used; 3 when it cannot, and when it cannot be read; 6 when all it
    lacks here is its backend; 7 when only a GPU could tell.

    \b
    Example:
      rmsnorm-export check fused.engine
    """
    from rmsnorm_export.graph.bundle import Components
    from rmsnorm_export.tensorrt.engine.backends import engines_in, is_engine
    from rmsnorm_export.tensorrt.engine.check import check_engine

    path = Path(file)
    engines = engines_in(path) if is_folder(file) else [path]
    if not engines or (path.is_file() and not is_engine(path)):
        raise InputError(
            "The file is not an engine.",
            found=file,
            fix="give an engine or a folder that build made; inspect reads an ONNX model",
        )
    with console.progress(files.state, "Asking the backend"):
        files.remember(file)
        results = {engine.name: check_engine(engine) for engine in engines}
    errors = [one.error for one in results.values() if one.error is not None]
    worst = min(errors, key=lambda error: error.exit_code, default=None)
    files.finish(Components(path, results) if is_folder(file) else results[path.name], worst)
