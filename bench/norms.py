"""Norms that ONNX Runtime runs as one kernel, counted in the graph that its session executes.

A file is one thing and a session another: functions are inlined, and some of what is plain is
fused. So each file is opened as a user opens it, on the CPU with the default optimization, and the
norm kernels are counted in the graph that the session saves; then it is run beside PyTorch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import onnx

import rmsnorm_export as rx
from bench.chart import Bar, bars
from rmsnorm_export.errors import Error
from rmsnorm_export.printable import first_line
from rmsnorm_export.runtime.session import (
    executed_graph,
    is_norm,
    open_session,
    run_session,
)
from toolbox.corpus.arch_table import ENTRIES

if TYPE_CHECKING:
    from toolbox.corpus.exporters import Export

HEADINGS = (
    "file", "one kernel:", "one node in the file:", "kernels of the raw file lost:",
    "nodes executed:", "wrong results:", "failed:",
)  # fmt: skip
RAW, PORTABLE, NATIVE = "raw file", "ours portable", "ours portable, our CPU kernels"
ENGINES = (RAW, PORTABLE, "ours onnx")
ENGINE_HEADINGS = ("model", *(f"{name}:" for name in ENGINES))
MEANING = (
    "One kernel: a norm that the session of ONNX Runtime (CPU, its default optimization) executes "
    "as one node; more than PyTorch counts in a model do not count. Lost: of norms that are one "
    "kernel of the raw file, those that are not of this one. Nodes: of models that every tool "
    "wrote. Wrong: further from PyTorch than 1e-4 (float32) or 0.03 (float16) of its largest "
    "output, and four times as far as the raw file. Raw: torch.onnx.export by TorchDynamo at opset "
    "18 or, where that fails, TorchScript at opset 17."
)
ENGINE_MEANING = (
    "TensorRT-RTX, engines built without a GPU: norms that are one kernel, of those that the "
    "engine's layers tell of."
)
_ALLOWED = {"float32": 1e-4, "float16": 3e-2}

Tool = Callable[[str, str], None]
"""Reads the first path and writes the second."""


@dataclasses.dataclass(frozen=True)
class Count:
    """What became of the norms of one file.

    Attributes:
        kernels: norms that are one kernel in the session.
        in_file: norms that are one node in the file.
        nodes: that the session executes.
        error: largest difference from PyTorch, relative to its largest output.
        problem: why there is no such file or session, or "".
    """

    kernels: int = 0
    in_file: int = 0
    nodes: int = 0
    error: float = 0.0
    problem: str = ""


MISSING = Count(problem="the tool did not write the file")


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A model that is not counted: the key of its export, and why."""

    key: str
    reason: str


def held_out(only: Sequence[str] = ()) -> Iterator[Export | LeftOut]:
    """Yield the causal language models of transformers that no test here uses, tiny, in two types.

    Args:
        only: types of model instead of all.
    """
    # PyTorch is not imported by the processes whose memory `times` measures.
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from toolbox.corpus.architectures import TYPES

    tested = {entry.model_type for entry in ENTRIES.values()}
    names = only or sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - tested)
    yield from itertools.starmap(_held_out, itertools.product(names, TYPES))


def _held_out(name: str, dtype: str) -> Export | LeftOut:
    from toolbox.corpus import architectures

    key = f"{name}-{dtype}"
    try:
        _ = ENTRIES[name]
    except KeyError:
        return LeftOut(key, "no tiny model from the settings that the others share")
    try:
        model, inputs = architectures.make(name, dtype)
        norms = architectures.count_norms(model, *inputs.values())
    except Exception as error:  # a model's own code fails in its own ways
        return LeftOut(key, f"PyTorch does not run the tiny model: {first_line(error, 100)}")
    if not norms:
        return LeftOut(key, "no RMSNorm")
    export = architectures.export_architecture(name, dtype)
    return export if export.path else LeftOut(key, f"not exported: {export.reason[:100]}")


def count_norms(path: Path, export: Export, kernels: Path | None = None) -> Count:
    """Return what a session of a user makes of a file; more norms than PyTorch has do not count.

    Args:
        path: of the file.
        export: what it was made from.
        kernels: a library to register.
    """
    executed = executed_graph(str(path), kernels=kernels)
    session = open_session(path, optimize=True, threads=1, kernels=kernels)
    output = next(iter(run_session(session, export.inputs()).values())).astype(np.float64)
    expected = export.output().astype(np.float64)
    error = np.abs(output - expected).max() / np.abs(expected).max()
    return Count(
        min(sum(map(is_norm, executed.node)), export.norms),
        min(sum(map(is_norm, onnx.load(path).graph.node)), export.norms),
        len(executed.node),
        float(error) if np.isfinite(error) else float("inf"),
    )


def count_all(
    export: Export, tools: Mapping[str, Tool], kernels: Path | None
) -> dict[str, Count] | LeftOut:
    """Return the counts of one model: as it is, and as each tool writes it."""
    assert export.path is not None
    try:
        counts = {RAW: count_norms(export.path, export)}
    except Error as error:
        reason = f"ONNX Runtime does not run what PyTorch wrote: {error.found[:100]}"
        return LeftOut(export.key, reason)
    for label, tool in tools.items():
        with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            path = Path(folder) / "model.onnx"
            try:
                tool(str(export.path), str(path))
                counts[label] = count_norms(path, export)
                if label == PORTABLE and kernels is not None:
                    counts[NATIVE] = count_norms(path, export, kernels)
            except Exception as error:  # a peer's failure is its result
                counts[label] = Count(problem=getattr(error, "found", "") or first_line(error, 200))
    return counts


