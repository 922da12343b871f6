"""One token behind 64 cached ones: our decode graphs beside those of other exporters.

Four layers of width 512 with random weights, float32, one row. All graphs run in turn in one
process, on one thread of ONNX Runtime with its optimizer. A time is that of the thread, so that
other programs cost little, in sessions that are opened anew each round: where weights lie in memory
makes a graph faster or slower by more than its nodes do. Shares are medians over the rounds of the
median of the pairs with the first graph. optimum-cli and onnxruntime-genai's builder are run by the
commands of --cli and --builder, which may call an environment of their own; what fails is shown.
Exports of this process are timed, too, by the processor's time.
"""

from __future__ import annotations

import copy
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from bench.lib.results import about, bullets
from bench.lib.tables import markdown_table
from rmsnorm_export.decoder.export import export_generation
from rmsnorm_export.decoder.inputs import sample_inputs
from toolbox.command import say
from toolbox.corpus.decoders import decoder

PAST, STATIC, ROUNDS = 64, 96, 8
SIZES: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
_CACHE = (1, SIZES["num_key_value_heads"], PAST, SIZES["head_dim"])
OPTIMUM = "optimum-cli export onnx -m {source} --task text-generation-with-past {out}"
BUILDER = "python -m onnxruntime_genai.models.builder -i {source} -o {out} -p fp32 -e cpu -c {out}"
Record = dict[str, Any]


