"""``rmsnorm-export export`` where something goes wrong: what it says, its code, what it leaves."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from pathlib import Path

import onnx
import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")

from tests import warm
from tests.cli.conftest import Run

pytestmark = pytest.mark.export

FACTORIES = """import sys
import torch
from torch import nn

def norm(n=16, args=True):
    x = torch.ones(2, 16)
    return (nn.RMSNorm(n), (x,)) if args else nn.RMSNorm(n)

def alone():
    return norm(args=False)

def exits():
    sys.exit(7)

def interrupted():
    raise KeyboardInterrupt

class Unready(nn.Module):
    def __init__(self):
        self.inner = nn.Linear(2, 2)

def unready():
    return Unready()

class Loop(nn.Module):
    def forward(self, x):
        while x.abs().max() > 1:
            x = x / 2
        return x

def loop():
    return nn.Sequential(nn.Identity(), Loop()), (torch.ones(2, 2),)

def eighth():
    x = torch.ones(2, 16).to(torch.float8_e4m3fn)
    return nn.Sequential(nn.RMSNorm(16)).to(torch.float8_e4m3fn), (x,)

def absent():
    with torch.device("meta"):
        return nn.Sequential(nn.RMSNorm(16)), (torch.ones(2, 16, device="cpu"),)

def ours():
    import rmsnorm_export
    return NormSpec(axis=3)

def large():
    return nn.Sequential(nn.Linear(512, 512), nn.RMSNorm(512)), (torch.ones(2, 512),)
"""
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 64,
}


@pytest.fixture(autouse=True)
def factories(tmp_path, monkeypatch):
    (tmp_path / "awkward.py").write_text(FACTORIES)
    (tmp_path / "leaves.py").write_text("import sys\n\nsys.exit('no licence')\n")
    (tmp_path / "needs.py").write_text("\nimport a_package_that_nobody_has\n")
    for name in ("awkward", "leaves", "needs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("awkward", "leaves", "needs"):
        sys.modules.pop(name, None)


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {
        "awkward.py",
        "leaves.py",
        "needs.py",
        "__pycache__",
    }


@pytest.mark.parametrize(
    ("source", "options", "code", "words"),
    [
        ("awkward:exits", [], 3, ["awkward:exits", "SystemExit", "7", "awkward.py:13"]),
        ("leaves:make", [], 3, ["leaves", "SystemExit", "no licence", "leaves.py:3"]),
        ("needs:make", [], 3, ["a_package_that_nobody_has", "needs.py:2"]),
        # Raised within PyTorch: the line of the factory's own code is what helps.
        ("awkward:unready", [], 3, ["awkward:unready", "awkward.py:20"]),
        ("awkward:ours", [], 3, ["axis must be negative", "awkward.py:44"]),
        ("awkward:norm", ["--arg", "n=wide"], 3, ["awkward:norm", "awkward.py:7"]),
        ("awkward:norm", ["--arg", "n=15"], 3, ["RMSNorm", "[15]", "[2, 16]", "forward(x)"]),
        ("awkward:loop", [], 3, ["'1'", "torch.where"]),
        ("awkward:eighth", [], 3, ["'0'", "loat8", "--dtype f32"]),
        ("awkward:absent", [], 2, ["'0.weight'", "meta device"]),
        ("awkward:alone", ["--shapes", "x=f32[99999999,99999999]"], 2, ["'x'", "smaller sizes"]),
        ("awkward:alone", ["--shapes", "x=i64[2,16]"], 3, ["int64[2, 16]"]),
        ("awkward:norm", ["--opset", "25"], 2, ["25", "18 to 24"]),
        ("awkward:norm", ["--target", "onnx", "--opset", "22"], 2, ["onnx", "22", "23"]),
    ],
)
def test_what_is_wrong_is_named(
    run: Run, tmp_path: Path, source: str, options: list[str], code: int, words: list[str]
) -> None:
    done = run("export", source, "-o", "m.onnx", *options)
    done.assert_error(code, *words)
    assert done.text == ""
    assert left(tmp_path) == set()


def test_interrupted(run: Run, tmp_path: Path) -> None:
    done = run("export", "awkward:interrupted", "-o", "m.onnx")
    assert done.code == 130
    assert "Traceback" not in done.stderr
    assert left(tmp_path) == set()


def test_a_config_with_a_value_that_is_not_known(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install transformers")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"hidden_act": "wibble"}))
    run("export", "config.json", "-o", "m.onnx").assert_error(3, "no hidden_act 'wibble'")


@pytest.mark.parametrize("name", ["AutoModelForImageSegmentation", "AutoModelForCausalLM"])
def test_code_of_a_folder_is_never_run(run: Run, tmp_path: Path, name: str) -> None:
    """An Auto class under ``architectures`` would import it, after a question on stdin."""
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    folder = tmp_path / "folder"
    settings = {key: value for key, value in LLAMA.items() if key != "model_type"}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "architectures": [name],
        "auto_map": {name: "modeling_own.Own", "AutoConfig": "modeling_own.OwnConfig"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_own.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    )
    for source in ("folder", "folder/config.json"):
        done = run("export", source, "-o", "m.onnx", stdin=b"y\n" * 9)
        done.assert_error(3, "code of its own", "not run", name)
    assert left(tmp_path) == {"folder"}


def test_a_config_of_a_model_too_large_for_the_memory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that are missing have the sizes of a full model."""
    pytest.importorskip("transformers", reason="pip install transformers")
    from rmsnorm_export.torch.source import huggingface as sources_hf

    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr(sources_hf, "memory_available", lambda: 8 << 30)
    done = run("export", "config.json", "-o", "m.onnx")
    done.assert_error(3, "config.json", "25.1 GiB", "8.0 GiB", "num_hidden_layers")
    assert not (tmp_path / "m.onnx").exists()


