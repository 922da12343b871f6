"""Where a command's result goes: to stdout, and to the files of --report, --html and --png.

The files are checked before the work, for they must not replace a model or each other, and each is
written whole or not at all. Nothing that was found out is lost with a file that cannot be written.
"""

from __future__ import annotations

import datetime
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.failure import explain, with_problem
from rmsnorm_export.cli.options import State
from rmsnorm_export.errors import Error, InputError, UsageError

if TYPE_CHECKING:
    from rmsnorm_export.show.page.document import Section
    from rmsnorm_export.show.text import Line

_FLAGS = {
    "--report": "Write the report to FILE too: as JSON if it ends in .json, else as text.",
    "--png": "Write a plot to FILE; needs matplotlib.",
    "--html": "Write the report to FILE as a page for a browser: complete in itself, no network.",
}
_PAGE_PACKAGES = ("rmsnorm-export", "onnx", "onnx-ir", "onnxruntime", "numpy")


def file_options(*flags: str, replaces: str = "") -> Callable[[Callable[..., None]], Any]:
    """Flags for files, and --force, as one argument ``files`` of a command.

    Args:
        flags: out of --report, --png and --html.
        replaces: what --force replaces; "": the files of these.
    """
    several = "existing files" if len(flags) > 1 else "an existing file"
    help_ = replaces or f"Replace {several} of {', '.join(flags)}."

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def command(state: State, *, force: bool, **given: Any) -> None:
            paths = {flag: given.pop(f"{flag.removeprefix('--')}_path") for flag in flags}
            function(state, files=Files(state, paths, force=force), **given)

        known: Any = click.option("--force", is_flag=True, help=help_)(command)
        for flag in reversed(flags):
            kind, name = click.Path(path_type=Path), f"{flag.removeprefix('--')}_path"
            known = click.option(flag, name, type=kind, metavar="FILE", help=_FLAGS[flag])(known)
        return known

    return decorate


class Files:
    """The files that a command line names for its result.

    Attributes:
        state: of the command line.
        paths: flag -> where it will go; None: nowhere.
        force: existing files may be replaced.
    """

    def __init__(self, state: State, paths: Mapping[str, Path | None], *, force: bool) -> None:
        self.state, self.force = state, force
        self.paths = {flag: path for flag, path in paths.items() if path is not None}

    @property
    def drawn(self) -> bool:
        """Whether a page is wanted, which shows drawings."""
        return "--html" in self.paths

    def check(self, *taken: str | Path | None) -> None:
        """Before work is done: each file can be written and is nobody else's.

        Args:
            taken: other paths of the command line, which no file must replace.

        Raises:
            UsageError: a path is ``-``, one of ``taken``, that of another file, or exists without
                ``force``.
            InputError: its folder is missing, or it is a folder.
        """
        others = [os.fspath(other) for other in taken if other is not None]
        for flag, path in self.paths.items():
            _check_file(path, flag, others, self.force)
            others.append(os.fspath(path))

    def finish(
        self,
        result: object,
        error: Error | None = None,
        *,
        lines: Sequence[Line] | None = None,
        extra: Mapping[str, object] | None = None,
        facts: Sequence[tuple[str, str]] = (),
        sections: Sequence[Section] | None = None,
        **options: object,
    ) -> None:
        """Write the files, print the result, and end the command.

        Args:
            result: of the command.
            error: what it ends with.
            lines: its text; None: as ``show.show_lines`` makes it with ``options``.
            extra: further keys of the JSON document.
            facts: more lines for the summary of the page, e.g. what was written.
            sections: more parts of the page.
            options: as for ``show.show_lines`` and ``show.to_html``.

        Raises:
            ReportedError: there is an error, or a file could not be written.
        """

        def page() -> str:
            from rmsnorm_export.show import to_html

            more = {} if sections is None else {"sections": sections}
            return to_html(result, about=_about(facts, error), **more, **options)

        def report() -> str:
            if self.paths["--report"].suffix == ".json":
                return console.json_text(result, error, extra)
            return console.plain_text(result, self.state, lines, options)

        def plot() -> bytes:
            from rmsnorm_export.benchmark.plot import to_png

            return to_png(result)  # type: ignore[arg-type]  # only a benchmark has --png

        made: dict[str, Callable[[], str | bytes]]
        made = {"--report": report, "--png": plot, "--html": page}
        for flag, path in self.paths.items():
            try:
                self._write(path, made[flag]())
            except Exception as problem:
                error = with_problem(error, flag, problem)
        console.finish(self.state, result, error, lines=lines, extra=extra, **options)

    def _write(self, path: Path, content: str | bytes) -> None:
        """What is no plain file (``/dev/null``, a named pipe) is written to as it is."""
        from rmsnorm_export.system.files import write_whole

        write_whole(path, content, replace=self.force)


def _about(facts: Sequence[tuple[str, str]], error: Error | None) -> Any:
    """What a page says of its making."""
    from rmsnorm_export.show.page.document import About
    from rmsnorm_export.system.packages import versions_of

    failure = None if error is None else explain(error)
    return About(
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        versions=tuple(versions_of(_PAGE_PACKAGES).items()),
        facts=tuple(facts),
        problem=None if failure is None else (failure.what, failure.found, failure.fix),
    )


def _check_file(path: Path, flag: str, taken: Sequence[str], force: bool) -> None:
    if str(path) == "-":
        raise UsageError(
            f"{flag} needs a file.",
            found=f"{flag} -",
            fix=f"leave {flag} away: the report is on stdout, or on stderr with -o -",
        )
    for other in taken:
        if other != "-" and os.path.realpath(other) == os.path.realpath(path):
            raise UsageError(
                f"{flag} would overwrite a model or another report.",
                found=str(path),
                fix="give it another name",
            )
    problem = ""
    if not path.parent.is_dir():
        problem, fix = f"no folder {path.parent}", f"create it: mkdir -p {path.parent}"
    elif path.is_dir():
        problem, fix = f"{path} is a folder", "give a file name"
    if problem:
        raise InputError("The report cannot be written.", found=problem, fix=fix)
    if path.is_file() and not force:
        raise UsageError(
            "The report would overwrite a file.",
            found=f"{path} exists",
            fix="give another name, or --force to replace it",
        )


def file_size(path: str) -> list[tuple[str, str]]:
    """A fact for the summary: how large a model file is, its external weights apart."""
    try:
        return [("Model file", size_text(os.path.getsize(path)))]
    except (OSError, ValueError):
        return []


def size_text(count: int) -> str:
    """A number of bytes for people, in powers of 1024."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
