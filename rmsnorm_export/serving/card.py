"""The model card: what is in the folder, where it comes from and what was checked, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rmsnorm_export.printable import collapse, one_line
from rmsnorm_export.serving.records import BenchmarkDocument
from rmsnorm_export.serving.result import (
    CARD_FILE,
    PackagedFile,
    PackagedNorm,
    PackagedVersion,
    PackageRecord,
    ServedTensor,
)

_BENCHMARK_ROWS = 40
"""Rows of a benchmark that are shown; the file beside the model has all."""

_CLIENT_TEXT = (
    "The client keeps the cache: prefill answers with it, and each request of decode has it. The "
    "server keeps no state between requests, so any instance answers any of them; sequences of one "
    "length can be joined into a batch. On one host, Triton's shared memory saves the copies."
)


_STARTING = """\
## Starting the server

In the folder of models, the one above this, with `IMAGE` the name of an image of Triton Inference
Server (`tritonserver:YY.MM-py3`):

```bash
docker run --rm {gpus}-p 8000:8000 -v "$PWD":/models:ro "$IMAGE" {server}
```

The server is ready when `curl -f localhost:8000/v2/models/{name}/ready` succeeds."""

_ASKING = """\
import numpy as np
import tritonclient.http as http

client = http.InferenceServerClient("localhost:8000")
values = {{
{values}
}}
inputs = []
for name, (kind, value) in values.items():
    inputs.append(http.InferInput(name, value.shape, kind))
    inputs[-1].set_data_from_numpy(value)
