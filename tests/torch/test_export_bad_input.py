"""What cannot be exported: which error, what it names, and that nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")

import torch

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.options import OptionError
from rmsnorm_export.torch.export.export import export

pytestmark = pytest.mark.export


class Branch(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


class Bessel(torch.nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Fixing(torch.nn.Module):
    def forward(self, x):
        return x[:, :2] + 1 if x.shape[1] == 4 else x


class Raising(torch.nn.Module):
    def forward(self, x):
        return {"a": x}["b"]


class Holder(torch.nn.Module):
    """Holds the culprit, so that the message has a path to name."""

    def __init__(self, part):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Identity(), part)

    def forward(self, x):
        return self.inner(x)


X = torch.ones(2, 4)
HALF = torch.nn.Linear(4, 4).half()
STRING_DIM = {"x": {0: "batch", 1: "sequence"}}
CASES = [
    ("branch", Holder(Branch()), (X,), {}, InputError, ["'inner.1'", "torch.where"]),
    ("operator", Holder(Bessel()), (X,), {}, InputError, ["bessel_j0"]),
    ("raises", Holder(Raising()), (X,), {}, InputError, ["'inner.1'", "KeyError"]),
    ("types", Holder(HALF), (X,), {}, InputError, ["'inner.1'", "float16"]),
    ("missing", Holder(Branch()), (), {}, UsageError, ["'x'", "forward(x)"]),
    ("fixed", Fixing(), (X,), {"dynamic_shapes": STRING_DIM}, UsageError, ["'x'", "[1]", "4"]),
    ("no axes", Fixing(), (X,), {"dynamic_shapes": 5}, UsageError, ["dynamic_shapes", "5"]),
    ("name", Fixing(), (X,), {"dynamic_shapes": {"z": {0: "b"}}}, UsageError, ["['z']"]),
    ("opset 17", HALF, (X,), {"opset": 17}, UsageError, ["17", "18"]),
    ("onnx at 20", HALF, (X,), {"opset": 20, "target": "onnx"}, UsageError, ["onnx", "23"]),
    ("numerics", HALF, (X,), {"numerics": "sloppy"}, OptionError, ["sloppy", "exact"]),
    ("not a module", torch.sin, (X,), {}, UsageError, ["torch.nn.Module"]),
    ("names", Fixing(), (X,), {"input_names": ["a", "b"]}, UsageError, ["input_names", "x"]),
]


@pytest.mark.parametrize(
    ("module", "args", "options", "kind", "words"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_bad_input(tmp_path: Path, module, args, options, kind, words):
    with pytest.raises(kind) as caught:
        export(module, args, tmp_path / "m.onnx", **options)
    assert type(caught.value) is kind
    for word in words:
        assert word in str(caught.value)
    assert caught.value.found
    assert caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_weights_without_values(tmp_path):
    with torch.device("meta"):
        module = torch.nn.Linear(4, 4)
    with pytest.raises(UsageError, match="weight"):
        export(module, (X,), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="bias"):
        export(module, (X,), tmp_path / "m.onnx", state={"weight": torch.ones(4, 4)})
    with pytest.raises(InputError, match="shape"):
        export(module, (X,), tmp_path / "m.onnx", state=lambda _: torch.ones(3))
    with pytest.raises(InputError, match=r"(?s)weight cannot be had.*'weight': KeyError"):
        export(module, (X,), tmp_path / "m.onnx", state=lambda name: {}[name])
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_and_nothing_is_computed(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists"):
        export(Holder(Raising()), (X,), path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("package", "module"),
    [("torch", "torch"), ("torch", "torch.export.export"), ("onnxscript", "torch.export.export")],
)
def test_a_missing_package_is_named_with_its_command(package, module):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from rmsnorm_export.errors import BackendMissingError\n"
        f"try:\n    import rmsnorm_export.{module}\n"
        "except BackendMissingError as error:\n    print(error.found, error.fix)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert package in done.stdout, done.stderr
    assert "pip install 'torch>=2.9' 'onnxscript>=0.5'" in done.stdout
