"""``--report FILE``: the report in a file, JSON or text by its suffix."""

from __future__ import annotations

import os
from pathlib import Path

from rmsnorm_export.errors import InputError, UsageError


def check(path: Path, *, force: bool, taken: tuple[str, ...], option: str = "--report") -> None:
    """Before work is done: ``path`` can be written and is nobody else's.

    Args:
        path: where the report will go.
        force: an existing file may be replaced.
        taken: other paths of the command line, which the report must not replace.
        option: what the user gave ``path`` with.

    Raises:
        UsageError: ``path`` is ``-``, one of ``taken``, or exists without ``force``.
        InputError: its folder is missing, or it is a folder.
    """
    if str(path) == "-":
        raise UsageError(
            f"{option} needs a file.",
            found=f"{option} -",
            fix=f"leave {option} away: the report is on stdout, or on stderr with -o -",
        )
    for other in taken:
        if other != "-" and os.path.realpath(other) == os.path.realpath(path):
            raise UsageError(
                f"{option} would overwrite a model or another report.",
                found=str(path),
                fix="give it another name",
            )
    if not path.parent.is_dir():
        raise InputError(
            "The report cannot be written.",
            found=f"no folder {path.parent}",
            fix=f"create it: mkdir -p {path.parent}",
        )
    if path.is_dir():
        raise InputError(
            "The report cannot be written.", found=f"{path} is a folder", fix="give a file name"
        )
    if path.is_file() and not force:
        raise UsageError(
            "The report would overwrite a file.",
            found=f"{path} exists",
            fix="give another name, or --force to replace it",
        )


def write(path: Path, content: str | bytes, *, force: bool) -> None:
    """Write ``content`` to ``path``, text as UTF-8, whole or not at all.

    What is no plain file (``/dev/null``, a named pipe) is written to as it is.
    """
    from rmsnorm_export.system.files import write_whole

    write_whole(path, content, replace=force)
