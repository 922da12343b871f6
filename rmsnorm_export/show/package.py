"""A package: how each model stands in the repository, what was checked, and its files."""

from __future__ import annotations

import re

from rmsnorm_export.deploy.packaged import Packaged, PackagedModel
from rmsnorm_export.printable import one_line
from rmsnorm_export.show.text import Block, Line, Table, note_lines

Request = tuple[str, ...]
"""Input or output, name, type and shape."""


def packaged_blocks(packaged: Packaged, *, verbose: int = 0) -> list[Block]:
    """Return the lines of a package; with ``verbose`` above 0 every file is listed."""
    lines: list[Block] = [_package_verdict(model) for model in packaged.models]
    if verbose < 0:
        return lines
    for model in packaged.models:
        requests: list[Request] = [
            (way, item.name, item.dtype.removeprefix("TYPE_"), str(list(item.shape)))
            for way, items in (("input", model.inputs), ("output", model.outputs))
            for item in items
        ]
        requests = requests if verbose > 0 else _by_pattern(requests)
        lines.append(Table(f"requests of {model.name}", ("", "name", "type", "shape"), requests))
        lines += ["", f"asked: {one_line(model.answers, 300)}"]
        if model.load:
            lines.append(f"the server loads the plugin with {model.load}")
        if verbose > 0:
            lines.append(Table("files", ("file", "SHA-256"), [*model.files.items()]))
        lines += [*note_lines(model.notes), f"wrote {packaged.path / model.name}"]
    return lines


def _by_pattern(requests: list[Request]) -> list[Request]:
    """Return requests that differ in one number of their names in one row, e.g. of every layer."""
    groups: dict[Request, list[str]] = {}
    for way, name, *rest in requests:
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "{}", name)
        groups.setdefault((way, pattern, *rest), []).append(name)
    return [
        (way, names[0] if len(names) == 1 else f"{names[0]}, {len(names) - 1} more", *rest)
        for (way, _, *rest), names in groups.items()
    ]


def _package_verdict(model: PackagedModel) -> Line:
    most = f"batches up to {model.max_batch}" if model.max_batch else "no batches"
    return f"packaged {model.name}, version {model.version}, for {model.backend}: {most}", "bold"