answer = client.infer("{name}", inputs)
for name in {outputs}:
    print(name, answer.as_numpy(name).shape)"""

_EXAMPLE_TYPES = {
    "BOOL": "np.bool_",
    "FP16": "np.float16",
    "FP32": "np.float32",
    "FP64": "np.float64",
    **{
        f"{sign}INT{bits}": f"np.{sign.lower()}int{bits}"
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}
"""Types of requests that NumPy has; the others, such as BF16, need more than an example."""


def card(
    record: PackageRecord,
    benchmarks: Sequence[BenchmarkDocument],
    client: str = "",
    *,
    gpus: bool = True,
) -> str:
    """The card.

    Args:
        record: of the model; the newest version is described, the others are listed.
        benchmarks: of the version that was packaged.
        client: Python that asks the model; "": an example that asks it once.
        gpus: the server gives the model a GPU.
    """
    loads = [version.load for version in record.versions if version.load]
    server = one_line(loads[-1]) if loads else "tritonserver --model-repository=/models"
    start = _STARTING.format(gpus="--gpus all " * gpus, server=server, name=record.name)
    lines = [f"# {record.name}", "", _introduction(record), "", *start.splitlines(), ""]
    lines += ["## Requests and answers", "", _batch(record), ""]
    lines += _markdown_table(("", "name", "type", "shape"), _tensors(record))
    if client:
        lines += ["", "## Generating text", "", _CLIENT_TEXT, "", "```python"]
        lines += [*client.splitlines(), "```"]
    elif example := _example(record):
        lines += ["", "## Asking it", "", "It needs `pip install 'tritonclient[http]'`.", ""]
        lines += ["```python", *example.splitlines(), "```"]
    for version in sorted(record.versions, key=lambda v: -v.version):
        lines += _version_section(version)
    for benchmark in benchmarks:
        lines += _benchmark(benchmark)
    shared = [file for file in record.files if file.path != CARD_FILE]
    lines += ["## Files beside the versions", "", *_file_rows(shared)]
    return "\n".join(lines).rstrip() + "\n"


def _example(record: PackageRecord) -> str:
    """A client that asks once, with zeros of the smallest sizes; "" where NumPy lacks a type."""
    kinds = [tensor.dtype.removeprefix("TYPE_") for tensor in record.inputs]
    if not set(kinds) <= _EXAMPLE_TYPES.keys():
        return ""
    rows = []
    for tensor, kind in zip(record.inputs, kinds, strict=True):
        shape = [max(size, 1) for size in tensor.shape]
        rows.append(f"    {tensor.name!r}: ({kind!r}, np.zeros({shape}, {_EXAMPLE_TYPES[kind]})),")
    outputs = [tensor.name for tensor in record.outputs]
    return _ASKING.format(values="\n".join(rows), name=record.name, outputs=outputs)


def _introduction(record: PackageRecord) -> str:
    versions = ", ".join(str(version.version) for version in record.versions)
    runs = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT"}[record.backend]
    return (
        f"A model for Triton Inference Server, run by its {runs} backend. Versions: {versions}; "
        "the server loads all of them."
    )


def _batch(record: PackageRecord) -> str:
    if record.max_batch:
        return (
            f"The leading axis is the batch; the server takes up to {record.max_batch}. "
            "-1 is any size."
        )
    return "The server does not join requests into batches. -1 is any size."


def _tensors(record: PackageRecord) -> Iterable[tuple[str, ...]]:
    for what, tensors in (("input", record.inputs), ("output", record.outputs)):
        for tensor in tensors:
            yield what, _code(tensor.name), tensor.dtype.removeprefix("TYPE_"), _shape_words(tensor)


def _shape_words(tensor: ServedTensor) -> str:
    return "[" + ", ".join(map(str, tensor.shape)) + "]"


def _version_section(version: PackagedVersion) -> list[str]:
    lines = [
        f"## Version {version.version}",
        "",
        f"Made {version.made} by {_prose(version.tool)} from {_code(version.source)} (sha256"
        f" `{version.source_sha256}`).",
        "",
    ]
    if version.load:
        lines += [
            "The engine needs the plugin library in its folder. With the repository at `/models`:",
            "",
            f"    {one_line(version.load)}",
            "",
        ]
    lines += ["### RMSNorms", "", *_norm_rows(version.norms)]
    lines += ["### Checked", ""]
    lines += _markdown_table(
        ("check", "outcome", "how"), ((c.name, c.outcome, c.detail) for c in version.checks)
    )
    if version.notes:
        lines += ["### Notes", "", *(f"- {_prose(note)}" for note in version.notes), ""]
    return [*lines, "### Files", "", *_file_rows(version.files)]


def _norm_rows(norms: Sequence[PackagedNorm]) -> list[str]:
    """Norms that are alike share a row."""
    if not norms:
        return ["The model has none.", ""]
    groups: dict[tuple[str, ...], list[str]] = {}
    for norm in norms:
        key = (norm.op, norm.how, norm.numerics or "not recorded", norm.proof or "not recorded")
        groups.setdefault((*key, norm.reason), []).append(norm.name)
    rows = (
        (str(len(names)), _code("; ".join(collapse(names)[:6])), *key)
        for key, names in groups.items()
    )
    return _markdown_table(
        ("count", "names", "operator", "is", "numerics", "proof", "reason"), rows
    )


def _file_rows(files: Sequence[PackagedFile]) -> list[str]:
    rows = ((_code(f.path), f"{f.bytes}", _code(f.sha256)) for f in files)
    return _markdown_table(("file", "bytes", "sha256"), rows)


def _benchmark(benchmark: BenchmarkDocument) -> list[str]:
    """Whatever the document says in plain values, and its lists of objects as tables."""
    lines = [f"## Benchmark: {_prose(benchmark.name)}", ""]
    plain = [(key, value) for key, value in benchmark.body.items() if _is_plain(value)]
    lines += _markdown_table(("", "value"), ((key, _value(value)) for key, value in plain))
    for key, value in benchmark.body.items():
        rows = [r for r in value if isinstance(r, dict)] if isinstance(value, list) else []
        first = rows[0] if rows else {}
        heads = [head for head in first if any(_is_plain(row.get(head)) for row in rows)]
        if not heads:
            continue
        lines += [f"### {_prose(key)}", ""]
        lines += _markdown_table(
            heads, ([_value(r.get(head)) for head in heads] for r in rows[:_BENCHMARK_ROWS])
        )
        if len(rows) > _BENCHMARK_ROWS:
            lines += [f"{len(rows) - _BENCHMARK_ROWS} more rows are in the file.", ""]
    return lines


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if _is_plain(value) else ""


def _markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(map(_prose, row))} |" for row in rows]
    if not body:
        return ["None.", ""]
    return [f"| {' | '.join(map(_prose, heads))} |", "|" + " --- |" * len(heads), *body, ""]


def _prose(text: str) -> str:
    """Prose from outside: one line, and nothing that Markdown or HTML would act on in a cell."""
    line = one_line(text, 500).replace("|", "\\|")
    return line if line.startswith("`") else line.replace("<", "&lt;")


def _code(text: str) -> str:
    """A name as code; what would end it is left out."""
    return f"`{one_line(text, 300).replace('`', '')}`"
