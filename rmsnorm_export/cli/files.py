"""Where a command's result goes: to stdout, and to the files of --report, --html and --png.

The files are checked before the work, for they must not replace a model or each other, and each is
written whole or not at all. Nothing that was found out is lost with a file that cannot be written.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.failure import ReportedError, error_document, explain, with_problem
from rmsnorm_export.cli.options import State
from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.system.progress import is_styled

if TYPE_CHECKING:
    from rmsnorm_export.show.page.document import About, Section
    from rmsnorm_export.show.text import Line
    from rmsnorm_export.system.provenance import FileState, Provenance

_FLAGS = {
    "--report": "Write the report to FILE too: as JSON if it ends in .json, else as text.",
    "--png": "Write a plot to FILE; needs matplotlib.",
    "--html": "Write the report to FILE as a page for a browser: complete in itself, no network.",
}


_PLAIN = (".engine", ".plan", ".trt", ".pt2", ".json", ".npz")
"""Suffixes of files that are no ONNX models; an engine has its record beside it."""


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
    """Where the result of a command goes.

    Attributes:
        state: of the command line.
        paths: flag -> the file that it names.
        force: existing files may be replaced.
    """

    def __init__(
        self, state: State, paths: Mapping[str, Path | None] | None = None, *, force: bool = False
    ) -> None:
        self.state, self.force = state, force
        self.paths = {flag: path for flag, path in (paths or {}).items() if path is not None}
        self._read: dict[str, Sequence[FileState]] = {}

    @property
    def drawn(self) -> bool:
        """Whether a page is wanted, which shows drawings."""
        return "--html" in self.paths

    @property
    def _audited(self) -> bool:
        """Whether something that is written says what files it is about."""
        return self.state.json or self.state.verbosity > 0 or not self.paths.keys() <= {"--png"}

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

    def source(self, argument: str) -> str | bytes:
        """A MODEL argument for the Python API: the path, or for ``-`` the bytes that are piped in.

        Raises:
            UsageError: stdin is a terminal.
            InputError: nothing was piped in.
        """
        if argument != console.STDIO:
            return argument
        data = console.read_stdin()
        if self._audited:
            from rmsnorm_export.system.provenance import piped_in

            self._read[argument] = [piped_in(data)]
        return data

    def remember(self, argument: str) -> None:
        """Note the files of a MODEL argument as they are, before the output may replace one."""
        if self._audited and argument not in self._read:
            from rmsnorm_export.system.provenance import provenance

            self._read[argument] = provenance(_files_of(argument), ()).inputs

    def finish(
        self,
        result: object,
        error: Error | None = None,
        *,
        inputs: Sequence[str | Path | None] = (),
        outputs: Sequence[Path] = (),
        lines: Sequence[Line] | None = None,
        extra: Mapping[str, object] | None = None,
        facts: Sequence[tuple[str, str]] = (),
        sections: Sequence[Section] | None = None,
        **options: object,
    ) -> None:
        """Write the files, print the result, and end the command.

        It is printed on stderr where stdout carries the model.

        Args:
            result: of the command.
            error: what it ends with.
            inputs: arguments of the command line that were read.
            outputs: files that were written.
            lines: its text; None: as ``show.show_lines`` makes it with ``options``.
            extra: further keys of the JSON document.
            facts: more lines for the summary of the page, e.g. what was written.
            sections: more parts of the page.
            options: as for ``show.show_lines`` and ``show.to_html``.

        Raises:
            ReportedError: there is an error, or a file could not be written.
        """
        made = self._made(result, inputs, outputs)

        def page(folder: Path) -> str:
            from rmsnorm_export.show import to_html

            more = {} if sections is None else {"sections": sections}
            about = _about(made.seen_from(folder), facts, error)
            return to_html(result, about=about, **more, **options)

        def document(folder: Path) -> str:
            from rmsnorm_export.records import to_json

            keys = {**(extra or {}), **error_document(error)}
            if not hasattr(result, "provenance"):
                keys = {"provenance": made.seen_from(folder), **keys}
            return to_json(result, extra=keys)

        def text(folder: Path, **style: Any) -> str:
            from rmsnorm_export.show import show_lines
            from rmsnorm_export.show.text import provenance_lines, render

            shown = lines
            if shown is None:
                shown = show_lines(result, verbose=self.state.verbosity, **options)
            if self.state.verbosity > 0 and made.inputs + made.outputs:
                shown = [*shown, *provenance_lines(made.seen_from(folder))]
            return render(shown, **style)

        def plot(_: Path) -> bytes:
            from rmsnorm_export.benchmark.plot import to_png

            return to_png(result)  # type: ignore[arg-type]  # only a benchmark has --png

        written: dict[str, Callable[[Path], str | bytes]] = {"--png": plot, "--html": page}
        for flag, path in self.paths.items():
            report = document if path.suffix == ".json" else text
            try:
                self._write(path, written.get(flag, report)(path.parent))
            except Exception as problem:
                error = with_problem(error, flag, problem)
        if self.state.json:
            click.echo(document(Path()), nl=False, err=self.state.model_on_stdout)
        else:
            stream = sys.stderr if self.state.model_on_stdout else sys.stdout
            width = shutil.get_terminal_size().columns if stream.isatty() else None
            shown = text(Path(), styled=is_styled(stream), width=width)
            click.echo(shown, nl=False, file=stream, color=True)
        if error is not None:
            raise ReportedError(explain(error)) from error

    def _made(
        self, result: object, inputs: Sequence[str | Path | None], outputs: Sequence[Path]
    ) -> Provenance:
        """What the documents say of their making."""
        from rmsnorm_export.system.provenance import provenance

        own: Provenance | None = getattr(result, "provenance", None)
        if own is not None or not self._audited:
            return own or provenance((), ())
        for argument in inputs:
            if argument is not None:
                self.remember(str(argument))
        return provenance([state for read in self._read.values() for state in read], outputs)

    def _write(self, path: Path, content: str | bytes) -> None:
        """What is no plain file (``/dev/null``, a named pipe) is written to as it is."""
        from rmsnorm_export.system.files import write_whole

        write_whole(path, content, replace=self.force)


def _files_of(argument: str) -> list[Path]:
    """The files that a MODEL or SOURCE argument stands for, external data included."""
    from rmsnorm_export.graph.load import model_files

    path = Path(argument)
    with contextlib.suppress(OSError, ValueError):
        if path.is_dir():
            return sorted(p for p in path.iterdir() if p.is_file() and p.name[:1] != ".")
        if path.is_file():
            if path.suffix.lower() in _PLAIN:
                return [path, path.with_name(path.name + ".json")]
            try:
                return [*model_files(path)]
            except Error:
                return [path]
    module = sys.modules.get(argument.partition(":")[0])
    source = getattr(module, "__file__", None)
    return [Path(source)] if source else []


def _about(made: Provenance, facts: Sequence[tuple[str, str]], error: Error | None) -> About:
    """What a page says of its making."""
    from rmsnorm_export.show.page.document import About

    failure = None if error is None else explain(error)
    problem = None if failure is None else (failure.what, failure.found, failure.fix)
    return About.of(made, facts=tuple(facts), problem=problem)


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
