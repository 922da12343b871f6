"""The kernels for ONNX Runtime on the CPU against what they replace.

    python -m bench.native                norm by norm
    python -m bench.native --whole        in whole models

Norms: raw is the norm in plain operators, as ONNX Runtime runs it with all of its own optimization;
ort, what the target of that name makes of it; portable, the operator's function body; native, the
same file with the library registered; against, the same with another library, as of another version
(`--against`); copy, as many bytes as the norm has to move. The copy has one thread, whatever the
sessions have.

Whole models: LLaMA, Mamba-2, Qwen3-Next and Bamba, with random weights, widths as real ones have
them and two layers, raw, portable and native, and the largest difference of the logits from
PyTorch's. A type that ONNX Runtime has no products of matrices for is not run.

All of one shape or model are timed in turn; what is shown is the least of each and ratios of these,
below 1 is faster. Of one thread the time is the processor's, which other work on the machine
touches least; of several it is what elapsed, as those that wait for work take the processor too.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir

import rmsnorm_export as rx
from bench.demo.models import Architecture, export
from bench.lib.results import Start, publish
from bench.lib.timing import samples
from rmsnorm_export.errors import Error
from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import assign_bodies, body_key
from rmsnorm_export.op.dtypes import Array, element_type, numpy_dtype
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, QUANTIZE, NormSpec
from rmsnorm_export.printable import plural
from rmsnorm_export.runtime.session import onnxruntime, session_options
from toolbox.command import RESULTS, parser, say
from toolbox.node_model import node_model

PACKAGES = ("rmsnorm-export", "onnxruntime", "onnx", "torch", "transformers", "numpy")
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
_ATTENTION = {
    "hidden_size": 2048, "intermediate_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 4, "max_position_embeddings": 512, "attn_implementation": "eager",
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "LLaMA": ("llama", _ATTENTION),
    "Mamba-2": ("mamba2", {
        "hidden_size": 768, "num_heads": 24, "head_dim": 64, "state_size": 128, "n_groups": 1,
        "chunk_size": 32,
    }),
    "Qwen3-Next": ("qwen3_next", {
        **_ATTENTION, "head_dim": 128, "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "experts_implementation": "batched_mm",
    }),
    "Bamba": ("bamba", {
        **_ATTENTION, "attn_layer_indices": [1], "mamba_n_heads": 64, "mamba_d_head": 64,
        "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_chunk_size": 32,
    }),
}  # fmt: skip
_LAYERS = 2
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
MODEL_HEADINGS = ("model", "dtype", "norms", "contender", "milliseconds:", "to raw:", "logits:")
Run = Callable[[], object]


def _arguments() -> argparse.Namespace:
    options = parser("bench.native", __doc__)
    add = options.add_argument
    add("--whole", action="store_true", help="whole models, and not norms")
    add("--models", nargs="+", choices=MODELS, default=[*MODELS])
    add("--shapes", nargs="+", default=["1x4096", "128x768", "2048x4096"], help="rows x n")
    add("--norms", nargs="+", choices=NORMS, default=[*NORMS][:4])
    add("--dtypes", nargs="+", choices=TYPES)
    add("--threads", nargs="+", type=int, default=[1, 2], help="of a session, in turn")
    add("--against", type=Path, help="another library of these kernels, registered as it is")
    add("--output", type=Path, help="JSON file; by default of bench/results")
    arguments = options.parse_args()
    arguments.dtypes = arguments.dtypes or [*TYPES][arguments.whole : 3]
    return arguments


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


def _whole(options: argparse.Namespace) -> Iterator[list[str]]:
    threads = options.threads[0]
    plain = session_options(optimize=True, threads=threads)
    for name, dtype in itertools.product(options.models, options.dtypes):
        kind, settings = MODELS[name]
        say(f"{name} {dtype}")
        with tempfile.TemporaryDirectory() as folder:
            model = export(Architecture(name, kind, settings, "", dtype), Path(folder), _LAYERS)
            result, fused = rx.optimize(model.path), Path(folder) / "portable.onnx"
            result.save(fused)
            files = {"raw": (model.path, plain), "portable": (fused, plain)}
            files["native"] = fused, rx.session_options(threads=threads)
            runs: dict[str, Run] = {}
            errors = dict.fromkeys(files, "")
            for label, (path, chosen) in files.items():
                if session := _opened(f"{name} {dtype}: {label}", path, chosen):
                    feeds = {session.get_inputs()[0].name: model.tokens}
                    logits = session.run(None, feeds)[0].astype(np.float32)
                    off = np.abs(logits - model.logits.astype(np.float32)).max()
                    errors[label] = f"{off:.2g}"
                    runs[label] = lambda session=session, feeds=feeds: session.run(None, feeds)
            least = _least(runs, threads, 0.0)
        for label, error in errors.items():
            cells = ["not run", ""]
            if label in least:
                ratio = f"{least[label] / least['raw']:.3f}" if "raw" in least else ""
                cells = [f"{least[label] * 1e3:.1f}", ratio]
            yield [name, dtype, str(len(result.report.fused)), label, *cells, error]


def main() -> int:
    """Exit code 3 where the library is not built."""
    options, start = _arguments(), Start()
    try:
        rx.session_options()
    except Error as error:
        say(str(error))
        return 3
    name, headings = "bench_native", HEADINGS
    title, how = "Kernels for ONNX Runtime on the CPU", "least of interleaved samples"
    if options.whole:
        name, headings = "bench_native_models", MODEL_HEADINGS
        title = "Whole models with the kernels for ONNX Runtime on the CPU"
        how = f"{_LAYERS} layers, 64 tokens, threads: {options.threads[0]}"
    rows = [*(_whole if options.whole else _norms)(options)]
    report = start.facts(*PACKAGES) | {
        "rows": [dict(zip(headings, row, strict=True)) for row in rows]
    }
    publish(
        report,
        options.output or RESULTS / f"{name}.json",
        title=title,
        table=(headings, rows),
        head=[f"{how}; of one thread its processor time"],
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
