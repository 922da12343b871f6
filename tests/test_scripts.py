"""The benchmark and the demo run, and what they conclude from numbers is right."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import graphs, optimize_report
from tests.tools.lib import process, results, tables
from tests.tools.lib.command import RESULTS, ROOT, module_command, module_environment


def _run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        module_command(name, *arguments),
        env=module_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_scripts_write_bytecode() -> None:
    """pip is told to compile nothing: each process would compile torch anew."""
    done = subprocess.run(
        ["bash", "-c", "source tests/tools/env.sh; printenv PYTHONDONTWRITEBYTECODE"],
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.slow
def test_bench_optimize_quick(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    done = _run("bench.optimize", "--quick", "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text(encoding="utf-8"))
    floor = "onnx_ir load + save"
    assert {row["tool"] for row in report["summary"]} == {"ours portable", "ours ort", floor}
    for row in report["summary"]:
        assert row["status"] == "ok"
        assert row["fused"] == (0 if row["tool"] == floor else row["norms"])
        assert row["norms"] == 1 if row["graph"].startswith("one row") else row["norms"] > 1
        assert 0 < row["seconds"]["median"] < row["process_seconds"]["median"]
        assert row["peak_mb"]["median"] > 20
    assert report["help"]["repeats"] == 3
    assert set(report["growth"]["ours portable"]) == {"seconds", "cpu_seconds", "optimize_seconds"}
    assert set(report["growth"][floor]) == {"seconds", "cpu_seconds"}
    assert "growth of ours portable, load + optimize + save: nodes^" in done.stdout
    tables = output.with_suffix(".md").read_text(encoding="utf-8")
    assert tables.count("| ours portable | ") == 2 + 2
    ratios = {(row["graphs"], row["tool"]) for row in report["doubling"]}
    assert ratios == set(itertools.product(["casts"], ("ours portable", "ours ort", floor)))
    assert "casts, ours portable: from 115 to 225 nodes the processor time is" in done.stdout


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.3, 2.0])
def test_growth_is_the_exponent(exponent: float) -> None:
    points = [(n, 3e-5 * n**exponent) for n in (1_000, 5_000, 20_000, 200_000)]
    assert optimize_report.growth(points) == pytest.approx(exponent, abs=1e-9)


@pytest.mark.parametrize("nodes", [1, 500, 2_000])
def test_decoder_has_the_nodes_and_norms_it_says(nodes: int) -> None:
    onnx = pytest.importorskip("onnx")
    model, norms = graphs.decoder(nodes)
    onnx.checker.check_model(model, full_check=True)
    ops = [node.op_type for node in model.graph.node]
    assert ops.count("Reciprocal") == norms
    assert abs(len(ops) - nodes) <= graphs.NODES_PER_LAYER + 9


def test_a_run_over_its_time_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    code, wall, peak = process.run_process(command, time_limit=0.5, log=tmp_path / "log")
    assert code == -9
    assert wall < 30
    assert peak > 1


def test_peak_memory_is_that_of_the_child(tmp_path: Path) -> None:
    # From a small process, as the benchmark does: a child starts at the peak of its parent.
    code = (
        "import sys, pathlib\n"
        "from tests.tools.lib.process import run_process\n"
        "for size in (1, 200):\n"
        "    child = [sys.executable, '-c', f'x = bytearray({size} << 20)']\n"
        "    log = pathlib.Path('log')\n"
        "    print(run_process(child, time_limit=60, log=log)[2])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=module_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    small, large = (float(line) for line in done.stdout.split())
    assert large - small == pytest.approx(199, abs=20)


def test_a_run_out_of_memory_is_called_so(tmp_path: Path) -> None:
    step, model = "bench.optimize_step", tmp_path / "model.onnx"
    made = process.run_step(step, ["decoder", str(model), "2000", "18", "RESULT"], folder=tmp_path)
    assert made.status == "ok"
    output = tmp_path / "out.onnx"
    outcome = process.run_step(
        step,
        ["run", "ours portable", str(model), str(output), "RESULT", str(32 << 20)],
        folder=tmp_path,
    )
    assert outcome.status == "out of memory", outcome
    assert not output.exists()


def test_a_failed_tool_has_no_ratio() -> None:
    run = {"graph": "g", "nodes": 9, "norms": 1, "detail": "", "process_seconds": 2.0}
    run |= {"peak_mb": 10.0, "fused": 1, "seconds": 1.0}
    slow = {"process_seconds": 6.0, "seconds": 4.0, "tool": "onnxslim", "status": "ok"}
    rows = optimize_report.summarise(
        [
            {**run, "tool": "ours portable", "status": "ok"},
            {**run, **slow},
            {**run, "tool": "onnxsim", "status": "out of memory"},
        ]
    )
    assert rows[1]["seconds_ratio"] == 4
    assert rows[1]["process_seconds_ratio"] == 3
    assert rows[2]["status"] == "out of memory"
    assert "seconds_ratio" not in rows[2]


@pytest.mark.parametrize("cells", [[], [["x", "1"]]])
def test_a_table_is_aligned_by_its_headings(cells: list[list[str]]) -> None:
    head, marks, *rows = tables.markdown_table(("name", "a\nnumber:"), cells)
    assert (head, marks) == ("| name | a number |", "|---|---:|")
    assert rows == ["| x | 1 |"] * len(cells)


def test_results_are_written_whole(tmp_path: Path) -> None:
    output = tmp_path / "new" / "bench.json"
    report = results.Start().facts("numpy", "no-such-package")
    assert str(output) in results.write_results(report, "# Page\n", output)
    assert sorted(path.name for path in output.parent.iterdir()) == ["bench.json", "bench.md"]
    assert json.loads(output.read_text(encoding="utf-8")) == report
    assert list(report["versions"]) == ["numpy"]
    first, second, third = results.about(report, "; one thread")
    assert first.startswith(f"{report['date']}, {report['machine']['cpu']}, ")
    assert first.endswith("; one thread")
    assert second == f"numpy {np.__version__}"
    assert third.startswith("load average of the machine: ")


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("bench_export", "bench.export"),
        ("bench_generate", "bench.generate"),
        ("bench_growth", "bench.optimize_report"),
        ("bench_layernorm", "bench.layernorm"),
    ],
)
def test_the_stored_page_is_that_of_the_record(name: str, module: str) -> None:
    record = RESULTS / f"{name}.json"
    page = importlib.import_module(module).markdown(json.loads(record.read_bytes()))
    assert record.with_suffix(".md").read_text(encoding="utf-8") == page


def test_worst_difference() -> None:
    from bench.demo.measure import worst_difference as worst

    a = np.array([1.0, -4.0, 2.0], np.float32)
    assert worst(a, a) == 0
    assert worst(a + np.float32(0.5), a) == pytest.approx(0.125)
    assert worst(np.array([1.0, np.nan, 2.0]), a) == np.inf
    assert worst(a[:2], a) == np.inf


@pytest.mark.slow
@pytest.mark.export
def test_demo_of_one_architecture(tmp_path: Path) -> None:
    options = ["--only", "LLaMA", "--layers", "1", "--seconds", "0.1", "--no-decoder"]
    done = _run("bench.demo", *options, "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything held" in done.stdout
    # Norms in PyTorch, fused, refused, proved.
    assert len(re.findall(r"(portable|onnx|ort|rx.export) +3 +3 +0 +3 ", done.stdout)) == 4
    made = {path.name for path in tmp_path.iterdir()}
    names = ("", ".portable", ".onnx", ".ort", ".straight")
    assert {f"llama{name}.onnx" for name in names} <= made
    # The page and the engine of the first model.
    assert {"llama.html", "llama.portable.engine", "llama.portable.engine.json"} <= made
    assert "3 of 3 RMSNorms in one kernel each" in done.stdout
    page = (tmp_path / "llama.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 2
    assert page.count("<h2") == 5  # summary, rewrites, sites, engine, verification


@pytest.mark.thorough
def test_the_demo_takes_a_decoder_from_its_config_to_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")
    from bench.demo.decoder import generate

    assert generate(tmp_path) == []
    assert "64 of 64 greedy tokens are the same" in capsys.readouterr().out
    assert {"prefill.onnx", "decode.onnx"} <= {one.name for one in (tmp_path / "decoder").iterdir()}


@pytest.mark.thorough
def test_decoders_quick(tmp_path: Path) -> None:
    pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")
    output = tmp_path / "decoders.json"
    done = _run("bench.decoders", "--quick", "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert row["norms"] == {"prefill": 5, "decode": 5}
    assert row["tokens"] == "64 of 64 greedy tokens are the same"
    assert row["worst"] < 1
    assert "| llama | dynamic | f32 |" in output.with_suffix(".md").read_text(encoding="utf-8")