def count_engine(export: Export, tool: Tool | None) -> tuple[int, int]:
    """Return norms that are one kernel of an engine of TensorRT-RTX, and all that it tells of."""
    assert export.path is not None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if tool is None:
            path.write_bytes(export.path.read_bytes())
        else:
            tool(str(export.path), str(path))
        shapes = dict.fromkeys(export.inputs(), ((1, 1), (2, 7), (4, 16)))
        built = rx.build_engine(
            path, path.with_suffix(".engine"), backend="tensorrt-rtx", shapes=shapes
        )
    ways = [norm.how for norm in built.record.norms if norm.how != "unknown"]
    return sum(how != "unfused" for how in ways), len(ways)


def is_wrong(export: Export, count: Count, raw: Count) -> bool:
    """Tell whether a file computes something else than PyTorch and the raw file do."""
    allowed = next(bound for dtype, bound in _ALLOWED.items() if dtype in export.key)
    return not count.problem and count.error > max(allowed, 4 * raw.error)


def details(models: Sequence[tuple[Export, dict[str, Count]]]) -> dict[str, object]:
    """Return all counts by model."""
    return {
        export.key: {"norms": export.norms}
        | {label: dataclasses.asdict(count) for label, count in counts.items()}
        for export, counts in models
    }


def brief(export: Export, counts: dict[str, Count]) -> str:
    """Return a line of one model: norms, then those that are one kernel of each file."""
    cells = (f"{label} {c.problem or c.kernels}" for label, c in counts.items())
    return f"{export.norms} norms; {', '.join(cells)}"


def engine_cells(export: Export, tools: Mapping[str, Tool]) -> list[str]:
    """Return ``count_engine`` of each file of ``ENGINES``, or why there is no engine."""
    cells = []
    for label in ENGINES:
        try:
            fused, total = count_engine(export, tools.get(label))
            cells.append(f"{fused} of {total}")
        except Exception as error:  # of the runtime, whatever it is
            cells.append(first_line(error, 60))
    return cells


def shortfalls(models: Sequence[tuple[Export, dict[str, Count]]]) -> list[str]:
    """Return a line for each file of ours with fewer kernels than the raw one, or than promised."""
    lines = []
    for export, counts in models:
        for label, count in counts.items():
            promised = counts[RAW].kernels if label == PORTABLE else export.norms
            if label.startswith("ours") and count.kernels < promised:
                less = f"{count.kernels} of {export.norms} norms, raw {counts[RAW].kernels}"
                lines.append(f"- {export.key}, {label}: {count.problem or less}")
    title = (
        "Where a file of ours has a norm in pieces, or the portable one fewer than the raw file:"
    )
    return [title, "", *lines, ""] if lines else []


def model_type(one: Export | LeftOut) -> str:
    """Return the name that transformers has for the type of a model."""
    return one.key.rpartition("-")[0]


def left_out(models: Sequence[LeftOut]) -> list[str]:
    """Return a line for each reason, with its types of model; a type of number where it is one."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for one in models:
        dtype = one.key.rpartition("-")[2]
        by_reason.setdefault(one.reason, {}).setdefault(model_type(one), []).append(dtype)
    lines = []
    for reason, types in sorted(by_reason.items()):
        names = [name if len(in_) > 1 else f"{name} ({in_[0]})" for name, in_ in types.items()]
        lines.append(f"- {reason} ({len(types)}): {', '.join(names)}")
    return ["Not counted:", "", *lines] if lines else []


def chart(table: Sequence[Sequence[str]], every: int, versions: Mapping[str, str]) -> str:
    """Return the rows of ``totals`` as an SVG, the worst first."""
    numbers = [[int(cell.replace(",", "")) for cell in row[1:]] for row in table]
    rows = [
        Bar(
            row[0],
            kernels,
            in_file,
            f"{row[1]} of {every:,}" + (f", {wrong} wrong" if wrong else ""),
            row[0].startswith("ours"),
        )
        for row, (kernels, in_file, _, _, wrong, _) in zip(table, numbers, strict=True)
    ]
    rows.sort(key=lambda bar: bar.length)
    title = "Norms that ONNX Runtime runs as one kernel"
    below = (
        f"onnxruntime {versions['onnxruntime']} on a CPU; pale: one node in the file",
        f"raw: torch.onnx of {versions['torch'].partition('+')[0]}, opset 18 (TorchScript: 17)",
    )
    return bars(title, below, rows, every)


def totals(models: Sequence[tuple[Export, dict[str, Count]]]) -> list[list[str]]:
    """Return a row of ``HEADINGS`` for each file; nodes are those of models that all tools did."""
    whole = [counts for _, counts in models if not any(c.problem for c in counts.values())]
    rows = []
    for label in dict.fromkeys(label for _, counts in models for label in counts):
        ours = [(export, counts.get(label, MISSING), counts[RAW]) for export, counts in models]
        numbers = (
            sum(count.kernels for _, count, _ in ours),
            sum(count.in_file for _, count, _ in ours),
            sum(max(raw.kernels - count.kernels, 0) for _, count, raw in ours),
            sum(counts[label].nodes for counts in whole),
            sum(is_wrong(*one) for one in ours),
            sum(bool(count.problem) for _, count, _ in ours),
        )
        rows.append([label, *(f"{number:,}" for number in numbers)])
    return rows
