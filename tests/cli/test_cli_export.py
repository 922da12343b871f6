"""``rmsnorm-export export`` from every kind of source, and what it says of bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")

import torch

from tests.cli.conftest import Run

pytestmark = pytest.mark.export

SHAPES = "ids=int64[batch=1..8,seq=1..2048]"


class Model(torch.nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(30, 16)
        self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(16) for _ in range(layers)])

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(ids)
        for norm in self.norms:
            x = x + torch.tanh(norm(x))
        return {"hidden": x}


class Forgetful(torch.nn.Module):
    count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Forgetful.count += 1
        return x * Forgetful.count


def make(layers: int = 2) -> Model:
    print("loud when called")
    return Model(layers)


def with_inputs() -> tuple[Model, tuple[torch.Tensor]]:
    return make(), (torch.zeros(2, 3, dtype=torch.int64),)


def forgetful() -> tuple[Forgetful, tuple[torch.Tensor]]:
    return Forgetful(), (torch.ones(2, 2),)


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_factory_with_arguments_proved_and_verified(run: Run, tmp_path: Path) -> None:
    done = run(
        "export", f"{__name__}:make", "-o", "m.onnx", "--arg", "layers=3", "--shapes", SHAPES,
        "--dtype", "f16", "--opset", 18, "--prove", "--verify", "--require", "all",
        "--format", "json", "--report", "r.txt",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert done.stderr == ""
    report = done.json
    assert [site["module"] for site in report["fused"]] == ["norms.0", "norms.1", "norms.2"]
    assert all(site["proof"]["passed"] for site in report["fused"])
    assert report["verification"]["passed"]
    assert len(report["verification"]["outputs"]) == 2, "the example sizes, and others"
    model = onnx.load(tmp_path / "m.onnx")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param for dim in dims] == ["batch", "seq"]
    assert [output.name for output in model.graph.output] == ["hidden"]
    assert model.opset_import[0].version == 18 or model.opset_import[1].version == 18
    assert "3 of 3" in (tmp_path / "r.txt").read_text()
    assert left(tmp_path) == {"m.onnx", "r.txt"}


@pytest.mark.parametrize("command", ["export", "verify", "deploy"])
def test_a_factory_is_named_by_its_file(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets/my_own_net.py").write_text(
        "import torch\ndef make():\n    return torch.nn.RMSNorm(8, eps=1e-6)\n"
    )
    source, shapes = "nets/my_own_net.py:make", "x=f32[2,8]"
    onnx = tmp_path / "m.onnx"
    if command == "deploy":
        (tmp_path / "nets/p.toml").write_text(
            f'[pipeline]\nname = "net"\n[export]\nsource = "my_own_net.py:make"\n'
            f'shapes = "{shapes}"\n[optimize]\n'
        )
        done = run("deploy", "nets/p.toml")
    else:
        done = run("export", source, "-o", onnx, "--shapes", shapes, "--require", 1)
        if command == "verify":
            done = run("verify", source, onnx)
    assert done.code == 0, done.stderr


def test_require_that_is_not_met_writes_nothing(run: Run, tmp_path: Path) -> None:
    done = run("export", f"{__name__}:with_inputs", "-o", "m.onnx", "--require", 3)
    assert done.code == 5
    assert left(tmp_path) == set()


def test_a_file_that_differs_loses_no_report(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("export", f"{__name__}:forgetful", "-o", "m.onnx", "--verify")
    done.assert_error(4, "models differ")
    assert "DIFFER" in done.text
    assert "PyTorch" in done.text

    def crashes(*_: object, **__: object) -> None:
        raise RuntimeError("driver gone")

    monkeypatch.setattr("rmsnorm_export.deploy.source.compare_file", crashes)
    arguments = ("export", f"{__name__}:with_inputs", "-o", "e.onnx", "--verify")
    done = run(*arguments, "--format", "json")
    done.assert_error(1, "--verify", "driver gone")
    assert len(done.json["fused"]) == 2
    assert Path(done.json["output"]["path"]).is_file()
    stdout = run(*arguments[:2], "-o", "-", "--verify")
    stdout.assert_error(2, "--verify needs a file")


@pytest.mark.parametrize("name", ["AutoModelForImageSegmentation", "AutoModelForCausalLM"])
def test_code_of_a_folder_is_never_run(run: Run, tmp_path: Path, name: str) -> None:
    """An Auto class under ``architectures`` would import it, after a question on stdin."""
    (tmp_path / "folder").mkdir()
    config = {
        "model_type": "llama",
        "architectures": [name],
        "auto_map": {name: "modeling_own.Own", "AutoConfig": "modeling_own.OwnConfig"},
    }
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config))
    (tmp_path / "folder" / "model.safetensors").write_bytes(bytes([2, *[0] * 7]) + b"{}")
    (tmp_path / "folder" / "modeling_own.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    )
    for source in ("folder", "folder/config.json"):
        done = run("export", source, "-o", "m.onnx", stdin=b"y\n" * 9)
        done.assert_error(3, "code of its own", "not run", name)
    assert left(tmp_path) == {"folder"}


class Touch(str):
    """Unpickled, it makes a file."""

    def __reduce__(self) -> object:
        return open, (str(self), "w")


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("command", ["export", "verify"])
def test_a_pt2_file_runs_nothing(command: str, archive: bool, run: Run, tmp_path: Path) -> None:
    torch.save(Touch(tmp_path / "ran"), tmp_path / "n.pt2", _use_new_zipfile_serialization=archive)
    arguments = ["n.pt2", "-o", "m.onnx"] if command == "export" else ["n.pt2", "n.pt2"]
    run(command, *arguments).assert_error(3, "--trust-source")
    assert not (tmp_path / "ran").exists()
