"""Begin and end of a command: the places of its result, ``--require``, what it writes and prints.

The files of --report are checked before the work, for they must not replace a model or each other,
and each is written whole or not at all. Nothing that was found out is lost with a file that cannot
be written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.failure import ReportedError, explain, three_lines, with_problem
from rmsnorm_export.cli.options import State
from rmsnorm_export.errors import Error, RequirementError, UsageError
from rmsnorm_export.printable import one_line

if TYPE_CHECKING:
    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.rewrite.options import Requirement
    from rmsnorm_export.rewrite.result import Report
    from rmsnorm_export.show.text import Block
    from rmsnorm_export.system.provenance import FileState, Provenance


_COMPARED = ("PyTorch", "what was exported")

_WEIGHTS = {
    "reference": "weights stay in their external files, where they were",
    "copy": "weights: copies of the external files of the source",
    "embed": "weights are stored in the model file",
}

_MADE_BY = "made by"
_MARKS = {
    ".json": (b'{\n  "schema_version": ', b'"provenance": {'),
    ".html": (b'<meta name="generator" content="rmsnorm-export">',),
    ".txt": (f"\n{_MADE_BY}\n  rmsnorm-export ".encode(),),
}
_MARKS[""] = _MARKS[".txt"]
"""How the name of a report ends -> what is in it, whatever it is about."""

_EMPTY = "empty: its weights are in another file, and transformers looks for this one"


class Files:
    """The places of a command's result.

    Attributes:
        state: of the command line.
        reports: the files of --report.
        force: existing files may be replaced.
    """

    def __init__(self, state: State, reports: Sequence[Path] = (), *, force: bool = False) -> None:
        self.state, self.reports, self.force = state, reports, force
        self._read: dict[str, Sequence[FileState]] = {}

    @property
    def _audited(self) -> bool:
        """Return whether something that is written says what files it is about."""
        return self.state.json or self.state.verbosity > 0 or bool(self.reports)

    def check(self, *taken: str | Path | None) -> None:
        """Check before work is done that each report can be written and is nobody else's.

        Args:
            taken: other paths of the command line, which no report must replace.

        Raises:
            UsageError: a path is ``-``, of another kind than reports are, one of ``taken``, that of
                another report, or exists without ``force`` and is no report.
            InputError: its folder is missing, or it is a folder.
        """
        from rmsnorm_export.graph.save import check_output

        others = {os.path.realpath(path) for path in taken if path is not None and path != "-"}
        for path in self.reports:
            if str(path) == console.STDIO:
                fix = "omit --report: the report is on stdout, or on stderr with -o -"
                raise UsageError("A report needs a file.", found="--report -", fix=fix)
            if os.path.realpath(path) in others:
                what = "A report would overwrite a model or another report."
                raise UsageError(what, found=str(path), fix="give it another name")
            if path.suffix not in _MARKS:
                what = "There is no such kind of report."
                fix = "end its name in .html, .json or .txt"
                raise UsageError(what, found=f"--report {path}", fix=fix)
            check_output(path, force=self.force or _is_report(path))
            others.add(os.path.realpath(path))

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
        from rmsnorm_export.system.provenance import piped_in

        data = console.read_stdin()
        self._read[argument] = [piped_in(data)]
        return data

    def remember(self, argument: str | None) -> None:
        """Note the files of a MODEL argument, or of another if there is one, as they are."""
        if argument is not None and self._audited and argument not in self._read:
            from rmsnorm_export.deploy.result import files_of
            from rmsnorm_export.system.provenance import file_states

            self._read[argument] = ()
            with contextlib.suppress(Error, OSError, ValueError):
                self._read[argument] = file_states(files_of(Path(argument)))

    def finish(
        self,
        result: object,
        error: Error | None = None,
        *,
        outputs: Sequence[Path] = (),
        extra: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Write the reports, print the result, and end the command.

        It is printed on stderr where stdout carries the model.

        Args:
            result: of the command.
            error: what it ends with.
            outputs: files that were written.
            extra: further keys of the JSON document; ``verification``, the comparison of an export
                with PyTorch, is shown, too.
            options: as for ``show.show_blocks``.

        Raises:
            ReportedError: there is an error, or a report could not be written.
        """
        from rmsnorm_export.system.files import write_whole
        from rmsnorm_export.system.provenance import provenance

        read = [state for states in self._read.values() for state in states]
        origin = provenance(read, outputs if self._audited else (), self.state.command)
        report = _Report(result, error, origin, extra or {}, options, self.state.verbosity)
        forms = {".json": report.document, ".html": report.page}
        written = []
        for path in self.reports:
            try:
                content = forms.get(path.suffix, report.text)()
                write_whole(path, content, replace=self.force or _is_report(path))
                written.append(f"wrote {os.path.abspath(path)}\n")
            except Exception as problem:
                report.error = with_problem(report.error, f"--report {path}", problem)
        if self.state.json:
            click.echo(report.document(), nl=False, err=self.state.model_on_stdout)
        else:
            stream = sys.stderr if self.state.model_on_stdout else sys.stdout
            text = report.text(styled=console.is_styled(stream), shown=True)
            text += "".join(written) if self.state.verbosity >= 0 else ""
            click.echo(text, nl=False, file=stream, color=True)
        if report.error is not None:
            raise ReportedError(explain(report.error)) from report.error

    def check_place(self, source: str, place: str, *, of_graphs: bool = False) -> None:
        """Check before work is done that the output and every report can be written.

        Args:
            source: the model that is read; ``-``: none that the output could replace.
            place: where the output goes; ``-`` for stdout.
            of_graphs: the output is a folder of graphs, and so is the source.

        Raises:
            UsageError, InputError: one cannot.
        """
        from rmsnorm_export.decoder.bundle import check_folder, open_folder
        from rmsnorm_export.graph.save import check_output

        self.check(source, place)
        is_source = os.path.realpath(place) == os.path.realpath(source) and os.path.exists(place)
        if is_source and not self.force and place != console.STDIO:
            fix = "choose another name after -o, or use --force to replace the model"
            what = "The output would replace the model that is read."
            raise UsageError(what, found=f"-o {place}", fix=fix)
        if of_graphs and source != console.STDIO:
            open_folder(source)
        if place == console.STDIO:
            problem = "stdout is a terminal" if sys.stdout.isatty() else ""
            problem = "it is a folder of graphs" if of_graphs else problem
            if problem:
                what = "The output cannot be written to stdout."
                raise UsageError(what, found=f"-o -, and {problem}", fix="give a path after -o")
        elif of_graphs:
            check_folder(place, force=self.force)
        else:
            check_output(place, force=self.force)

    def write(self, place: str, graphs: Any, **weights: Any) -> Any:
        """Save a model or a folder of graphs, or print the model; return what was written."""
        if place != console.STDIO:
            return graphs.save(place, force=self.force, **weights)
        data = graphs.to_bytes(**weights)
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return {"path": console.STDIO, "bytes": len(data)}

    def finish_written(
        self, reports: Mapping[str, Report], written: Any, error: Error | None, **more: Verification
    ) -> None:
        """End a command that wrote a model or a folder of graphs, or nothing.

        Args:
            reports: of each graph; of a model that is no folder by the name "".
            written: as ``write`` returned it; None: nothing.
            error: what the command ends with.
            more: ``verification``, the comparison with PyTorch, where there was one.

        Raises:
            ReportedError: there is an error.
        """
        from rmsnorm_export.decoder.result import GenerationExport

        notes, outputs, extra = [], [], {**more}
        if report := reports.get(""):
            extra["output"] = written
            if hasattr(written, "path"):
                outputs = [written.path, *written.data_files]
                notes = [f"  {_WEIGHTS[written.weights]}"] if written.weights in _WEIGHTS else []
                notes += [f"  note: {one_line(note)}" for note in written.notes]
        elif written:
            outputs = [*written.files]
        result = report or written or GenerationExport(None, reports)
        sizes = [(path, path.stat().st_size) for path in outputs]
        lines = [f"wrote {path} ({f'{size:,} bytes' if size else _EMPTY})" for path, size in sizes]
        lines = [*lines, *notes] if written else ["nothing was written"]
        self.finish(result, error, outputs=outputs, extra=extra, output=lines)


