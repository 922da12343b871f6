"""How the commands that write a model end: ``--require``, the files, what is said of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.files import Files, file_options, file_size, size_text
from rmsnorm_export.cli.options import FILE
from rmsnorm_export.errors import Error, VerificationError
from rmsnorm_export.printable import one_line, plural, printable

if TYPE_CHECKING:
    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.graph.policy import WeightsPolicy
    from rmsnorm_export.graph.save import SaveResult
    from rmsnorm_export.rewrite.optimize import Result
    from rmsnorm_export.rewrite.result import Report

FORCE_HELP = "Replace existing files of -o, --report, --html."

_WEIGHTS = {
    "reference": "weights stay in their external files, where they were",
    "link": "weights: hard links to the external files of the source",
    "copy": "weights: copies of the external files of the source",
    "embed": "weights are stored in the model file",
}


output_option = click.option(
    "-o",
    "--output",
    required=True,
    type=FILE,
    metavar="OUT",
    help="File to write, or - for stdout.",
)
replacing_files = file_options("--report", "--html", replaces=FORCE_HELP)


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """The model that a command writes.

    Attributes:
        source: what the command reads.
        place: where the model goes; ``-`` for stdout.
        weights: what becomes of external data.
        files: of the report.
    """

    source: str
    place: str
    weights: WeightsPolicy
    files: Files

    def check(self, *, is_model: bool) -> None:
        """Before work is done: every file can be written.

        Args:
            is_model: the source is a model, which the output must not replace.

        Raises:
            UsageError, InputError: one cannot.
        """
        self.files.check(self.source, self.place)
        if self.place == console.STDIO:
            console.refuse_terminal()
            return
        from rmsnorm_export.graph.save import check_output

        named = is_model and self.source != console.STDIO
        source = self.source if named else None
        check_output(self.place, source=source, force=self.files.force)

    def write(self, result: Result) -> SaveResult | dict[str, object]:
        """Save the model, or write it to stdout; what the report says of it."""
        self.files.remember(self.source)  # before the output may take its place
        if self.place != console.STDIO:
            return result.save(self.place, weights=self.weights, force=self.files.force)
        from rmsnorm_export.graph.save import to_bytes

        data = to_bytes(result.model, weights=self.weights)
        console.write_stdout(data)
        return {"path": console.STDIO, "bytes": len(data)}

    def finish(
        self,
        report: Report,
        written: SaveResult | dict[str, object] | None,
        error: Error | None,
        parity: Verification | None = None,
    ) -> None:
        """Write the report and the page, print, and end the command.

        Args:
            report: of the rewrite.
            written: the model; None: nothing.
            error: what the command ends with.
            parity: the comparison with PyTorch, where there was one.

        Raises:
            ReportedError: there is an error.
        """
        from rmsnorm_export.show import show_lines
        from rmsnorm_export.show.verification import verification_section

        outcome, verbose = outcome_lines(written), self.files.state.verbosity
        lines = [*show_lines(report, verbose=verbose, output=outcome)]
        extra: dict[str, object] = {"output": written}
        facts = [("Output", "; ".join(line.strip() for line in outcome))]
        sections = []
        if parity is not None:
            extra["verification"] = parity
            compared = ("PyTorch", self.place)
            lines += ["", *show_lines(parity, verbose=verbose, compared=compared)]
            sections = [verification_section(parity, *compared)]
        else:
            facts = [*file_size(self.source), *facts]
        saved = None if written is None or isinstance(written, dict) else written
        self.files.finish(
            report,
            error,
            inputs=[self.source],
            outputs=[] if saved is None else [saved.path, *saved.data_files],
            lines=lines,
            extra=extra,
            facts=facts,
            sections=sections,
        )


def failed_proofs(report: Report) -> Error | None:
    """The error of ``--prove``; None when every proof holds or none was asked for."""
    unproved = report.unproved
    if not unproved:
        return None
    first = next((r for r in unproved if r.reason == "proof-failed"), unproved[0])
    many = len(unproved)
    how = f"{plural(many, 'proof')} failed"
    if first.reason != "proof-failed":
        how = f"{plural(many, 'rewrite')} cannot be proved"
    return VerificationError(
        f"{how}; the output was written with the original nodes there.",
        found=f"{first.node}: {first.found}",
        fix="see the refusals in the report; the output computes what the source computes",
    )


def outcome_lines(written: SaveResult | dict[str, object] | None) -> list[str]:
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
