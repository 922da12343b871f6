"""A package: how each model stands in the repository, what was checked, and its files."""

from __future__ import annotations

from rmsnorm_export.deploy.packaged import Packaged, PackagedModel
from rmsnorm_export.printable import one_line, printable
from rmsnorm_export.show.page.document import About, Section, document, page_notes, summary
from rmsnorm_export.show.page.markup import code, facts, join, tag
from rmsnorm_export.show.page.plain_table import plain_table
from rmsnorm_export.show.text import Line, note_lines, table


def _package_verdict(model: PackagedModel) -> str:
    most = f"batches up to {model.max_batch}" if model.max_batch else "no batches"
    return f"packaged {model.name}, version {model.version}, for {model.backend}: {most}"


def _tensors(model: PackagedModel) -> list[tuple[str, str, str, str]]:
    """Return way, name, type and shape of what a request and an answer hold."""
    return [
        (way, printable(item.name), item.dtype.removeprefix("TYPE_"), str(list(item.shape)))
        for way, items in (("input", model.inputs), ("output", model.outputs))
        for item in items
    ]


def package_lines(packaged: Packaged, *, verbose: int = 0) -> list[Line]:
    """Return the lines of a package; with ``verbose`` above 0 every file is listed."""
    lines: list[Line] = []
    for model in packaged.models:
        lines.append((_package_verdict(model), "bold"))
        if verbose < 0:
            continue
        lines += ["", *table(_tensors(model)), ""]
        lines += table(
            [(str(count), printable(what)) for what, count in model.norms.items()], right=(0,)
        )
        lines.append(f"asked: {one_line(model.answers, 300)}")
        if verbose > 0:
            lines += table([(printable(path), sha256) for path, sha256 in model.files.items()])
        if model.load:
            lines.append(f"the server loads the plugin with {printable(model.load)}")
        lines += [*note_lines(model.notes), f"wrote {printable(str(packaged.path / model.name))}"]
    return lines


def package_page(packaged: Packaged, *, about: About) -> str:
    """Return the page of a package."""
    notes = page_notes([note for model in packaged.models for note in model.notes])
    made = facts(about.pairs(), "facts wide")
    head = summary(
        [(_package_verdict(model), "good") for model in packaged.models], about, made, *notes
    )
    name = " and ".join(model.name for model in packaged.models)
    return document("Package", name, [head, package_section(packaged)])


def package_section(packaged: Packaged) -> Section:
    """Return how clients see each model, what it was asked, and every file."""
    parts = []
    for model in packaged.models:
        files = [(code(path), code(sha256)) for path, sha256 in model.files.items()]
        heads = ("Way", "Name", "Type", "Shape")
        parts += [
            tag("h3", model.name),
            tag("p", f"Asked: {one_line(model.answers)}"),
            plain_table(f"Requests of {model.name}", heads, _tensors(model)),
            plain_table(f"Files of {model.name}", ("File", "SHA-256"), files),
        ]
    return Section("package", "Package", join(parts), len(packaged.models))
