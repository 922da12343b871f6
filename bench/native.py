"""The kernels for ONNX Runtime on the CPU against what they replace, norm by norm.

    python -m bench.native

raw: the norm in plain operators, as ONNX Runtime runs it with all of its own optimization; ort:
what the target of that name makes of it; portable: the operator's function body; native: the same
file with the library registered; against: the same with another library, as of another version
(`--against`); copy: as many bytes as the norm has to move are copied. All of one shape are timed in
turn; what is shown is the least of each and ratios of these, below 1 is faster. The copy has one
thread, whatever the sessions have. Of one thread the time is the processor's, which other work on
the machine touches least; of several it is what elapsed, as those that wait for work take the
processor too.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir

import rmsnorm_export as rx
from bench.lib.results import Start, about, bullets, write_results
from bench.lib.tables import markdown_table, print_table
from bench.lib.timing import samples
from rmsnorm_export.errors import Error
from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import assign_bodies, body_key
from rmsnorm_export.op.dtypes import Array, element_type, numpy_dtype
from rmsnorm_export.op.spec import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    QUANTIZE,
    NormSpec,
    Quantize,
)
from rmsnorm_export.printable import plural
from rmsnorm_export.runtime.session import onnxruntime, run_session, session_options
from toolbox.command import add_output, parser, say
from toolbox.node_model import node_model

PACKAGES = ("rmsnorm-export", "onnxruntime", "onnx", "numpy")
NORMS: dict[str, dict[str, Any]] = {
    "plain": {"kind": "RMSNorm"},
    "skip": {"kind": "SkipRMSNorm"},
    "gated": {"kind": "GatedRMSNorm"},
    "gated, groups": {"kind": "GatedRMSNorm", "gate_first": True, "group_size": 64},
    "channels": {"kind": "RMSNorm", "axis": -2, "last_axis": -2},
    "rotary": {"kind": "RotaryRMSNorm"},
    "int8 per row": {"kind": "RMSNorm", QUANTIZE: "int8_per_row"},
}
TYPES = {"float32": FLOAT, "float16": FLOAT16, "bfloat16": BFLOAT16, "float64": DOUBLE}
_USUAL_NORMS, _USUAL_TYPES = [*NORMS][:4], [*TYPES][:3]
_BEHIND = 16
"""Elements behind each of a channel."""

_COLUMNS = ("threads", "shape", "dtype", "norm", "contender")
_HEADINGS = (*_COLUMNS, "microseconds:", "to portable:", "to copy:", "to against:")
_OPSET = 18
_PATHS = ("output", "library", "against")

Run = Callable[[], object]


def _arguments() -> argparse.Namespace:
    options = parser("bench.native", __doc__)
    add = options.add_argument
    add("--shapes", nargs="+", default=["1x4096", "128x768", "2048x4096"], help="rows x n")
    add("--dtypes", nargs="+", choices=TYPES, default=_USUAL_TYPES)
    add("--norms", nargs="+", choices=NORMS, default=_USUAL_NORMS)
    add("--rounds", type=int, default=25, help="samples of each contender")
    add("--sample", type=float, default=0.02, help="least duration of a sample, seconds")
    add("--threads", nargs="+", type=int, default=[1, 2], help="threads of a session, in turn")
    add("--library", help="of plugin build --runtime onnxruntime; by default the newest")
    add("--against", help="another library of these kernels, registered as it is")
    add_output(options, "bench_native.json")
    return options.parse_args()


def _models(
    spec: NormSpec, dtype: int, rows: int, n: int, quantize: Quantize | None
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one norm with its function body, and its inputs."""
    random, stored = np.random.default_rng(0), numpy_dtype(dtype)
    x, second = (random.normal(size=(rows, n)).astype(stored) for _ in range(2))
    scale = np.ones(n, stored)
    if spec.last_axis != -1:
        x, scale = x.reshape(rows, -1, _BEHIND), np.ones((n // _BEHIND, 1), stored)
    tables = (second, second) if spec.kind == "RotaryRMSNorm" else None
    gate_or_residual = second if spec.kind in ("SkipRMSNorm", "GatedRMSNorm") else None
    own, feeds = node_model(spec, x, scale, None, gate_or_residual, tables, quantize)
    own.opset_import[0].version = _OPSET
    key = body_key(
        spec,
        dtype=dtype,
        scale_dtype=element_type(scale.dtype),
        bias_dtype=None,
        opset=_OPSET,
        quantize=quantize,
        table_dtype=dtype if tables else None,
    )
    ((name, body),) = assign_bodies([key])
    own.graph.node[0].op_type = name
    own.functions.append(ir.serde.serialize_function(build_function(name, body, _OPSET)))
    return own, feeds


def contenders(
    spec: NormSpec, dtype: int, rows: int, n: int, options: Any, quantize: Quantize | None = None
) -> Iterator[tuple[str, Run]]:
    """Name and run of each that ONNX Runtime loads."""
    own, feeds = _models(spec, dtype, rows, n, quantize)
    raw = onnx.inliner.inline_local_functions(own)
    plain = session_options(optimize=True, threads=options.threads)
    native = rx.session_options(options.library, threads=options.threads)
    models = {"raw": (raw, plain), "portable": (own, plain), "native": (own, native)}
    if options.against:
        kernels = Path(options.against)
        against = session_options(optimize=True, threads=options.threads, kernels=kernels)
        models["against"] = (own, against)
    result = rx.optimize(raw, target="ort")
    if result.report.fused:
        models["ort"] = (ir.to_proto(result.model), plain)
    for label, (model, settings) in models.items():
        try:
            session = onnxruntime().InferenceSession(model.SerializeToString(), settings)
            run_session(session, feeds)
        # The binding raises classes of its own that share no public base.
        except Exception as error:
            say(f"{label} is not run: {str(error)[:120]}")
            continue
        yield label, _bound(session, feeds)
    moved = [*feeds.values()][:-1] + [feeds["x"]] * (2 if spec.kind == "SkipRMSNorm" else 1)
    parts = sum(array.nbytes for array in moved) // 2  # each byte of a copy is read and written
    source, target = (_as_in_a_model(np.ones(parts, np.uint8)) for _ in range(2))
    yield "copy", lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), parts)


