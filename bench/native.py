"""The kernels for ONNX Runtime on the CPU against what they replace.

    python -m bench.native

Raw is the norm in plain operators, as ONNX Runtime runs it with all of its own optimization;
ort, what the target of that name makes of it; portable, the operator's function body; native, the
same file with the library registered; against, the same with another library, as of another version
(`--against`); copy, as many bytes as the norm has to move. The copy has one thread, whatever the
sessions have.

A type that ONNX Runtime does not load is left out.

All of one shape are timed in turn; what is shown is the least of each and ratios of these,
below 1 is faster. Of one thread the time is the processor's, which other work on the machine
touches least; of several it is what elapsed, as those that wait for work take the processor too.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir

import rmsnorm_export as rx
from bench.lib.results import Start, publish
from bench.lib.timing import samples
from rmsnorm_export.errors import Error
from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import assign_bodies, body_key
from rmsnorm_export.op.dtypes import Array, element_type, numpy_dtype
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, QUANTIZE, NormSpec
from rmsnorm_export.printable import plural
from rmsnorm_export.runtime.session import onnxruntime, session_options
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
_BEHIND = 16
"""Elements behind each of a channel."""
_OPSET = 18
_ROUNDS = 25
"""Samples of each contender."""
_SAMPLE = 0.02
"""Least duration of a sample of a norm, in seconds."""

HEADINGS = (
    "threads", "shape", "dtype", "norm", "contender", "microseconds:", "to portable:", "to copy:",
    "to against:",
)  # fmt: skip
Run = Callable[[], object]


def _arguments() -> argparse.Namespace:
    options = parser("bench.native", __doc__)
    add = options.add_argument
    add("--shapes", nargs="+", default=["1x4096", "128x768", "2048x4096"], help="rows x n")
    add("--norms", nargs="+", choices=NORMS, default=[*NORMS][:4])
    add("--dtypes", nargs="+", choices=TYPES, default=[*TYPES][:3])
    add("--threads", nargs="+", type=int, default=[1, 2], help="of a session, in turn")
    add("--against", type=Path, help="another library of these kernels, registered as it is")
    add_output(options, "bench_native.json")
    return options.parse_args()


def _models(norm: str, dtype: int, rows: int, n: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one norm with its function body, and its inputs."""
    attributes = dict(NORMS[norm])
    quantize = attributes.pop(QUANTIZE, None)
    spec = NormSpec(epsilon=2.0**-17, **attributes)
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


def _opened(label: str, model: onnx.ModelProto | Path, settings: Any) -> Any:
    """Return a session; None where ONNX Runtime does not load the model, which is said."""
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    try:
        return onnxruntime().InferenceSession(source, settings)
    # The binding raises classes of its own that share no public base.
    except Exception as error:
        say(f"{label} is not run: {str(error)[:120]}")
        return None


def contenders(
    norm: str, dtype: int, rows: int, n: int, *, threads: int, against: Path | None
) -> Iterator[tuple[str, Run]]:
    """Name and run of each that ONNX Runtime loads."""
    own, feeds = _models(norm, dtype, rows, n)
    raw = onnx.inliner.inline_local_functions(own)
    plain = session_options(optimize=True, threads=threads)
    models = {"raw": (raw, plain), "portable": (own, plain)}
    models["native"] = own, rx.session_options(threads=threads)
    if against:
        models["against"] = own, session_options(optimize=True, threads=threads, kernels=against)
    result = rx.optimize(raw, target="ort")
    if result.report.fused:
        models["ort"] = ir.to_proto(result.model), plain
    for label, (model, settings) in models.items():
        if session := _opened(label, model, settings):
            yield label, _bound(session, feeds)
    copies = 2 if NORMS[norm]["kind"] == "SkipRMSNorm" else 1
    moved = [*feeds.values()][:-1] + [feeds["x"]] * copies
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


def _bound(session: Any, feeds: Mapping[str, Array]) -> Run:
    """A run without copies of inputs, into outputs that are kept."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, _as_in_a_model(array))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def _least(runs: dict[str, Run], threads: int, sample: float) -> dict[str, float]:
    """Return the least seconds of each."""
    clock = time.process_time if threads == 1 else time.perf_counter
    taken = samples(runs, _ROUNDS, sample, clock) if runs else {}
    return {label: min(values) for label, values in taken.items()}


def _norms(options: argparse.Namespace) -> Iterator[list[str]]:
    for shape, dtype, norm, threads in itertools.product(
        options.shapes, options.dtypes, options.norms, options.threads
    ):
        say(f"{shape} {dtype}, {norm}, {plural(threads, 'thread')}")
        size = map(int, shape.split("x"))
        runs = dict(contenders(norm, TYPES[dtype], *size, threads=threads, against=options.against))
        least = _least(runs, threads, _SAMPLE)
        for label, seconds in least.items():
            ratios = (
                f"{seconds / least[base]:.2f}" if base in least else ""
                for base in ("portable", "copy", "against")
            )
            yield [str(threads), shape, dtype, norm, label, f"{seconds * 1e6:,.1f}", *ratios]


def main() -> int:
    """Exit code 3 where the library is not built."""
    options, start = _arguments(), Start()
    try:
        rx.session_options()
    except Error as error:
        say(str(error))
        return 3
    rows = [*_norms(options)]
    report = start.facts(*PACKAGES) | {
        "rows": [dict(zip(HEADINGS, row, strict=True)) for row in rows]
    }
    publish(
        report,
        options.output,
        title="Kernels for ONNX Runtime on the CPU",
        table=(HEADINGS, rows),
        head=["least of interleaved samples; of one thread its processor time"],
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
