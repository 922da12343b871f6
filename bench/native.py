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

import ctypes
import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir

import rmsnorm_export as rx
from bench.lib.measure import Run, our_kernels, samples
from bench.lib.results import Start, publish
from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import body_key
from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.op.spec import BFLOAT16, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.printable import plural
from rmsnorm_export.runtime.session import load_session, onnxruntime
from toolbox.command import add_output, parser, say
from toolbox.node_model import node_model

NORMS: dict[str, dict[str, Any]] = {
    "plain": {"kind": "RMSNorm"},
    "skip": {"kind": "SkipRMSNorm"},
    "gated": {"kind": "GatedRMSNorm"},
    "gated, groups": {"kind": "GatedRMSNorm", "gate_first": True, "group_size": 64},
}
TYPES = {"float32": FLOAT, "float16": FLOAT16, "bfloat16": BFLOAT16}
SHAPES = ((1, 4096), (128, 768), (2048, 4096))
THREADS = (1, 2)
_OPSET = 18
_ROUNDS = 25
"""Samples of each contender."""
_SAMPLE = 0.02
"""Least duration of a sample of a norm, in seconds."""

HEADINGS = (
    "threads", "shape", "dtype", "norm", "contender", "microseconds:", "to portable:", "to copy:",
    "to against:",
)  # fmt: skip


def _models(norm: str, dtype: int, rows: int, n: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one norm with its function body, and its inputs."""
    spec = NormSpec(epsilon=2.0**-17, **NORMS[norm])
    random, stored = np.random.default_rng(0), numpy_dtype(dtype)
    x, second = (random.normal(size=(rows, n)).astype(stored) for _ in range(2))
    own, feeds = node_model(spec, x, np.ones(n, stored), None, second)
    own.opset_import[0].version = _OPSET
    key = body_key(spec, dtype=dtype, scale_dtype=dtype, bias_dtype=None, opset=_OPSET)
    own.functions.append(ir.serde.serialize_function(build_function(spec.kind, key, _OPSET)))
    return own, feeds


def contenders(
    norm: str, dtype: int, rows: int, n: int, *, threads: int, libraries: Mapping[str, Path]
) -> Iterator[tuple[str, Run]]:
    """Name and run of each that ONNX Runtime loads."""
    own, feeds = _models(norm, dtype, rows, n)
    raw = onnx.inliner.inline_local_functions(own)
    models = {"raw": raw, "portable": own, **dict.fromkeys(libraries, own)}
    result = rx.optimize(raw, target="ort")
    if result.report.fused:
        models["ort"] = ir.to_proto(result.model)
    for label, model in models.items():
        how: dict[str, Any] = {"threads": threads, "kernels": libraries.get(label)}
        try:
            session = load_session(model.SerializeToString(), optimize=True, **how)
        except rx.Error as error:
            say(f"{label} is not run: {error.found[:120]}")
        else:
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


def _rows(libraries: Mapping[str, Path]) -> Iterator[list[str]]:
    for (rows, n), dtype, norm, threads in itertools.product(SHAPES, TYPES, NORMS, THREADS):
        shape = f"{rows}x{n}"
        say(f"{shape} {dtype}, {norm}, {plural(threads, 'thread')}")
        runs = contenders(norm, TYPES[dtype], rows, n, threads=threads, libraries=libraries)
        clock = time.process_time if threads == 1 else time.perf_counter
        taken = samples(dict(runs), _ROUNDS, _SAMPLE, clock)
        least = {label: min(values) for label, values in taken.items()}
        for label, seconds in least.items():
            ratios = (
                f"{seconds / least[base]:.2f}" if base in least else ""
                for base in ("portable", "copy", "against")
            )
            yield [str(threads), shape, dtype, norm, label, f"{seconds * 1e6:,.1f}", *ratios]


def main() -> int:
    """Exit code 3 where the library is not built."""
    flags, start = parser("bench.native", __doc__), Start()
    text = "another library of these kernels, registered as it is"
    flags.add_argument("--against", type=Path, help=text)
    add_output(flags, "bench_native.json")
    options = flags.parse_args()
    if (library := our_kernels()) is None:
        return 3
    libraries = {"native": library}
    if options.against:
        libraries["against"] = options.against
    rows = [*_rows(libraries)]
    report = start.facts() | {"rows": [dict(zip(HEADINGS, row, strict=True)) for row in rows]}
    print(publish("bench_native", report, options.output))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
