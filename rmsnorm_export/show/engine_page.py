"""An engine as a part of a page."""

from __future__ import annotations

from rmsnorm_export.printable import one_line
from rmsnorm_export.show.page.markup import Content, code, facts, join, tag
from rmsnorm_export.show.page.plain_table import plain_table
from rmsnorm_export.show.page.section import Section
from rmsnorm_export.tensorrt.engine.backends import BACKENDS
from rmsnorm_export.tensorrt.engine.result import EngineRecord

_HEADS = ("Norm", "Operator", "Computed by", "Kernels", "Names")
_NAMES = 4
"""Kernels of a norm that are named."""


def engine_section(record: EngineRecord) -> Section:
    """What was built, and what became of every norm in it."""
    ranges = (
        tag("li", code(f"{item.name}: {', '.join(map(_shape, (item.min, item.opt, item.max)))}"))
        for profile in record.profiles
        for item in profile.inputs
    )
    pairs: list[tuple[str, Content]] = [
        ("Engine", code(record.engine)),
        ("Backend", f"{BACKENDS[record.backend].label} {record.version}"),
        ("Size", f"{record.bytes / 2**20:.1f} MiB"),
        ("GPUs", ", ".join(record.gpus) or "none at the build"),
        ("Shapes", tag("ul", *ranges, class_="names")),
        ("Layers", f"{len(record.layers):,}, from the {record.layers_from}"),
        ("Built in", f"{record.seconds:.1f} s"),
    ]
    rows = [
        tag(
            "tr",
            tag("th", code(norm.name, 200), scope="row"),
            tag("td", norm.op),
            tag("td", norm.how),
            tag("td", "" if norm.kernels is None else str(norm.kernels), class_="num"),
            tag("td", one_line(norm.reason) or join(map(code, norm.names[:_NAMES]), ", ")),
        )
        for norm in record.norms
    ]
    table = plain_table("Norms in the engine", _HEADS, rows, numbers=("Kernels",))
    body = join([facts(pairs, "facts wide"), table])
    return Section("engine", "Engine", body, len(record.norms))


def _shape(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes)) or "scalar"
