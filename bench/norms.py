"""Norms that ONNX Runtime runs as one kernel, in files of ours and of other tools.

    python -m bench.norms

Of tiny models of transformers that no test uses. A file is one thing and a session another:
functions are inlined, and some of what is plain is fused. So each file is opened as a user opens
it, on the CPU with the default optimization, and the norm kernels are counted in the graph that the
session saves; then it is run beside PyTorch. Every model is exported once, which takes minutes for
each ten, and kept. Our CPU kernels are left out where they are not built.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import onnx_ir as ir
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import rmsnorm_export as rx
from bench.lib.measure import our_kernels, worst_difference
from bench.lib.results import PAGES, Start, publish
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.printable import first_line
from rmsnorm_export.runtime.session import executed_graph, is_norm, open_session, run_session
from rmsnorm_export.system.files import write_whole
from toolbox.command import add_output, parser, say
from toolbox.corpus import architectures
from toolbox.corpus.arch_table import ENTRIES
from toolbox.corpus.exporters import Export

HEADINGS = ("file", "one kernel:", "one node in the file:", "wrong results:", "failed:")
RAW, NATIVE = "raw file", "ours portable, our CPU kernels"
_ALLOWED = {"float32": 1e-4, "float16": 3e-2}

Tool = Callable[[str, str], object]
"""Reads the first path and writes the second."""


def _ours(target: Target) -> Tool:
    return lambda model, output: rx.optimize(model, target=target).save(output)


def _onnxscript(model: str, output: str) -> None:
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    ir.save(optimize_for_ort(ir.load(model))[0], output)


def _transformers(model: str, output: str) -> None:
    from onnxruntime.transformers import optimizer

    optimizer.optimize_model(model).save_model_to_file(output)


def _onnxslim(model: str, output: str) -> None:
    import onnxslim

    onnxslim.slim(model, output)


TOOLS: dict[str, Tool] = {
    "ours portable": _ours("portable"),
    NATIVE: _ours("portable"),
    "ours ort": _ours("ort"),
    "onnxscript": _onnxscript,
    "onnxruntime.transformers": _transformers,
    "onnxslim": _onnxslim,
    "ours onnx": _ours("onnx"),
}
"""Each as its documentation runs it."""


@dataclasses.dataclass(frozen=True)
class Count:
    """What became of the norms of one file.

    Attributes:
        kernels: norms that are one kernel in the session.
        in_file: norms that are one node in the file.
        error: largest difference from PyTorch, relative to its largest output.
        problem: why there is no such file or session, or "".
    """

    kernels: int = 0
    in_file: int = 0
    error: float = 0.0
    problem: str = ""


def held_out(name: str, dtype: str) -> Export | str:
    """Return the export of a causal language model, or why it is not counted."""
    try:
        _ = ENTRIES[name]  # which makes one where it can
    except KeyError:
        return "no tiny model from the settings that the others share"
    try:
        model, inputs = architectures.make(name, dtype)
        norms = architectures.count_norms(model, *inputs.values())
    except Exception as error:  # a model's own code fails in its own ways
        return f"PyTorch does not run the tiny model: {first_line(error, 100)}"
    if not norms:
        return "no RMSNorm"
    export = architectures.export_architecture(name, dtype)
    return export if export.path else f"not exported: {export.reason[:100]}"


def count_norms(path: Path, export: Export, kernels: Path | None = None) -> Count:
    """Return what a session of a user makes of a file; more norms than PyTorch has do not count.

    Args:
        path: of the file.
        export: what it was made from.
        kernels: a library to register.
    """
    executed = executed_graph(str(path), kernels=kernels)
    session = open_session(path, optimize=True, threads=1, kernels=kernels)
    output = next(iter(run_session(session, export.inputs()).values()))
    graphs = executed, onnx.load(path).graph
    in_session, in_file = (min(sum(map(is_norm, one.node)), export.norms) for one in graphs)
    return Count(in_session, in_file, worst_difference(output, export.output()))


def count_all(
    export: Export, tools: Mapping[str, Tool], kernels: Path | None
) -> dict[str, Count] | str:
    """Return the counts of one model, as it is and as each tool writes it, or why there is none."""
    assert export.path is not None
    try:
        counts = {RAW: count_norms(export.path, export)}
    except rx.Error as error:
        return f"ONNX Runtime does not run what PyTorch wrote: {error.found[:100]}"
    for label, tool in tools.items():
        with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            path = Path(folder) / "model.onnx"
            try:
                tool(str(export.path), str(path))
                counts[label] = count_norms(path, export, kernels if label == NATIVE else None)
            except Exception as error:  # a peer's failure is its result
                counts[label] = Count(problem=getattr(error, "found", "") or first_line(error, 200))
    return counts


def is_wrong(key: str, count: Count, raw: Count) -> bool:
    """Return whether a file computes something else than PyTorch and the raw file do."""
    allowed = next(bound for dtype, bound in _ALLOWED.items() if dtype in key)
    return not count.problem and count.error > max(allowed, 4 * raw.error)


def totals(models: Mapping[str, Mapping[str, Count]]) -> list[list[str]]:
    """Return a row of ``HEADINGS`` for each file, of its counts by the key of an export."""
    rows = []
    for label in next(iter(models.values()), ()):
        own = [(key, counts[label], counts[RAW]) for key, counts in models.items()]
        numbers = (
            sum(count.kernels for _, count, _ in own),
            sum(count.in_file for _, count, _ in own),
            sum(is_wrong(*one) for one in own),
            sum(bool(count.problem) for _, count, _ in own),
        )
        rows.append([label, *(f"{number:,}" for number in numbers)])
    return rows


def _left_out(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Return types of model by the reason; with a type of number where it is one."""
    grouped: dict[str, dict[str, list[str]]] = {}
    for key, reason in reasons.items():
        name, _, dtype = key.rpartition("-")
        grouped.setdefault(reason, {}).setdefault(name, []).append(dtype)
    return {
        reason: [name if len(in_) > 1 else f"{name} ({in_[0]})" for name, in_ in types.items()]
        for reason, types in sorted(grouped.items())
    }