@dataclasses.dataclass(slots=True)
class _Report:
    """A report in each of its forms."""

    result: object
    error: Error | None
    origin: Provenance
    extra: Mapping[str, Any]
    options: dict[str, Any]
    verbose: int

    def document(self) -> str:
        from rmsnorm_export.records import to_json

        keys = {"provenance": self.origin, **self.extra}
        if self.error is not None:
            keys["error"] = dataclasses.asdict(explain(self.error))
        return to_json(self.result, extra=keys)

    def page(self) -> str:
        from rmsnorm_export.show import to_html

        problem = [] if self.error is None else three_lines(self.error)
        before: list[Block] = [(line, "bad") for line in problem]
        after = self._more(1, made=True)
        return to_html(self.result, before=before, after=after, **self.options)

    def text(self, *, styled: bool = False, shown: bool = False) -> str:
        """Return the lines for a terminal, or those for a file, which say how it was made."""
        from rmsnorm_export.show import show_blocks
        from rmsnorm_export.show.text import render

        verbose = self.verbose
        made = not shown or (verbose > 0 and bool(self.origin.inputs + self.origin.outputs))
        blocks = show_blocks(self.result, verbose=verbose, **self.options)
        return render([*blocks, *self._more(verbose, made=made)], styled=styled)

    def _more(self, verbose: int, *, made: bool) -> list[Block]:
        """Return the comparison of an export with PyTorch, if there is one, and how it was made."""
        from rmsnorm_export.show import show_blocks
        from rmsnorm_export.show.text import provenance_lines, titled, under

        blocks: list[Block] = []
        if parity := self.extra.get("verification"):
            shown = show_blocks(parity, verbose=verbose, compared=_COMPARED)
            blocks += ["", *shown] if verbose < 0 else under("verification", shown)
        return [*blocks, *titled(_MADE_BY, provenance_lines(self.origin) if made else [])]


def _is_report(path: Path) -> bool:
    """Return whether a file is a report of an earlier run, which the next may replace."""
    from rmsnorm_export.system.reading import read_file

    with contextlib.suppress(OSError):
        if path.is_file() and not path.is_symlink():
            content = read_file(path)
            return all(mark in content for mark in _MARKS[path.suffix])
    return False


def is_folder(argument: str) -> bool:
    """Return whether a MODEL argument is a folder."""
    with contextlib.suppress(OSError, ValueError):
        return argument != console.STDIO and Path(argument).is_dir()
    return False


def first_problem(
    reports: Mapping[str, Report], requirement: Requirement
) -> tuple[RequirementError | None, Error | None]:
    """Return the requirement that a graph does not meet; and that, or a proof that failed."""
    unmet = next(filter(None, (requirement.unmet(r, name=n) for n, r in reports.items())), None)
    return unmet, unmet or next(filter(None, (r.proof_error for r in reports.values())), None)