def test_a_type_that_onnx_runtime_cannot_run(run: Run, tmp_path: Path) -> None:
    export = ("export", "awkward:large", "-o", "m.onnx", "--dtype", "bf16", "--force")
    done = run(*export, "--verify")
    assert (done.code, done.stderr) == (0, "")
    assert "the second model was run as float32, with the same weights" in done.text
    done = run(*export, "--require-verified", "--report", "m.json")
    done.assert_error(7, "could not be run here", "NOT_IMPLEMENTED")
    assert "the models could NOT BE RUN here" in done.text
    assert "m.onnx (" in done.text
    assert json.loads((tmp_path / "m.json").read_text())["verification"]["verdict"] == "not run"
    onnx.checker.check_model(tmp_path / "m.onnx")


def test_module_and_file_that_agree_on_nan_only_are_no_pass(run: Run, tmp_path: Path) -> None:
    (tmp_path / "nan_only.py").write_text(
        "import torch\n"
        "class Net(torch.nn.RMSNorm):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x) * float('nan')\n"
        "def make():\n"
        "    return Net(8)\n"
    )
    export = ("export", "nan_only:make", "-o", "m.onnx", "--shapes", "x=f32[rows=1..9,8]")
    done = run(*export, "--prove", "--verify")
    done.assert_error(4, "no finite number, so nothing was compared")
    assert (tmp_path / "m.onnx").exists()


SMALL_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """No file may grow beyond half a MiB, which stops the write in its middle as a full disk does;
    the model has one MiB."""
    command = ("export", "awkward:large", "-o", "m.onnx")
    program = SMALL_FILES + warm.COMMAND
    done = warm.run(program, *command, folder=tmp_path, imports=warm.EXPORT)
    assert done.returncode == 3, done.stderr
    lines = done.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "found", "fix"]
    assert "m.onnx: File too large" in done.stderr
    assert "free some space" in done.stderr
    assert "source" not in done.stderr, "there is no file that it could be written beside"
    assert left(tmp_path) == set()


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    """Each stage in turn, and no more output than a bar needs: what the exporter prints is kept
    from the terminal, the bar is not."""
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    environment.pop("NO_COLOR", None)
    terminal, theirs = pty.openpty()
    process = warm.start(
        warm.COMMAND, "export", "awkward:norm", "-o", "m.onnx",
        streams=[theirs] * 3, folder=tmp_path, environment=environment, imports=warm.EXPORT,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while True:
        try:
            block = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        shown += block
    os.close(terminal)
    assert process.wait(60) == 0, shown
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    steps = ["Loading the module", "Tracing the module", "Decomposing the graph"]
    places = [text.find(step) for step in steps]
    assert -1 not in places, text[:2000]
    assert places == sorted(places)
    assert "torch.onnx" not in text
    assert "1 of 1 RMSNorm is one node" in text
    # Ten drawings a second, each of some 250 bytes.
    drawings = len(re.findall("Loading the module", text))
    times = re.findall(r"0:(\d\d):(\d\d)", text)
    seconds = max(60 * int(minutes) + int(rest) for minutes, rest in times) + 1
    assert drawings <= 20 * seconds + 20