def write(report: dict[str, Any], output: Path) -> None:
    """Write a report, its page and its chart."""
    counted, skipped = (
        {key.rpartition("-")[0] for key in report[part]} for part in ("models", "left_out")
    )
    types = {"counted": len(counted), "types": len(counted | skipped)}
    print(publish("norms", report, output, not_counted=_left_out(report["left_out"]), **types))
    table = [row.values() for row in report["rows"]]
    bars = [(name, *(int(cell.replace(",", "")) for cell in cells)) for name, *cells in table]
    chart = PAGES.get_template("norms.svg.j2").render(report, bars=bars)
    write_whole(output.with_suffix(".svg"), chart)


def main() -> int:
    """Count, and write; 1 when ours failed, or is wrong."""
    flags, start, kernels = parser("bench.norms", __doc__), Start(), our_kernels()
    flags.add_argument("--models", nargs="+", help="types of transformers instead of all")
    add_output(flags, "norms.json")
    options = flags.parse_args()
    tools = {label: tool for label, tool in TOOLS.items() if label != NATIVE or kernels}
    tested = {entry.model_type for entry in ENTRIES.values()}
    names = options.models or sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - tested)
    models: dict[str, dict[str, Count]] = {}
    norms: dict[str, int] = {}
    left_out: dict[str, str] = {}
    for name, dtype in itertools.product(names, architectures.TYPES):
        key, export = f"{name}-{dtype}", held_out(name, dtype)
        counts = export if isinstance(export, str) else count_all(export, tools, kernels)
        if isinstance(export, str) or isinstance(counts, str):
            left_out[key] = str(counts)
            say(f"{key}: {counts}")
            continue
        models[key], norms[key] = counts, export.norms
        counted = (f"{label} {one.problem or one.kernels}" for label, one in counts.items())
        say(f"{key}: {export.norms} norms; {', '.join(counted)}")
    table = totals(models)
    report = start.facts("onnxslim") | {
        "norms": sum(norms.values()),
        "rows": [dict(zip(HEADINGS, row, strict=True)) for row in table],
        "models": {
            key: {"norms": norms[key]} | {k: dataclasses.asdict(one) for k, one in counts.items()}
            for key, counts in models.items()
        },
        "left_out": left_out,
    }
    write(report, options.output)
    return int(any(row[0].startswith("ours") and row[-2:] != ["0", "0"] for row in table))


if __name__ == "__main__":
    raise SystemExit(main())
