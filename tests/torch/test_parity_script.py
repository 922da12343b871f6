"""``tests/tools/parity/run``: its files, its exit code, and the model level."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers", reason="needs the catalogue: pip install transformers")

import torch

from tests.tools.parity import claims, float64, measure, models


def failures(cells: list[Any]) -> list[str]:
    return [text for claim in claims.judge(cells, []) for text in claim.failed]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_whole_model(dtype: str) -> None:
    cell = models.examine("t5_encoder", dtype, export=True)
    assert failures([cell]) == []
    assert cell.notes["norms"] == cell.notes["replaced"] == 5
    if dtype == "bfloat16":
        assert "no kernel for MatMul" in cell.absent["portable"]
        return
    assert cell.notes["sites"] == {"portable": 5, "onnx": 5, "ort": 5}
    assert cell.notes["proved"]["portable"] == "5/5"
    assert set(cell.errors) == {"eager", "ours", "portable", "onnx", "ort", "portable+"}
    if dtype == "float16":
        assert cell.pairs["eager", "ours"].bitwise


def test_a_worse_model_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every root mean square off by 1e-5: far beyond the noise of a last bit."""
    eager = importlib.import_module("rmsnorm_export.torch.operator.eager")
    rms, replace = eager._rms, models.replace_norms

    def then_broken(model: torch.nn.Module) -> Any:
        found = replace(model)  # its probe would refuse a broken operator
        monkeypatch.setattr(eager, "_rms", lambda *a: rms(*a) * (1 + 1e-5))
        return found

    monkeypatch.setattr(models, "replace_norms", then_broken)
    cell = models.examine("t5_encoder", "float32", export=False)
    assert cell.notes["replaced"] == 5
    assert "standard deviations" in failures([cell])[0]


def test_models_run_in_float64_whatever_their_code_says() -> None:
    class Narrowing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = torch.softmax(x.float(), -1, dtype=torch.float32) + torch.ones(3)
            return rows.to(torch.float16).type_as(x)

    x = torch.randn(4, 3, dtype=torch.float64)
    found = float64.run(Narrowing(), (x,))
    assert torch.equal(found, torch.softmax(x, -1) + 1)

    class Stubborn(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy().astype(np.float32))

    with pytest.raises(TypeError, match="not in float64"):
        float64.run(Stubborn(), (x,))
    assert torch.get_default_dtype() == torch.float32


def test_distances_and_histograms() -> None:
    one = np.float32(1)
    a = np.array([1, 1, 1, 1, np.nan, np.inf], np.float32)
    b = a.copy()
    b[1], b[2] = np.nextafter(one, 2 * one), one + 6 * np.finfo(np.float32).eps
    found = measure.distance(a, b)
    assert (found.max, found.differ) == (6, pytest.approx(2 / 6))
    assert dict(zip(measure.BUCKETS, found.histogram, strict=True)) == {
        "0": 4, "1": 1, "2": 0, "3-4": 0, "5-8": 1, "9-16": 0, "17+": 0, "inf": 0,
    }  # fmt: skip
    b[4] = 0
    assert measure.distance(a, b).max == np.inf
    beside = measure.distance(a[:3], b[:3], np.full(3, 4.0))
    assert beside.max == 6 / 4  # in ulp of the larger term of a sum
    assert measure.total([found.histogram, found.histogram])[0] == 8


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    pytest.importorskip("matplotlib", reason="the picture: pip install matplotlib")
    parity = importlib.import_module("tests.tools.parity.__main__")
    # Two variants will do.
    monkeypatch.setattr(parity, "VARIANTS", parity.VARIANTS[3:5])
    options = ["--quick", "--level", "module", "--dtype", "float16", "float32"]
    monkeypatch.setattr(sys, "argv", ["parity", *options, "--out", str(tmp_path)])
    return parity


def test_script_writes_table_json_and_picture(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main() == 0
    captured = capsys.readouterr()
    assert "every claim holds" in captured.out
    assert "module 2/2 Gemma order" in captured.err
    report = json.loads((tmp_path / "parity.json").read_text(encoding="utf-8"))
    assert report["versions"]["torch"] == torch.__version__
    cells = [dict(zip(report["columns"], row, strict=True)) for row in report["cells"]]
    assert {(c["subject"], c["dtype"]) for c in cells} == {
        (name, dtype) for name in ("LLaMA order", "Gemma order") for dtype in script.DTYPES
    } - {(name, d) for name in ("LLaMA order", "Gemma order") for d in ("bfloat16", "float64")}
    assert len(cells) == 2 * 2 * 3 * 8
    assert report["sides"][:3] == ["eager", "ours", "portable"]
    assert report["pairs"][0] == "eager - ours"
    for cell in cells:
        assert len(cell["pairs"]) == len(report["pairs"])
        assert all(len(found) == 2 for found in cell["errors"])
    counts = report["histograms"]["LLaMA order, float16"]["ours"]
    llama = [c for c in cells if (c["subject"], c["dtype"]) == ("LLaMA order", "float16")]
    assert sum(counts) == sum(c["elements"] for c in llama)
    page = (tmp_path / "parity.md").read_text(encoding="utf-8")
    assert page.count("| LLaMA order | float") == 2
    assert "**c accuracy: holds**" in page
    assert (tmp_path / "parity.png").read_bytes().startswith(b"\x89PNG")


def test_script_fails_with_the_cells_when_a_claim_fails(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = claims.judge

    def one_fails(cells: Any, proofs: Any) -> Any:
        found = judge(cells, proofs)
        found[2].failed.append(f"{cells[0]}: 9 ulp")
        return found

    monkeypatch.setattr(script.claims, "judge", one_fails)
    assert script.main() == 1
    out = capsys.readouterr().out
    assert "FAILED claim c accuracy: LLaMA order" in out
    assert "1 cells fail a claim" in out
    assert "FAILS" in (tmp_path / "parity.md").read_text(encoding="utf-8")
