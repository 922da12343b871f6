"""A package: how each model stands in the repository, what was checked, and its files."""

from __future__ import annotations

from rmsnorm_export.deploy.packaged import Packaged, PackagedModel
from rmsnorm_export.printable import one_line, printable
from rmsnorm_export.show.page import Table
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
        lines.append(f"asked: {one_line(model.answers, 300)}")
        if verbose > 0:
            lines += table([(printable(path), sha256) for path, sha256 in model.files.items()])
        if model.load:
            lines.append(f"the server loads the plugin with {printable(model.load)}")
        lines += [*note_lines(model.notes), f"wrote {printable(str(packaged.path / model.name))}"]
    return lines


def package_tables(packaged: Packaged) -> list[Table]:
    """Return how clients see each model, and every file."""
    tables = []
    for model in packaged.models:
        heads = ("Way", "Name", "Type", "Shape")
        files = [*model.files.items()]
        tables += [
            Table(f"Requests of {model.name}", heads, _tensors(model), names=("Name",)),
            Table(f"Files of {model.name}", ("File", "SHA-256"), files, names=("File", "SHA-256")),
        ]
    return tables