def _as_in_a_model(array: Array) -> Any:
    """The tensor where ONNX Runtime has its own, at a line of the cache: NumPy's may lie between,
    and NumPy asks for large pages, which it sometimes gets."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    value = onnxruntime().OrtValue.ortvalue_from_shape_and_type(array.shape, kind)
    ctypes.memmove(value.data_ptr(), np.ascontiguousarray(array).ctypes.data, array.nbytes)
    return value


def _bound(session: Any, feeds: dict[str, Array]) -> Run:
    """A run without copies of inputs, into outputs that are kept."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, _as_in_a_model(array))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def clock(threads: int) -> Callable[[], float]:
    """The processor's of one thread, else what elapses: threads that wait use a processor too."""
    return time.process_time if threads == 1 else time.perf_counter


def _measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for shape, dtype, norm, threads in itertools.product(
        arguments.shapes, arguments.dtypes, arguments.norms, arguments.threads
    ):
        say(f"{shape} {dtype}, {norm}, {plural(threads, 'thread')}")
        rows, n = map(int, shape.split("x"))
        attributes = dict(NORMS[norm])
        quantize = attributes.pop(QUANTIZE, None)
        spec = NormSpec(epsilon=2.0**-17, **attributes)
        options = argparse.Namespace(**{**vars(arguments), "threads": threads})
        runs = dict(contenders(spec, TYPES[dtype], rows, n, options, quantize))
        taken = samples(runs, arguments.rounds, arguments.sample, clock(threads))
        least = {name: min(values) for name, values in taken.items()}
        for name, values in taken.items():
            yield {
                "threads": threads,
                "shape": shape,
                "dtype": dtype,
                "norm": norm,
                "contender": name,
                "seconds": {"min": least[name], "median": statistics.median(values)},
                "ratio": least[name] / least["portable"] if "portable" in least else None,
                "to_copy": least[name] / least["copy"],
                "to_against": least[name] / least["against"] if "against" in least else None,
            }


def _cells(row: dict[str, Any]) -> list[str]:
    numbers = [f"{row['seconds']['min'] * 1e6:,.1f}"]
    ratios = (row["ratio"], row["to_copy"], row["to_against"])
    numbers += [f"{of:.2f}" if of else "" for of in ratios]
    return [*(str(row[column]) for column in _COLUMNS), *numbers]


def main() -> int:
    """Exit code 3 where the library is not built."""
    arguments, start = _arguments(), Start()
    try:
        rx.session_options(arguments.library)
    except Error as error:
        say(str(error))
        return 3
    rows = list(_measure(arguments))
    report = start.facts(*PACKAGES) | {
        "options": {k: v for k, v in vars(arguments).items() if k not in _PATHS},
        "rows": rows,
    }
    head = [*about(report), "least of interleaved samples; of one thread its processor time"]
    cells = [*map(_cells, rows)]
    print_table(_HEADINGS, cells, above=head)
    page = ["# Kernels for ONNX Runtime on the CPU", "", *bullets(head), ""]
    page += markdown_table(_HEADINGS, cells)
    print(write_results(report, "\n".join(page) + "\n", arguments.output))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
