"""A package as text for a person; strings of the model are made printable."""

from __future__ import annotations

from rmsnorm_export.printable import one_line, printable
from rmsnorm_export.serving.result import Packaged, ServedTensor
from rmsnorm_export.show.report_text import Line, table


def package_lines(packaged: Packaged, *, verbose: int = 0) -> list[Line]:
    """The lines of a package.

    Args:
        packaged: outcome of ``package_model``.
        verbose: 1 or more lists every file; -1 or less keeps the first line only.
    """
    record, current = packaged.record, packaged.current
    lines: list[Line] = [
        (
            f"packaged {record.name}, version {current.version}, for {record.backend}",
            "bold",
        )
    ]
    if verbose < 0:
        return lines
    versions = ", ".join(str(item.version) for item in record.versions)
    batch = f"batches up to {record.max_batch}" if record.max_batch else "no batches"
    lines += [f"  versions {versions}; {batch}", ""]
    rows = [("input", *_tensor(item)) for item in record.inputs]
    rows += [("output", *_tensor(item)) for item in record.outputs]
    lines += [f"  {row}" for row in table(rows)]
    lines += ["", ("checked", "bold")]
    checks = [(c.name, c.outcome, one_line(c.detail, 300)) for c in packaged.checks]
    lines += [f"  {row}" for row in table(checks)]
    if verbose > 0:
        lines += ["", ("files", "bold")]
        files = [(printable(f.path), f"{f.bytes:,}", f.sha256) for f in current.files]
        lines += [f"  {row}" for row in table(files, right=(1,))]
    if packaged.load:
        lines += ["", ("start the server with the plugin", "bold"), f"  {printable(packaged.load)}"]
    notes = (*current.notes, *packaged.notes)
    lines += ["", *(f"note: {one_line(note)}" for note in notes)] if notes else [""]
    lines.append(f"wrote {printable(str(packaged.path))}")
    return lines


def _tensor(item: ServedTensor) -> tuple[str, str, str]:
    shape = ", ".join(map(str, item.shape))
    return printable(item.name), item.dtype.removeprefix("TYPE_"), f"[{shape}]"