def measure_speed(kind: str, folder: Path, repeats: int, commands: dict[str, str]) -> list[Record]:
    """Export a model by every exporter and time its decode graphs in turn."""
    model = decoder(kind, **SIZES)
    model.save_pretrained(folder / "source")
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="b")
    tokenizer.save_pretrained(folder / "source")  # the builder asks for one, and for a last token
    rows: list[Record] = []
    paths: dict[str, Path] = {}
    for name, cache, path, seconds in _graphs(model, folder, commands):
        row: Record = {"model": kind, "exporter": name, "cache": cache, "detail": ""}
        rows.append(row | {"export seconds": seconds} if seconds else row)
        try:
            if isinstance(path, str):
                raise RuntimeError(path)
            rows[-1]["nodes"] = len(onnx.load(path, load_external_data=False).graph.node)
            session, feeds = _decoding(path)
            session.run(None, feeds)
            paths[f"{name} {cache}"] = path
        except Exception as error:  # whatever ONNX Runtime raises
            rows[-1]["detail"] = str(error)[:200]
    rounds = [timed(paths, repeats // ROUNDS + 1, _decoding) for _ in range(ROUNDS)]
    for row in rows:
        if (label := f"{row['exporter']} {row['cache']}") in paths:
            first = next(iter(paths))
            shares = [np.median(times[label] / times[first]) for times in rounds]
            row |= {"share": float(np.median(shares)), "shares": sorted(map(float, shares))}
            row["milliseconds"] = float(np.median([times[label] for times in rounds])) * 1e3
    return rows


def _graphs(
    model: Any, folder: Path, commands: dict[str, str]
) -> Iterator[tuple[str, str, Path | str, float]]:
    """Yield exporter, cache, the decode graph or why there is none, and seconds of its export."""
    for name, command in commands.items():
        out = folder / name.replace(" ", "_")
        words = shlex.split(command.format(source=folder / "source", out=out))
        try:
            subprocess.run(words, check=True, capture_output=True, text=True)
            yield name, "dynamic", out / "model.onnx", 0.0
        except (OSError, subprocess.CalledProcessError) as error:
            lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            yield name, "dynamic", lines[-1][:200], 0.0
    theirs(decoder(model.config.model_type), folder / "first", None, None)  # modules are loaded
    for cache, size in (("dynamic", None), ("static", STATIC)):
        for fusions in (None, "cpu"):
            with_them = ", its fusions" if fusions else ""
            out, start = folder / f"theirs_{cache}_{fusions}", time.process_time()
            path = theirs(model, out, size, fusions)
            yield f"transformers{with_them}", cache, path, time.process_time() - start
            out, start = folder / f"ours_{cache}_{fusions}", time.process_time()
            export_generation(model, out, static_cache=size, fusions=fusions, target="ort")
            seconds = time.process_time() - start
            name = f"ours{', --fusions cpu' if fusions else ''}"
            yield name, cache, out / "decode.onnx", seconds


def theirs(model: Any, out: Path, size: int | None, fusions: str | None) -> Path | str:
    """Return the decode graph of transformers' own exporter, or why there is none."""
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    config: Any = OnnxConfig(dynamic=True, ort_fusions=fusions)  # type: ignore[arg-type]
    settings = copy.deepcopy(model.generation_config)
    if size is not None:
        settings.cache_implementation, settings.max_cache_len = "static", size
    try:
        exporter: Any = OnnxExporter()  # type: ignore[no-untyped-call]
        exported = exporter.export_for_generation(
            model, sample_inputs(model, {}), config, generation_config=settings
        )
        exported.save_pretrained(out)
    except Exception as error:  # whatever it raises
        return f"{type(error).__name__}: {error}"[:200]
    return out / "decode.onnx"


def opened(path: Path, past: int, tokens: int, cache: Sequence[int]) -> tuple[Any, dict[str, Any]]:
    """Return a session on one thread, and inputs of one row for tokens after a cache of a shape."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(os.fspath(path), options)
    generator, feeds = np.random.default_rng(0), {}
    for value in session.get_inputs():
        shape = _shape(value, past, tokens, cache)
        if value.type == "tensor(float)":
            feeds[value.name] = generator.standard_normal(shape).astype(np.float32)
        elif value.type == "tensor(bool)":  # of a cache of fixed size
            feeds[value.name] = np.broadcast_to(np.arange(shape[-1]) <= past, shape)
        elif "position" in value.name and shape:
            feeds[value.name] = np.arange(past, past + tokens).reshape(1, -1)
        else:
            feeds[value.name] = np.full(shape, 1 if shape else past, np.int64)
    return session, feeds


def _shape(value: Any, past: int, tokens: int, cache: Sequence[int]) -> list[int]:
    """Return the shape of an input: exporters have different names for symbolic sizes."""
    length = past + tokens if "mask" in value.name else tokens
    symbolic = {4: cache, 2: (1, length)}.get(len(value.shape), ())
    pairs = zip(value.shape, symbolic, strict=False)
    return [size if isinstance(size, int) else other for size, other in pairs]


def _decoding(path: Path) -> tuple[Any, dict[str, Any]]:
    return opened(path, PAST, 1, _CACHE)


def timed(
    paths: dict[str, Path], repeats: int, make: Callable[[Path], tuple[Any, dict[str, Any]]]
) -> dict[str, Any]:
    """Return the seconds of this thread for each run of graphs, in turn, in new sessions."""
    sessions = {label: make(path) for label, path in paths.items()}
    seconds: dict[str, list[float]] = {label: [] for label in sessions}
    for _ in range(repeats + 3):
        for label, (session, feeds) in sessions.items():
            start = time.thread_time()
            session.run(None, feeds)
            seconds[label].append(time.thread_time() - start)
    return {label: np.array(times[3:]) for label, times in seconds.items()}


def speed_page(report: Record) -> str:
    """Return the results as Markdown."""
    rows = [
        [
            row["model"], row["exporter"], row["cache"], str(row.get("nodes", "")),
            f"{row['milliseconds']:.2f}" if "milliseconds" in row else "",
            f"{row['share']:.3f}" if "share" in row else "",
            f"{row['shares'][0]:.2f} to {row['shares'][-1]:.2f}" if "share" in row else "",
            f"{row['export seconds']:.1f}" if "export seconds" in row else "", row["detail"],
        ]
        for row in report["rows"]
    ]  # fmt: skip
    headings = (
        "model", "exporter", "cache", "nodes:", "ms:", "share:", "by round:", "export s:", "",
    )  # fmt: skip
    return "\n".join(
        [
            "# One token, by exporter", "", *bullets(about(report)),
            f"- {report['repeats']} runs of each in turn, in {ROUNDS} rounds of new sessions, one "
            f"thread; {PAST} tokens cached, static caches hold {STATIC}",
            "", "Share: of the first exporter's time. Export: processor's seconds, saved to disk.",
            "", *markdown_table(headings, rows), "",
        ]
    )  # fmt: skip


def measure_models(
    kinds: list[str], folder: Path, repeats: int, commands: dict[str, str]
) -> list[Record]:
    """Measure several models, each in a folder of its own."""
    transformers.logging.set_verbosity_error()
    rows: list[Record] = []
    for kind in kinds:
        measured = measure_speed(kind, folder / kind, repeats, commands)
        for row in measured:
            say(" ".join(str(value) for value in row.values()))
        rows += measured
    return rows
