"""One step of ``python -m bench.generate``, in a process of its own.

    python -m bench.generate_step (ours | transformers | speed) MODEL FOLDER RESULT

``ours`` and ``transformers`` export the model to the folder; ``speed`` measures what is in it.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 8192,
    "max_position_embeddings": 512,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gemma3_text": {"sliding_window": 512, "query_pre_attn_scalar": 64},
    "llama_large": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
}
EXPORTED_ONLY = ("llama_large",)
"""1.5 GB of weights, beside which nothing else counts: for the memory, not for the speed."""
TOKENS, ROUNDS = 8, 18


def export(tool: str, name: str, folder: Path) -> dict[str, Any]:
    """Seconds of the processor and peak memory of one export, tracing and writing."""
    import torch
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    import rmsnorm_export as rx
    from bench.export_step import MIB, Clock, resident_memory
    from rmsnorm_export.torch.generation.components import sample_inputs
    from tests.tools.corpus.decoders import decoder

    torch.set_num_threads(1)
    gc.collect()
    imported = resident_memory() / MIB
    kind = name.removesuffix("_large")
    model = decoder(kind, **{**SIZES, **MODELS[name]})
    weights = sum(one.numel() * one.element_size() for one in model.parameters()) / MIB
    clock = Clock()
    clock.begin(tool)
    start = time.process_time()
    if tool == "ours":
        made = rx.export_generation(model, folder)
        norms = {part: len(report.fused) for part, report in made.reports.items()}
    else:
        theirs = OnnxExporter().export_for_generation(
            model, sample_inputs(model, {}), config=OnnxConfig(dynamic=True)
        )
        theirs.save_pretrained(folder)
        norms = {}
    seconds = time.process_time() - start
    clock.end()
    written = sum(path.stat().st_size for path in folder.iterdir()) / MIB
    return {
        "seconds": seconds,
        "weights_mb": weights,
        "peak_mb": clock.stages[0]["peak_mb"] - imported,
        "written_mb": written,
        "norms": norms,
    }


def processor_time(run: Callable[[], object]) -> float:
    """Seconds of one run, with one thread: what else the machine does is not in it."""
    start = time.process_time()
    run()
    return time.process_time() - start


def speed(folder: Path) -> dict[str, Any]:
    """The folder as it is, and what each makes of it: ``bench --generate`` in processor time."""
    from rmsnorm_export.benchmark import statistics
    from rmsnorm_export.benchmark.generation import bench_generation

    how: Any = {"generate": TOKENS, "rounds": ROUNDS, "threads": 1, "providers": ["cpu"]}
    with mock.patch.object(statistics, "_clocked", processor_time):
        measured = bench_generation(folder, **how)
    return {
        "passed": measured.passed,
        "reason": measured.reason,
        "variants": [dataclasses.asdict(one) for one in measured.variants],
        "timings": [dataclasses.asdict(one) for one in measured.timings],
    }


def main() -> None:
    tool, name, folder, result = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    warnings.simplefilter("ignore")
    report = speed(folder) if tool == "speed" else export(tool, name, folder)
    result.write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
