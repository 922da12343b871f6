"""Whole models with the kernels for ONNX Runtime on the CPU: before and after.

    python -m bench.native_models

Of LLaMA, Mamba-2, Qwen3-Next and Bamba, with random weights, widths as real ones have them and few
layers: raw, the exported file; portable, its norms as nodes with function bodies; native, the same
file with the library registered. All of one model are timed in turn; what is shown is the least of
each, and the largest difference of the logits from PyTorch's. A type that ONNX Runtime has no
products of matrices for is not run, which is shown as well. Of one thread the time is the
processor's, of several it is what elapsed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rmsnorm_export as rx
from bench.demo.models import Architecture, export
from bench.lib.results import Start, about, bullets, write_results
from bench.lib.tables import markdown_table, print_table
from bench.lib.timing import samples
from bench.native import clock
from rmsnorm_export.runtime.session import onnxruntime, session_options
from toolbox.command import add_output, parser, say

PACKAGES = ("rmsnorm-export", "onnxruntime", "torch", "transformers", "numpy")
_ATTENTION = {
    "intermediate_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "attn_implementation": "eager",
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "LLaMA": ("llama", {**_ATTENTION, "hidden_size": 2048}),
    "Mamba-2": (
        "mamba2",
        {"hidden_size": 768, "num_heads": 24, "head_dim": 64, "state_size": 128, "n_groups": 1}
        | {"chunk_size": 32},
    ),
    "Qwen3-Next": (
        "qwen3_next",
        {**_ATTENTION, "hidden_size": 2048, "head_dim": 128}
        | {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 16}
        | {"linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
        | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
        | {"shared_expert_intermediate_size": 512, "experts_implementation": "batched_mm"},
    ),
    "Bamba": (
        "bamba",
        {**_ATTENTION, "hidden_size": 2048, "attn_layer_indices": [1], "mamba_n_heads": 64}
        | {"mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_chunk_size": 32},
    ),
}
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_HEADINGS = ("model", "dtype", "norms", "contender", "milliseconds:", "to raw:", "logits:")


def _arguments() -> argparse.Namespace:
    options = parser("bench.native_models", __doc__)
    add = options.add_argument
    add("--models", nargs="+", choices=MODELS, default=list(MODELS))
    add("--dtypes", nargs="+", choices=TYPES, default=["float16", "bfloat16"])
    add("--layers", type=int, default=2)
    add("--rounds", type=int, default=20, help="samples of each contender")
    add("--threads", type=int, default=1, help="of a session")
    add("--library", help="of plugin build --runtime onnxruntime; by default the newest")
    add_output(options, "bench_native_models.json")
    return options.parse_args()


def _rows(name: str, dtype: str, options: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    kind, settings = MODELS[name]
    settings = {**settings, "num_hidden_layers": options.layers}
    made = export(Architecture(name, kind, settings, "", TYPES[dtype]), folder)
    result = rx.optimize(made.path, target="portable")
    fused, fused_norms = folder / "portable.onnx", str(len(result.report.fused))
    result.save(fused)
    plain = session_options(optimize=True, threads=options.threads)
    native = rx.session_options(options.library, threads=options.threads)
    runs, errors = {}, {}
    for label, path, chosen in (
        ("raw", made.path, plain),
        ("portable", fused, plain),
        ("native", fused, native),
    ):
        try:
            session = onnxruntime().InferenceSession(str(path), chosen)
        # The binding raises classes of its own that share no public base.
        except Exception as error:
            say(f"{name} {dtype}: {label} is not run: {str(error)[:160]}")
            yield [name, dtype, fused_norms, label, "not run", "", ""]
            continue
        feeds = {session.get_inputs()[0].name: made.tokens}
        logits = session.run(None, feeds)[0].astype(np.float32)
        errors[label] = float(np.abs(logits - made.logits.astype(np.float32)).max())
        runs[label] = lambda session=session, feeds=feeds: session.run(None, feeds)
    taken = samples(runs, options.rounds, 0.0, clock(options.threads)) if runs else {}
    for label, values in taken.items():
        least = min(values)
        ratio = f"{least / min(taken['raw']):.3f}" if "raw" in taken else ""
        time_taken = f"{least * 1e3:.1f}"
        yield [
            name,
            dtype,
            fused_norms,
            label,
            time_taken,
            ratio,
            f"{errors[label]:.2g}",
        ]


def main() -> int:
    options, start = _arguments(), Start()
    rows = []
    for name in options.models:
        for dtype in options.dtypes:
            say(f"{name} {dtype}")
            with tempfile.TemporaryDirectory() as folder:
                rows += _rows(name, dtype, options, Path(folder))
    report = start.facts(*PACKAGES) | {
        "rows": [dict(zip(_HEADINGS, row, strict=True)) for row in rows]
    }
    head = [*about(report), f"{options.layers} layers, 64 tokens, threads: {options.threads}"]
    print_table(_HEADINGS, rows, above=head)
    page = ["# Whole models with the kernels for ONNX Runtime on the CPU", "", *bullets(head), ""]
    page += markdown_table(_HEADINGS, rows)
    print(write_results(report, "\n".join(page) + "\n", options.output))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
