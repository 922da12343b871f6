"""A package: how a model stands in a repository, what was checked, and its files."""

from __future__ import annotations

from rmsnorm_export.printable import one_line, printable
from rmsnorm_export.serving.result import Packaged
from rmsnorm_export.show.page.document import About, Section, document, page_notes, summary
from rmsnorm_export.show.page.markup import Pairs, badge, code, facts, join, names, tag
from rmsnorm_export.show.page.plain_table import plain_table
from rmsnorm_export.show.text import Line, note_lines, table


def _package_verdict(packaged: Packaged) -> str:
    record = packaged.record
    return f"packaged {record.name}, version {packaged.version}, for {record.backend}"


def _tensors(packaged: Packaged) -> list[tuple[str, str, str, str]]:
    """Way, name, type and shape of what a request and an answer hold."""
    record = packaged.record
    return [
        (way, printable(item.name), item.dtype.removeprefix("TYPE_"), str(list(item.shape)))
        for way, items in (("input", record.inputs), ("output", record.outputs))
        for item in items
    ]


def _batches(packaged: Packaged) -> str:
    most = packaged.record.max_batch
    return f"batches up to {most}" if most else "no batches"


def package_lines(packaged: Packaged, *, verbose: int = 0) -> list[Line]:
    """The lines of a package; with ``verbose`` above 0 every file is listed."""
    record, current = packaged.record, packaged.current
    lines: list[Line] = [(_package_verdict(packaged), "bold")]
    if verbose < 0:
        return lines
    versions = ", ".join(str(item.version) for item in record.versions)
    lines += [f"  versions {versions}; {_batches(packaged)}", ""]
    lines += table(_tensors(packaged))
    checks = [(c.name, c.outcome, one_line(c.detail, 300)) for c in packaged.checks]
    lines += ["", ("checked", "bold"), *table(checks)]
    if verbose > 0:
        files = [(printable(f.path), f"{f.bytes:,}", f.sha256) for f in current.files]
        lines += ["", ("files", "bold"), *table(files, right=(1,))]
    if packaged.load:
        lines += ["", ("start the server with the plugin", "bold"), f"  {printable(packaged.load)}"]
    lines += ["", *note_lines((*current.notes, *packaged.notes))]
    lines.append(f"wrote {printable(str(packaged.path))}")
    return lines


def package_page(packaged: Packaged, *, about: About) -> str:
    """The page of a package."""
    notes = page_notes((*packaged.current.notes, *packaged.notes))
    made = facts(about.pairs(), "facts wide")
    head = summary([(_package_verdict(packaged), "good")], about, made, *notes)
    return document("Package", packaged.record.name, [head, package_section(packaged)])


def package_section(packaged: Packaged) -> Section:
    """How clients see the model, what was checked, and every file."""
    record = packaged.record
    pairs: Pairs = [
        ("Place", code(str(packaged.path))),
        ("Version", str(packaged.version)),
        ("Backend of Triton", record.backend),
        ("Largest batch", str(record.max_batch) if record.max_batch else "no batches"),
        ("Requests", names([" ".join(texts) for texts in _tensors(packaged)])),
        ("Server", code(packaged.load) if packaged.load else None),
    ]
    kinds = {"passed": "good", "skipped": "warn", "not run": "warn"}
    checks = [
        (check.name, badge(check.outcome, kinds[check.outcome]), one_line(check.detail))
        for check in packaged.checks
    ]
    files = [
        (code(file.path), f"{file.bytes:,}", code(file.sha256))
        for file in (*record.files, *packaged.current.files)
    ]
    parts = [
        facts(pairs, "facts wide"),
        tag("h3", "Checks"),
        plain_table("Checks", ("Check", "Outcome", "How"), checks),
        tag("h3", "Files"),
        plain_table("Files", ("File", "Bytes", "SHA-256"), files, numbers=("Bytes",)),
    ]
    return Section("package", "Package", join(parts), len(checks))
