"""The record of ``scripts/engines/run``: what its table says of results."""

from __future__ import annotations

import json

from scripts.engines.report import markdown
from scripts.lib.command import RESULTS


def form(**changes: object) -> dict[str, object]:
    done: dict[str, object] = {
        "status": "built", "seconds": 1.5, "bytes": 9, "layers": 20, "norms": 5,
        "how": {"fused": 3, "unfused": 2}, "kernels_per_norm": [1, 2], "distinct_kernels": 7,
        "sums_apart": 1, "unknown": [],
        "messages": [{"stage": "build", "kind": "half-norm", "count": 2, "text": "in FP16"},
                     {"stage": "parse", "kind": "index-type", "count": 1, "text": "64"}],
    }  # fmt: skip
    return done | changes


def report(**forms: object) -> dict[str, object]:
    return {
        "date": "2026-01-02 03:04 UTC",
        "machine": {"cpu": "a cpu", "cores": 2, "memory_gib": 8.0, "python": "3.11"},
        "versions": {"tensorrt-rtx": "1.7"},
        "load_average": {"before": 0.0, "after": 1.0},
        "kept_rows": 0,
        "row_lengths": [
            {"n": 64, "dtype": "float16", "how": "fused", "names": ["__myl_A_myl0_1"]},
            {"n": 99, "dtype": "float16", "how": "fused", "names": ["__myl_A_myl0_2"]},
        ],
        "rows": [{"model": "m", "dtype": "float16", "forms": forms}],
    }


def test_a_table_with_what_went_wrong() -> None:
    failed = {"status": "failed", "error": "cannot take it.", "found": "node 'x'", "fix": "-"}
    text = markdown(report(raw=form(), onnx=form(messages=[], unknown=["hidden"]), portable=failed))
    assert "| m | float16 | raw | 5 | 3 | 2 | 0 | 1-2 | 7 | 1 | 2 | 0 | 20 | 1.5 |" in text
    assert "| m | float16 | onnx | 5 | 3 | 2 | 0 | 1-2 | 7 | 1 | 0 | 0 | 20 | 1.5 |" in text
    assert "2 engines built, 1 failed; 1 architectures" in text
    assert "- m float16 portable: cannot take it. node 'x'" in text
    assert "- unknown in 1 engines: hidden" in text
    assert "- warning in 1 engines: build [half-norm] in FP16" in text
    assert "| float16 | 64; 99 | fused | `A` |" in text


def test_a_record_of_several_runs_says_so() -> None:
    made = report()
    assert "kept from earlier runs" not in markdown(made)
    made["kept_rows"] = 1
    assert "- 1 of the 1 models and types were kept from earlier runs" in markdown(made)


def test_the_stored_record_is_that_of_its_table() -> None:
    stored = RESULTS / "engines.json"
    record = json.loads(stored.read_text(encoding="utf-8"))
    assert stored.with_suffix(".md").read_text(encoding="utf-8") == markdown(record)
    models = {row["model"] for row in record["rows"]}
    assert len(models) >= 10
    for row in record["rows"]:
        for name, done in row["forms"].items():
            assert done["status"] == "built", (row["model"], name)
            if name != "raw":
                assert "half-norm" not in {message["kind"] for message in done["messages"]}
