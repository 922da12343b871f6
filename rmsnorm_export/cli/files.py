"""Where a command's result goes: to stdout, and to the files of --report.

The files are checked before the work, for they must not replace a model or each other, and each is
written whole or not at all. Nothing that was found out is lost with a file that cannot be written.
"""

from __future__ import annotations

import contextlib
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
    from rmsnorm_export.show.page import Section
    from rmsnorm_export.show.text import Line
    from rmsnorm_export.system.provenance import FileState

_PICTURES = (".png", ".svg", ".pdf")
_PLAIN = (".engine", ".plan", ".trt", ".pt2", ".json", ".npz")
"""Suffixes of files that are no ONNX models; an engine has its record beside it."""


class Files:
    """Where the result of a command goes.

    Attributes:
        state: of the command line.
        reports: the files of --report.
        force: existing files may be replaced.
    """

    def __init__(self, state: State, reports: Sequence[Path] = (), *, force: bool = False) -> None:
        self.state, self.reports, self.force = state, reports, force
        self._read: dict[str, Sequence[FileState]] = {}

    def wants(self, suffix: str) -> bool:
        """Return whether a report has this suffix."""
        return any(path.suffix == suffix for path in self.reports)

    @property
    def drawn(self) -> bool:
        """Whether a page is wanted, which shows drawings."""
        return self.wants(".html")

    @property
    def _audited(self) -> bool:
        """Whether something that is written says what files it is about."""
        return self.state.json or self.state.verbosity > 0 or bool(self.reports)

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
        for path in self.reports:
            _check_file(path, others, self.force)
            others.append(os.fspath(path))

    def source(self, argument: str) -> str | bytes:
        """Return a MODEL argument for the Python API: the path, or for ``-`` what is piped in.

        What is read is noted as it is, before an output may replace it.

        Raises:
            UsageError: stdin is a terminal.
            InputError: nothing was piped in.
        """
        if argument != console.STDIO:
            self.remember(argument)
            return argument
        data = console.read_stdin()
        if self._audited:
            from rmsnorm_export.system.provenance import piped_in

            self._read[argument] = [piped_in(data)]
        return data

    def remember(self, argument: str) -> None:
        """Note the files of a MODEL argument as they are."""
        if self._audited and argument not in self._read:
            from rmsnorm_export.system.provenance import file_states

            self._read[argument] = file_states(_files_of(argument))

    def finish(
        self,
        result: object,
        error: Error | None = None,
        *,
        outputs: Sequence[Path] = (),
        lines: Sequence[Line] | None = None,
        extra: Mapping[str, object] | None = None,
        facts: Sequence[tuple[str, str]] = (),
        sections: Sequence[Section] = (),
        **options: Any,
    ) -> None:
        """Write the files, print the result, and end the command.

        It is printed on stderr where stdout carries the model.

        Args:
            result: of the command.
            error: what it ends with.
            outputs: files that were written.
            lines: its text; None: as ``show.show_lines`` makes it with ``options``.
            extra: further keys of the JSON document.
            facts: more lines for the summary of the page, e.g. what was written.
            sections: more parts of the page.
            options: as for ``show.show_lines`` and ``show.to_html``.

        Raises:
            ReportedError: there is an error, or a file could not be written.
        """
        from rmsnorm_export.system.files import write_whole
        from rmsnorm_export.system.provenance import provenance

        read = [state for states in self._read.values() for state in states]
        made, verbose = provenance(read, outputs if self._audited else ()), self.state.verbosity

        def page(folder: Path) -> str:
            from rmsnorm_export.show import to_html
            from rmsnorm_export.show.page import About
            from rmsnorm_export.show.text import provenance_facts

            problem = None
            if error is not None:
                failure = explain(error)
                problem = failure.what, failure.found, failure.fix
            about = About([*facts, *provenance_facts(made.seen_from(folder))], problem)
            return to_html(result, about=about, sections=sections, **options)

        def document(folder: Path) -> str:
            from rmsnorm_export.records import to_json

            keys = {"provenance": made.seen_from(folder), **(extra or {})}
            return to_json(result, extra=keys | error_document(error))

        def text(folder: Path, **style: Any) -> str:
            from rmsnorm_export.show import show_lines
            from rmsnorm_export.show.text import provenance_lines, render

            shown = show_lines(result, verbose=verbose, **options) if lines is None else lines
            if verbose > 0 and made.inputs + made.outputs:
                shown = [*shown, *provenance_lines(made.seen_from(folder))]
            return render(shown, **style)

        forms: dict[str, Callable[[Path], str | bytes]] = {".json": document, ".html": page}
        for path in self.reports:
            try:
                content = forms.get(path.suffix, text)(path.parent)
                write_whole(path, content, replace=self.force)  # a named pipe is written to
            except Exception as problem:
                error = with_problem(error, f"--report {path}", problem)
        if self.state.json:
            click.echo(document(Path()), nl=False, err=self.state.model_on_stdout)
        else:
            stream = sys.stderr if self.state.model_on_stdout else sys.stdout
            width = shutil.get_terminal_size().columns if stream.isatty() else None
            shown = text(Path(), styled=is_styled(stream), width=width)
            click.echo(shown, nl=False, file=stream, color=True)
        if error is not None:
            raise ReportedError(explain(error)) from error


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
            with contextlib.suppress(Error):
                return [*model_files(path)]
            return [path]
    module = sys.modules.get(argument.partition(":")[0])
    source = getattr(module, "__file__", None)
    return [Path(source)] if source else []


def _check_file(path: Path, taken: Sequence[str], force: bool) -> None:
    what, problem, fix = "The report would overwrite a file.", "", ""
    if str(path) == "-":
        what, problem = "A report needs a file.", "--report -"
        fix = "omit --report: the report is on stdout, or on stderr with -o -"
    elif path.suffix.lower() in _PICTURES:
        what, problem, fix = "A report is no picture.", str(path), "give a name with .json or .html"
    elif any(o != "-" and os.path.realpath(o) == os.path.realpath(path) for o in taken):
        what, problem = "A report would overwrite a model or another report.", str(path)
        fix = "give it another name"
    elif path.is_file() and not force:
        problem, fix = f"{path} exists", "give another name, or --force to replace it"
    if problem:
        raise UsageError(what, found=problem, fix=fix)
    if path.is_dir() or not path.parent.is_dir():
        problem = f"{path} is a folder" if path.is_dir() else f"no folder {path.parent}"
        fix = "give a file name in a folder that is there"
        raise InputError("The report cannot be written.", found=problem, fix=fix)


def size_text(count: int) -> str:
    """Write a number of bytes for people, in powers of 1024."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
