"""How the commands that write a model end: ``--require``, the files, what is said of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from rmsnorm_export.cli import console, files
from rmsnorm_export.cli.files import size_text
from rmsnorm_export.cli.options import State
from rmsnorm_export.errors import Error, VerificationError

if TYPE_CHECKING:
    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.graph.policy import WeightsPolicy
    from rmsnorm_export.graph.save import SaveResult
    from rmsnorm_export.rewrite.optimize import Result
    from rmsnorm_export.rewrite.result import Report

FORCE_HELP = "Replace existing files of -o, --report, --html."

_PROOF_FAILED = "proof-failed"
"""Reason of the refusals that stand for sites whose proof failed."""

_WEIGHTS = {
    "reference": "weights stay in their external files, where they were",
    "link": "weights: hard links to the external files of the source",
    "copy": "weights: copies of the external files of the source",
    "embed": "weights are stored in the model file",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files that were asked for.

    Attributes:
        source: what the command reads.
        output: where the model goes; ``-`` for stdout.
        weights: what becomes of external data.
        force: existing files may be replaced.
        report: where the report goes, too.
        html: where the page goes.
    """

    source: str
    output: str
    weights: WeightsPolicy
    force: bool
    report: Path | None
    html: Path | None

    def check(self, *, is_model: bool) -> None:
        """Before work is done: every file can be written.

        Args:
            is_model: the source is a model, which the output must not replace.

        Raises:
            UsageError, InputError: one cannot.
        """
        reports = {"--report": self.report, "--html": self.html}
        files.check_files(reports, force=self.force, taken=(self.source, self.output))
        if self.output == console.STDIO:
            console.refuse_terminal()
            return
        from rmsnorm_export.graph.save import check_output

        named = is_model and self.source != console.STDIO
        check_output(self.output, source=self.source if named else None, force=self.force)

    def write(self, result: Result) -> SaveResult | dict[str, object]:
        """Save the model, or write it to stdout; what the report says of it."""
        if self.output != console.STDIO:
            return result.save(self.output, weights=self.weights, force=self.force)
        from rmsnorm_export.graph.save import to_bytes

        data = to_bytes(result.model, weights=self.weights)
        console.write_stdout(data)
        return {"path": console.STDIO, "bytes": len(data)}

    def finish(
        self,
        state: State,
        report: Report,
        written: SaveResult | dict[str, object] | None,
        error: Error | None,
        parity: Verification | None = None,
    ) -> None:
        """Write the report and the page, print, and end the command.

        Args:
            state: of the command line.
            report: of the rewrite.
            written: the model; None: nothing.
            error: what the command ends with.
            parity: the comparison with PyTorch, where there was one.

        Raises:
            ReportedError: there is an error.
        """
        from rmsnorm_export.cli.failure import error_document
        from rmsnorm_export.records import to_json
        from rmsnorm_export.show import show_lines
        from rmsnorm_export.show.text import render
        from rmsnorm_export.show.verification import verification_section

        outcome = outcome_lines(written)
        lines = [*show_lines(report, verbose=state.verbosity, output=outcome)]
        extra: dict[str, object] = {"output": written}
        sections = []
        if parity is not None:
            extra["verification"] = parity
            compared = ("PyTorch", self.output)
            lines += ["", *show_lines(parity, verbose=state.verbosity, compared=compared)]
            sections = [verification_section(parity, *compared)]
        facts = [("Output", "; ".join(line.strip() for line in outcome))]
        if parity is None:
            facts = [*files.file_size(self.source), *facts]
        files.write_page(
            self.html, report, force=self.force, facts=facts, error=error, sections=sections
        )
        if self.report is not None:
            as_json = self.report.suffix == ".json"
            document = extra | error_document(error)
            text = to_json(report, extra=document) if as_json else render(lines)
            files.write_file(self.report, text, force=self.force)
        console.finish(state, report, error, lines=lines, extra=extra)


def failed_proofs(report: Report) -> Error | None:
    """The error of ``--prove``; None when every proof holds or none was asked for."""
    failed = [refusal for refusal in report.refused if refusal.reason == _PROOF_FAILED]
    if not failed:
        return None
    first = failed[0]
    return VerificationError(
        f"{len(failed)} proofs failed; the output was written with the original nodes there.",
        found=f"{first.node}: {first.found}",
        fix="see the refusals in the report; the output computes what the source computes",
    )


def outcome_lines(written: SaveResult | dict[str, object] | None) -> list[str]:
    """Where the output went, and what became of the weights."""
    from rmsnorm_export.printable import one_line, printable

    if written is None:
        return ["nothing was written"]
    if isinstance(written, dict):
        return [f"wrote {size_text(int(str(written['bytes'])))} to stdout"]
    lines = [f"wrote {printable(str(written.path))} ({size_text(written.bytes)})"]
    if written.weights != "none":
        lines.append(f"  {_WEIGHTS[written.weights]}")
    lines += [f"  wrote {printable(str(path))}" for path in written.data_files]
    return lines + [f"  note: {one_line(note)}" for note in written.notes]
