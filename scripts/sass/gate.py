"""The table of counts in the repository: what may not get worse."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from scripts.sass.count import Counts
from scripts.sass.launches import Work

TABLE = Path(__file__).with_name("table.json")
LENGTHS = (256, 1024, 4096, 8192, 16384, 65536, 262144)
HIDDEN = (2560, 3584, 5120, 6144, 7168)
"""Of models, and no power of two: threads have vectors left over, or a warp has."""
WORKS = (
    *(
        Work(op, "bfloat16", n)
        for op in ("norm", "skip", "gated", "fp8", "fp8row")
        for n in LENGTHS
    ),
    *(Work(op, "bfloat16", n) for op in ("gemma", "torch") for n in (256, 4096, 65536)),
    *(Work("norm", dtype, n) for dtype in ("float16", "float32") for n in (256, 4096, 65536)),
    *(Work(op, "bfloat16", n) for op in ("int8", "int8row") for n in (256, 4096, 65536)),
    Work("skipfp8", "bfloat16", 4096),
    *(Work(op, "bfloat16", n) for op in ("skipfp8row", "skipmxfp8") for n in (4096, 7168)),
    *(Work(op, "bfloat16", n) for op in ("norm", "fp8", "fp8row", "skip") for n in HIDDEN),
    *(Work("int8row", "bfloat16", n) for n in (5120, 7168)),
    *(Work(op, "float16", n) for op in ("fp8row", "int8row") for n in (4096, 7168)),
    *(Work(op, "float16", 4096) for op in ("skipfp8row", "mxfp8")),
    *(Work("mxfp8", "bfloat16", n) for n in (256, 1024, 4096, 8192, 12288, 16384, 65536)),
    *(Work(op, "float32", n) for op in ("fp8", "fp8row", "int8row", "mxfp8") for n in (256, 4096)),
    *(Work("gated", dtype, 64) for dtype in ("bfloat16", "float16")),
    *(Work("rotary", "bfloat16", n) for n in (64, 128, 256)),
    *(Work(op, dtype, 128) for op, dtype in (("rotary", "float16"), ("rotary32", "bfloat16"))),
    *(
        Work(op, "bfloat16", n, low_latency=True)
        for op, n in (("norm", 4096), ("norm", 16384), ("norm", 65536), ("skip", 4096))
    ),
)
"""The hot instances."""

_UP = ("stack", "instructions", "x_trips", "weight_trips", "barriers", "cluster_barriers", "unsure")
_DOWN = ("blocks", "in_flight")
_SLACK = 1.02
"""Compilers differ by an instruction here and there; a cause that matters is larger."""


def write(found: Mapping[Work, Counts]) -> None:
    """The table, a line a work."""
    lines = [
        f"  {json.dumps(work.name)}: {json.dumps(dataclasses.asdict(counts))}"
        for work, counts in found.items()
    ]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read() -> dict[str, Counts]:
    """The table, by the name of the work."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Counts(**row) for name, row in rows.items()}


def worse(found: Mapping[Work, Counts], table: Mapping[str, Counts] | None = None) -> list[str]:
    """A line for each number that is worse than in the table, and each work that is not in it."""
    table = read() if table is None else table
    lines = []
    for work, counts in found.items():
        if work.name not in table:
            lines.append(f"{work.name}: not in {TABLE.name}; python -m scripts.sass --write")
            continue
        before = table[work.name]
        for field in (*_UP, *_DOWN):
            old, new = getattr(before, field), getattr(counts, field)
            if (new > old * _SLACK) if field in _UP else (new * _SLACK < old):
                lines.append(f"{work.name}: {field} {old} -> {new} ({counts.kernel})")
    return lines
