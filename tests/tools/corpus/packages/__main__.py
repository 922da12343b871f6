"""Norms found in the exports of other packages, beside ONNX Runtime's optimizers and onnxscript.

    python -m tests.tools.corpus.packages [--only PACKAGE] [--light]

Makes the exports that the cache lacks; packages that are not installed are left out, with the
command that brings them. Writes bench/results/packages.json, its page and its picture.
"""

from __future__ import annotations

import collections
import json
from typing import Any

import numpy as np

from tests.tools.corpus.packages.compare import ONE_NODE, OTHERS, OURS, TOLERANCE, others, ours, run
from tests.tools.corpus.packages.compare import worst as difference
from tests.tools.corpus.packages.exports import PackageExport, export, jobs
from tests.tools.corpus.packages.picture import draw
from tests.tools.corpus.packages.table import PACKAGES
from tests.tools.lib.command import add_output, parser, say
from tests.tools.lib.results import Start, about, bullets, write_results
from tests.tools.lib.tables import markdown_table


def measure(made: PackageExport) -> dict[str, Any]:
    """One export: how many norms it has, who finds how many, and how far the numbers are apart."""
    row: dict[str, Any] = {
        "package": made.package,
        "export": made.key,
        "norms": {kind: made.expected(kind) for kind in made.norms},
        "reason": made.reason,
    }
    if made.path is None:
        return row
    try:
        before = run(made.path.read_bytes(), made, optimized=False)
        if not np.isfinite(before).all():
            row["reason"] = "its own numbers are not finite"
    except Exception as error:  # an exporter's file that does not load has no numbers
        before, row["reason"] = None, f"ONNX Runtime: {str(error)[:200]}"
    found: dict[str, Any] = {}
    apart = 0.0
    for target in ONE_NODE:
        counted, data = ours(made.path, target, numerics="upcast")
        found[target] = [counted.norms, counted.residuals]
        if before is not None:
            apart = max(apart, difference(run(data, made, optimized=True), before))
    wrong = {OURS: apart > TOLERANCE[made.dtype]}
    for tool in OTHERS if before is not None else ():
        theirs = others(made.path, tool)
        if isinstance(theirs, str):
            continue
        counted, data = theirs
        found[tool] = [counted.norms, counted.residuals]
        try:
            theirs_apart = difference(run(data, made, optimized=False), before)
        except Exception:  # a file that ONNX Runtime refuses has no numbers
            theirs_apart = float("nan")
        wrong[tool] = not theirs_apart <= TOLERANCE[made.dtype]
    return {**row, "found": found, "difference": apart, "wrong": wrong}


def markdown(report: dict[str, Any]) -> str:
    """The page of a record."""
    tools = (*ONE_NODE, *OTHERS)
    packages: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in report["exports"]:
        packages[row["package"]].append(row)
    rows = []
    for package, exports in packages.items():
        made = [row for row in exports if "found" in row]
        loaded = [row for row in made if "session" in row["found"]]
        norms: collections.Counter[str] = collections.Counter()
        for row in made:
            norms.update(row["norms"])
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in norms.items())
        cells = [f"{sum(_of(row, tool, 0) for row in made):,}" for tool in tools]
        sums = [f"{sum(_of(row, tool, 1) for row in made):,}" for tool in ("ort", *OTHERS)]
        counts = f"{len(made)} of {len(exports)}"
        wrong = [str(sum(row["wrong"].get(t, False) for row in made)) for t in (OURS, *OTHERS)]
        rows.append([package, counts, str(len(loaded)), kinds, *cells, *sums, *wrong])
    headings = [
        "package", "exports made", "loaded by ONNX Runtime:", "norms by kind",
        *(f"{tool}:" for tool in tools), *(f"sums, {tool}:" for tool in ("ort", *OTHERS)),
        *(f"wrong, {tool}:" for tool in (OURS, *OTHERS)),
    ]  # fmt: skip
    lines = ["# Norms in the exports of other packages", ""]
    lines += [
        "![Norms that each tool makes one node](packages.png)",
        "",
        *bullets(about(report)),
        "",
    ]
    lines += [
        "Norms that are one node, and residual sums in such a node (`sums`). How many there are "
        "is counted in PyTorch, from what the modules compute. `l2`: divided by a clamped length; "
        "`channel`: over axis 1. `numerics` is upcast. Wrong: fused files that ONNX "
        "Runtime refuses, or whose numbers, computed by it without its own optimizer, are further "
        f"from the raw one's than {TOLERANCE} of the largest.",
        "",
        *markdown_table(headings, rows),
        "",
    ]
    return "\n".join(lines + bullets(report["absent"]) + ([""] if report["absent"] else []))


def _of(row: dict[str, Any], tool: str, index: int) -> int:
    return int(row["found"].get(tool, (0, 0))[index])


def main() -> None:
    options = parser("tests.tools.corpus.packages", __doc__)
    add_output(options, "packages.json")
    options.add_argument("--only", default="", metavar="PACKAGE", help="a piece of the key")
    options.add_argument("--light", action="store_true", help="what the ordinary tests export")
    chosen = options.parse_args()
    start, rows, absent = Start(), [], []
    for package in PACKAGES.values():
        why = package.missing()
        if why:
            absent.append(f"{package.name}: {why}")
            continue
        for job in jobs(package, light=chosen.light):
            if chosen.only in f"{package.name}-{job[0].name}-{job[1]}-{job[2]}":
                rows.append(measure(export(package, *job)))
                say(json.dumps(rows[-1]))
    versions = ("rmsnorm-export", "torch", "onnxruntime", "onnxscript", *PACKAGES)
    report = {**start.facts(*versions), "exports": rows, "absent": absent}
    print(write_results(report, markdown(report), chosen.output, compact=True))
    draw(rows, chosen.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
