"""Begin and end of the commands that write models: the place, ``--require``, what is written."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.cli import console
from rmsnorm_export.cli.files import Files
from rmsnorm_export.errors import Error, RequirementError, UsageError
from rmsnorm_export.printable import one_line

if TYPE_CHECKING:
    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.rewrite.options import Requirement
    from rmsnorm_export.rewrite.result import Report

_WEIGHTS = {
    "reference": "weights stay in their external files, where they were",
    "copy": "weights: copies of the external files of the source",
    "embed": "weights are stored in the model file",
}

_EMPTY = "empty: its weights are in another file, and transformers looks for this one"


def is_folder(argument: str) -> bool:
    """Return whether a MODEL argument is a folder."""
    with contextlib.suppress(OSError, ValueError):
        return argument != console.STDIO and Path(argument).is_dir()
    return False


def check_place(files: Files, source: str, place: str, *, of_graphs: bool = False) -> None:
    """Check before work is done that the output and every report can be written.

    Args:
        files: of the reports.
        source: the model that is read; ``-``: none that the output could replace.
        place: where the output goes; ``-`` for stdout.
        of_graphs: the output is a folder of graphs, and so is the source.

    Raises:
        UsageError, InputError: one cannot.
    """
    from rmsnorm_export.decoder.bundle import check_folder, open_folder
    from rmsnorm_export.graph.save import check_output

    files.check(source, place)
    if of_graphs and source != console.STDIO:
        open_folder(source)
    if place == console.STDIO:
        problem = "stdout is a terminal" if sys.stdout.isatty() else ""
        problem = "it is a folder of graphs" if of_graphs else problem
        if problem:
            what = "The output cannot be written to stdout."
            raise UsageError(what, found=f"-o -, and {problem}", fix="give a path after -o")
    elif of_graphs:
        check_folder(place, force=files.force)
    else:
        check_output(place, force=files.force)


def write_model(files: Files, place: str, graphs: Any, **weights: Any) -> Any:
    """Save a model or a folder of graphs, or write the model to stdout; return what was written."""
    if place != console.STDIO:
        return graphs.save(place, force=files.force, **weights)
    data = graphs.to_bytes(**weights)
    console.write_stdout(data)
    return {"path": console.STDIO, "bytes": len(data)}


def finish_written(
    files: Files,
    reports: Mapping[str, Report],
    written: Any,
    error: Error | None,
    **more: Verification,
) -> None:
    """End a command that wrote a model or a folder of graphs, or nothing.

    Args:
        files: of the reports.
        reports: of each graph; of a model that is no folder by the name "".
        written: as ``write_model`` returned it; None: nothing.
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
    files.finish(result, error, outputs=outputs, extra=extra, output=lines)


def first_problem(
    reports: Mapping[str, Report], requirement: Requirement
) -> tuple[RequirementError | None, Error | None]:
    """Return the requirement that a graph does not meet; and that, or a proof that failed."""
    unmet = next(filter(None, (requirement.unmet(r, name=n) for n, r in reports.items())), None)
    return unmet, unmet or next(filter(None, (r.proof_error for r in reports.values())), None)
