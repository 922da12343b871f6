"""Build engines of the corpus' architectures in three forms, and record what became of their norms.

    scripts/engines/run                           all of them, float16 and float32: about an hour
    scripts/engines/run llama qwen3 --dtypes float16

Each model is exported from transformers (or taken from the cache of the tests), and built raw, and
as ``optimize`` writes it for the targets ``onnx`` and ``portable`` with ``--numerics upcast``, so
that a norm that the source computes in a half type is one node too. Results are written after every
model.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rmsnorm_export as rx
from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.tensorrt.engine.build import build_engine
from rmsnorm_export.tensorrt.engine.result import EngineRecord
from scripts.engines.report import markdown
from scripts.engines.row_lengths import row_lengths
from scripts.lib.command import add_output, parser
from scripts.lib.results import Start, write_results

FORMS = ("raw", "onnx", "portable")
SHAPES = {
    "tokens": {"input_ids": ((1, 1), (2, 7), (4, 64))},
    "pixels": {"pixel_values": ((1, 3, 16, 16), (2, 3, 16, 16), (4, 3, 16, 16))},
}


def _arguments() -> argparse.Namespace:
    options = parser("engines/run", __doc__)
    add = options.add_argument
    add("names", nargs="*", help="architectures; all of them without one")
    add("--dtypes", default="float16,float32", help="e.g. float16,bfloat16")
    add("--backend", default="auto", help="as for rmsnorm-export build")
    add("--limit", type=int, default=600, help="seconds for one build")
    add("--keep", action="store_true", help="keep the other rows of the output")
    add_output(options, "engines.json")
    return options.parse_args()


def make_form(form: str, source: Path, folder: Path) -> Path:
    """The file of one form of a model."""
    if form == "raw":
        return source
    path = folder / f"{form}.onnx"
    rx.optimize(source, target=form, numerics="upcast").save(path, weights="embed", force=True)
    return path


def shapes_of(kind: str, dynamic: tuple[int, ...], inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The ranges for an export: axes that are not dynamic have the example's size."""
    if not dynamic:
        return None
    ((name, ranges),) = SHAPES[kind].items()
    example = inputs[name].shape
    return {
        name: tuple(
            tuple(size if axis in dynamic else example[axis] for axis, size in enumerate(shape))
            for shape in ranges
        )
    }


def summary(record: EngineRecord, seconds: float) -> dict[str, Any]:
    """What is kept of one engine."""
    hows = [norm.how for norm in record.norms]
    kernels = sorted(norm.kernels for norm in record.norms if norm.kernels is not None)
    return {
        "status": "built",
        "seconds": round(seconds, 2),
        "bytes": record.bytes,
        "layers": len(record.layers),
        "norms": len(hows),
        "how": {how: hows.count(how) for how in dict.fromkeys(hows)},
        "kernels_per_norm": [min(kernels), max(kernels)] if kernels else None,
        "distinct_kernels": len({name for norm in record.norms for name in norm.names}),
        "sums_apart": sum(bool(n.residual) and n.residual not in n.names for n in record.norms),
        "unknown": sorted({norm.reason for norm in record.norms if norm.how == "unknown"}),
        "messages": [
            {"stage": m.stage, "kind": m.kind, "count": m.count, "text": m.text}
            for m in record.messages
        ],
    }


class _LimitError(Exception):
    """The time for a build is over."""


def _stop(*_: object) -> None:
    raise _LimitError


def build_form(form: str, export: Any, folder: Path, backend: str, limit: int) -> dict[str, Any]:
    """Build one form of one model, for ``limit`` seconds at most."""
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(limit)
    try:
        path = make_form(form, export.path, folder)
        kind = export.architecture.kind
        start = time.perf_counter()
        result = build_engine(
            path,
            folder / "model.engine",
            shapes=shapes_of(kind, export.dynamic, export.inputs()),
            backend=backend,
            force=True,
        )
        return summary(result.record, time.perf_counter() - start)
    except rx.Error as error:
        return {"status": "failed", "error": error.what, "found": error.found, "fix": error.fix}
    except _LimitError:
        text = f"not built within {limit} s"
        return {"status": "failed", "error": text, "found": "the build was stopped", "fix": ""}
    finally:
        signal.alarm(0)


def main() -> int:
    """Exit code 0 when everything that was exported was built."""
    from scripts.corpus.architectures import architecture, architectures, export_architecture

    arguments = _arguments()
    start = Start()
    names = arguments.names or [a.name for a in architectures()]
    dtypes = arguments.dtypes.split(",")
    rows: list[dict[str, Any]] = []
    if arguments.keep:
        kept = json.loads(arguments.output.read_text(encoding="utf-8"))["rows"]
        rows = [row for row in kept if row["dtype"] not in dtypes or row["model"] not in names]
    kept_rows = len(rows)
    with tempfile.TemporaryDirectory() as folder:
        lengths = row_lengths(Path(folder), arguments.backend)
        used = _versions(Path(folder) / "row.engine")
    for dtype in dtypes:
        for name in names:
            export = export_architecture(architecture(name), dtype)
            row: dict[str, Any] = {"model": name, "dtype": dtype, "exporter": export.exporter}
            row |= {"expected_norms": export.expected_norms, "reason": export.reason, "forms": {}}
            with tempfile.TemporaryDirectory() as folder:
                for form in FORMS if export.path is not None else ():
                    done = build_form(
                        form, export, Path(folder), arguments.backend, arguments.limit
                    )
                    row["forms"][form] = done
                    print(f"{name} {dtype} {form}: {_line(done)}", flush=True)
            rows.append(row)
            report = start.facts() | {
                "versions": used,
                "row_lengths": lengths,
                "kept_rows": kept_rows,
                "rows": rows,
            }
            write_results(report, markdown(report), arguments.output)
    return int(any(form["status"] != "built" for row in rows for form in row["forms"].values()))


def _versions(engine: Path) -> dict[str, str]:
    """Of what built the engine, and of what exported the models."""
    from rmsnorm_export.tensorrt.engine.result import read_record

    record = read_record(engine)
    assert record is not None
    found = {record.backend: record.version, "gpu": ", ".join(record.gpus) or "none"}
    return found | record.versions | versions_of(("torch", "transformers", "onnxscript"))


def _line(done: dict[str, Any]) -> str:
    if done["status"] != "built":
        return f"FAILED {done['error']} {done['found']}"
    kinds = " ".join(f"{m['kind']}:{m['count']}" for m in done["messages"])
    return f"{done['how']} kernels {done['kernels_per_norm']} {done['seconds']} s {kinds}"


if __name__ == "__main__":
    sys.exit(main())
