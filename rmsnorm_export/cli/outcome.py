"""How the commands that write models end: ``--require``, the files, what is said of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.cli import console
from rmsnorm_export.cli.files import Files, size_text
from rmsnorm_export.errors import Error, RequirementError, UsageError
from rmsnorm_export.printable import one_line, printable

if TYPE_CHECKING:
    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.graph.policy import WeightsPolicy
    from rmsnorm_export.graph.save import SaveResult
    from rmsnorm_export.rewrite.options import Requirement
    from rmsnorm_export.rewrite.result import FolderResult, GenerationExport, Report, Result

_WEIGHTS = {
    "reference": "weights stay in their external files, where they were",
    "copy": "weights: copies of the external files of the source",
    "embed": "weights are stored in the model file",
}


def is_folder(argument: str) -> bool:
    """Return whether a MODEL argument is a folder."""
    with contextlib.suppress(OSError, ValueError):
        return argument != console.STDIO and Path(argument).is_dir()
    return False


def check_place(
    files: Files, source: str, place: str, *, of_graphs: bool = False, is_model: bool = True
) -> None:
    """Before work is done: the output can be written to ``place``, and every report to its file.

    Args:
        files: of the reports.
        source: what the command reads.
        place: where the output goes; ``-`` for stdout.
        of_graphs: the output is a folder of graphs.
        is_model: the source is a model, which the output must not replace.

    Raises:
        UsageError, InputError: one cannot.
    """
    files.check(source, place)
    if of_graphs:
        from rmsnorm_export.graph.bundle import open_folder
        from rmsnorm_export.graph.folder import check_folder

        if is_model:
            open_folder(source)
        if place == console.STDIO:
            fix = "give the name of a folder, e.g. -o decoder/"
            raise UsageError("What is written is a folder of graphs.", found="-o -", fix=fix)
        check_folder(place, force=files.force)
    elif place == console.STDIO:
        console.refuse_terminal()
    else:
        from rmsnorm_export.graph.save import check_output

        named = is_model and source != console.STDIO
        check_output(place, source=source if named else None, force=files.force)


def write_model(
    files: Files, place: str, result: Result | FolderResult, weights: WeightsPolicy
) -> Any:
    """Save the model, or write it to stdout; return what the report says of it."""
    if place != console.STDIO:
        return result.save(place, weights=weights, force=files.force)
    data = result.to_bytes(weights=weights)  # type: ignore[union-attr]  # check_place: a model
    console.write_stdout(data)
    return {"path": console.STDIO, "bytes": len(data)}


def finish_model(
    files: Files,
    source: str,
    report: Report,
    written: SaveResult | dict[str, object] | None,
    error: Error | None,
    parity: Verification | None = None,
) -> None:
    """Write the reports, print, and end a command that wrote one model.

    Args:
        files: of the reports.
        source: what was read.
        report: of the rewrite.
        written: the model; None: nothing.
        error: what the command ends with.
        parity: the comparison with PyTorch, where there was one.

    Raises:
        ReportedError: there is an error.
    """
    outcome = _outcome_lines(written)
    facts = [("Output", "; ".join(line.strip() for line in outcome))]
    if parity is None:
        facts = [*file_size(source), *facts]
    saved = None if written is None or isinstance(written, dict) else written
    outputs = [] if saved is None else [saved.path, *saved.data_files]
    extra: dict[str, object] = {"output": written}
    _finish(files, report, outcome, error, parity, outputs, extra, facts)


def finish_folder(
    files: Files, made: GenerationExport, error: Error | None, parity: Verification | None = None
) -> None:
    """As ``finish_model``, of a folder of graphs."""
    outcome = [f"wrote {path} ({size_text(path.stat().st_size)})" for path in made.files]
    outcome = outcome or ["nothing was written"]
    _finish(files, made, outcome, error, parity, list(made.files), {}, [])


def _finish(
    files: Files,
    result: Report | GenerationExport,
    outcome: Sequence[str],
    error: Error | None,
    parity: Verification | None,
    outputs: Sequence[Path],
    extra: dict[str, object],
    facts: Sequence[tuple[str, str]],
) -> None:
    from rmsnorm_export.show import section_of, show_lines

    verbose, sections = files.state.verbosity, []
    lines = [*show_lines(result, verbose=verbose, output=outcome)]
    if parity is not None:
        compared = ("PyTorch", str(getattr(result, "path", outputs[0])))
        extra["verification"] = parity
        lines += ["", *show_lines(parity, verbose=verbose, compared=compared)]
        sections = [section_of(parity, "Verification", compared=compared)]
    more: Any = {"lines": lines, "extra": extra, "facts": facts, "sections": sections}
    files.finish(result, error, outputs=outputs, **more)


def first_problem(
    reports: Mapping[str, Report], requirement: Requirement
) -> tuple[RequirementError | None, Error | None]:
    """Return the requirement that a graph does not meet; and that, or a proof that failed."""
    unmet = next(filter(None, (requirement.unmet(r, name=n) for n, r in reports.items())), None)
    return unmet, unmet or next(filter(None, (r.proof_error for r in reports.values())), None)


def _outcome_lines(written: SaveResult | dict[str, object] | None) -> list[str]:
    """Where the output went, and what became of the weights."""
    if written is None:
        return ["nothing was written"]
    if isinstance(written, dict):
        return [f"wrote {size_text(int(str(written['bytes'])))} to stdout"]
    lines = [f"wrote {printable(str(written.path))} ({size_text(written.bytes)})"]
    if written.weights != "none":
        lines.append(f"  {_WEIGHTS[written.weights]}")
    lines += [f"  wrote {printable(str(path))}" for path in written.data_files]
    return lines + [f"  note: {one_line(note)}" for note in written.notes]


def file_size(path: str) -> list[tuple[str, str]]:
    """Return a fact for the summary: how large a model file is, its external weights apart."""
    try:
        return [("Model file", size_text(Path(path).stat().st_size))]
    except (OSError, ValueError):
        return []
