"""``rmsnorm-export export`` from every kind of source, and what it says of bad ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")

import torch

from tests.cli.conftest import Run

pytestmark = pytest.mark.export

FACTORIES = '''
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, n))
    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)

class Model(nn.Module):
    def __init__(self, layers, n):
        super().__init__()
        self.embed = nn.Embedding(30, n)
        self.norms = nn.ModuleList([Norm(n) for _ in range(layers)])
    def forward(self, ids):
        x = self.embed(ids)
        for norm in self.norms:
            x = x + torch.tanh(norm(x))
        return {"hidden": x}

class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

class Forgetful(nn.Module):
    """Computes something else each time: an export of it cannot agree."""
    count = 0
    def forward(self, x):
        Forgetful.count += 1
        return x * Forgetful.count

print("loud at import")

def make(layers=2, n=16):
    print("loud when called")
    torch.manual_seed(0)
    return Model(layers, n)

def with_inputs():
    return make(), (torch.zeros(2, 3, dtype=torch.int64),)

def named():
    return make(), (), {"ids": torch.zeros(2, 3, dtype=torch.int64)}

class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm(8)
    def forward(self, x, *past):
        y = self.norm(x)
        return (y, *(torch.cat([one, y], 1) for one in past))

def cached():
    return Cached(), (torch.ones(2, 1, 8), torch.ones(2, 3, 8), torch.ones(2, 3, 8))

def branch():
    return nn.Sequential(nn.Identity(), Branch()), (torch.ones(2, 2),)

def forgetful():
    return Forgetful(), (torch.ones(2, 2),)

def raises():
    return {}["hidden_size"]

def text():
    return "model"

number = 3
'''
SHAPES = "ids=int64[batch=1..8,seq=1..2048]"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 64,
}


@pytest.fixture(autouse=True)
def factories(tmp_path, monkeypatch):
    """A module of factories in the working folder, imported anew by each test."""
    (tmp_path / "factories.py").write_text(FACTORIES)
    (tmp_path / "broken.py").write_text("import a_package_that_nobody_has\n")
    for name in ("factories", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("factories", "broken"):
        sys.modules.pop(name, None)


def left(folder: Path) -> set[str]:
    made = {path.name for path in folder.iterdir()}
    return made - {"factories.py", "broken.py", "__pycache__"}


def test_factory_with_arguments_proved_and_verified(run: Run, tmp_path: Path) -> None:
    done = run(
        "export", "factories:make", "-o", "m.onnx", "--arg", "layers=3", "--shapes", SHAPES,
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


def test_a_runtime_chooses_target_opset_and_format(run: Run, tmp_path: Path) -> None:
    """PyTorch's own choice is newer than what that version loads."""
    done = run("export", "factories:with_inputs", "-o", "m.onnx", "--for", "onnxruntime@1.17")
    assert done.code == 0, done.stderr
    assert "for onnxruntime@1.17: ort" in done.text
    model = onnx.load(tmp_path / "m.onnx")
    assert model.ir_version <= 9
    assert max(entry.version for entry in model.opset_import if not entry.domain) <= 20
    assert any(node.op_type.endswith("SimplifiedLayerNormalization") for node in model.graph.node)
    run("export", "factories:with_inputs", "-o", "x.onnx", "--for", "onnxruntime@9").assert_error(
        2, "this version of onnxruntime is not in the table", "1.15 to"
    )
    given = ("--for", "opencv", "--target", "ort")
    run("export", "factories:with_inputs", "-o", "x.onnx", *given).assert_error(
        3, "pencv 5.0 cannot run this model", "SimplifiedLayerNormalization"
    )
    assert left(tmp_path) == {"m.onnx"}


@pytest.mark.parametrize("name", ["with_inputs", "named"])
def test_factory_with_inputs(run: Run, name: str) -> None:
    done = run("export", f"factories:{name}", "-o", "m.onnx", "--verify", "--target", "ort")
    assert done.code == 0, done.stderr
    assert "2 of 2 RMSNorms, 1 of 1 residual are one node" in done.text
    assert "the models agree" in done.text


def test_stdout(run: Run, tmp_path: Path) -> None:
    done = run("export", "factories:with_inputs", "-o", "-")
    assert done.code == 0
    onnx.load_model_from_string(done.stdout)
    assert "2 of 2" in done.stderr
    assert left(tmp_path) == set()


def test_the_exporters_chatter_needs_v(run: Run) -> None:
    done = run("export", "factories:with_inputs", "-o", "m.onnx", "-v")
    assert "loud at import" in done.stderr
    assert "torch.export.export" in done.stderr
    assert "tidying the graph" in done.stderr
    assert "loud" not in done.text


def test_pt2(run: Run, tmp_path: Path) -> None:
    x = torch.ones(2, 8)
    torch.export.save(torch.export.export(torch.nn.RMSNorm(8), (x,)), tmp_path / "n.pt2")
    run("export", "n.pt2", "-o", "m.onnx").assert_error(3, "n.pt2", "--trust-source")
    trusted = ["export", "n.pt2", "--trust-source", "-o"]
    done = run(*trusted, "m.onnx", "--verify")
    assert done.code == 0, done.stderr
    assert "1 of 1" in done.text
    run(*trusted, "a.onnx", "--dtype", "f16").assert_error(2, "--dtype", "n.pt2")
    run(*trusted, "a.onnx", "--shapes", "x=f32[2,8]").assert_error(2, "--shapes")
    (tmp_path / "n.pt2").write_bytes(b"junk")
    run(*trusted, "a.onnx").assert_error(3, "n.pt2")


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> object:
        return open, (self.path, "w")


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("command", ["export", "verify"])
def test_a_pt2_file_runs_nothing_unasked(
    command: str, archive: bool, run: Run, tmp_path: Path
) -> None:
    torch.save(Touch(tmp_path / "ran"), tmp_path / "n.pt2", _use_new_zipfile_serialization=archive)
    arguments = ["n.pt2", "-o", "m.onnx"] if command == "export" else ["n.pt2", "n.pt2"]
    run(command, *arguments).assert_error(3, "--trust-source")
    assert not (tmp_path / "ran").exists()


def test_hugging_face_config_and_folder(run: Run, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    done = run("export", "config.json", "-o", "random.onnx", "--format", "json", "--dtype", "bf16")
    assert done.code == 0, done.stderr
    modules = [site["module"] for site in done.json["fused"]]
    assert modules[0] == "model.layers.0.input_layernorm"
    assert {site["dtype"] for site in done.json["fused"]} == {"bfloat16"}
    assert len(modules) == 3

    config = transformers.AutoConfig.for_model(**LLAMA)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    done = run("export", "llama", "-o", "m.onnx", "--verify", "--require", 3)
    assert done.code == 0, done.stderr
    names = {v.name for v in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert "model.layers.0.input_layernorm.weight" in names

    path = tmp_path / "llama" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    run("export", "llama", "-o", "n.onnx").assert_error(3, "llama")
    path.unlink()
    run("export", "llama", "-o", "n.onnx").assert_error(3, "llama", ".safetensors")
    assert not (tmp_path / "n.onnx").exists()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{}", ["model_type"]),
        ("{", ["config.json"]),
        ('{"model_type": "llamaa"}', ["llamaa"]),
        ('{"model_type": "llamaa", "auto_map": {"AutoModel": "m.M"}}', ["code of its own"]),
        ('{"model_type": "llama", "hidden_size": "wide"}', ["hidden_size"]),
    ],
)
def test_bad_config(run: Run, tmp_path: Path, config: str, words: list[str]) -> None:
    pytest.importorskip("transformers", reason="pip install transformers")
    (tmp_path / "config.json").write_text(config)
    run("export", "config.json", "-o", "m.onnx").assert_error(3, *words)
    assert not (tmp_path / "m.onnx").exists()


BAD = [
    ("factories:raises", [], 3, ["factories:raises", "KeyError", "hidden_size", "factories.py:"]),
    ("factories:text", [], 3, ["factories:text", "str"]),
    ("factories:number", [], 2, ["no number that can be called"]),
    ("factories:nothing", [], 2, ["no nothing"]),
    ("nowhere:make", [], 2, ["nowhere"]),
    ("broken:make", [], 3, ["a_package_that_nobody_has"]),
    ("factories:", [], 2, ["package.module:factory"]),
    ("factories:make", ["--arg", "depth=3"], 2, ["depth", "layers"]),
    ("factories:make", ["--arg", "layers"], 2, ["NAME=VALUE"]),
    ("factories:make", [], 2, ["forward(ids)", "--shapes"]),
    ("factories:make", ["--shapes", "ids=int64[b"], 2, ["ids=int64[b"]),
    ("factories:make", ["--shapes", "tokens=int64[2]"], 2, ["'ids'", "forward(ids)"]),
    ("factories:make", ["--shapes", "ids=f32[2,3]"], 3, ["'embed'", "float32[2, 3]"]),
    ("factories:make", ["--shapes", SHAPES, "--dtype", "f8"], 2, ["f8"]),
    ("factories:with_inputs", ["--opset", "17"], 2, ["17", "18"]),
    ("factories:branch", [], 3, ["'1'", "torch.where"]),
    ("folder", [], 3, ["config.json"]),
    ("nothing", [], 2, ["nothing", "downloaded"]),
    ("factories.py", [], 2, ["factories.py"]),
    ("folder", ["--arg", "a=1"], 2, ["--arg"]),
]


@pytest.mark.parametrize(("source", "options", "code", "words"), BAD)
def test_bad_source(
    run: Run, tmp_path: Path, source: str, options: list[str], code: int, words: list[str]
) -> None:
    (tmp_path / "folder").mkdir()
    run("export", source, "-o", "m.onnx", *options).assert_error(code, *words)
    assert left(tmp_path) == {"folder"}


def test_a_file_that_exists_is_kept(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("precious")
    run("export", "factories:raises", "-o", "m.onnx").assert_error(2, "exists")
    assert (tmp_path / "m.onnx").read_text() == "precious"


def test_require_that_is_not_met_writes_nothing(run: Run, tmp_path: Path) -> None:
    done = run("export", "factories:with_inputs", "-o", "m.onnx", "--require", 3)
    assert done.code == 5
    assert left(tmp_path) == set()


def test_a_file_that_differs_from_pytorch_is_exit_code_4(run: Run) -> None:
    done = run("export", "factories:forgetful", "-o", "m.onnx", "--verify")
    assert done.code == 4
    assert "differs from PyTorch" in done.stderr
    assert "DIFFER" in done.text


def test_without_torch(spawn: Run, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')\n")
    spawn("export", "factories:make", "-o", "m.onnx").assert_error(6, "torch", "pip install")


OWN_TYPES = """
import torch

class Net(torch.nn.Module):
    def __init__(self, dtype, largest=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = torch.nn.Linear(16, 16, bias=False), torch.nn.RMSNorm(16)
        self.last = torch.nn.Linear(16, 16, bias=False)
        self.largest = largest
        self.to(dtype)

    def forward(self, x):
        y = self.last(self.norm(self.first(x)))
        return y * self.largest * self.largest

def bf16():
    return Net(torch.bfloat16)

def f32():
    return Net(torch.float32)

def large():
    return Net(torch.bfloat16, 1000.0)

CALLS = []

def each_time():
    CALLS.append(None)
    net = Net(torch.bfloat16)
    with torch.no_grad():
        net.last.weight *= 1 + len(CALLS) / 8
    return net
"""


@pytest.mark.parametrize(("name", "own"), [("bf16", "bfloat16"), ("f32", "float32")])
def test_another_type_is_verified_against_the_type_of_the_source(
    run: Run, tmp_path: Path, name: str, own: str
) -> None:
    (tmp_path / "own_types.py").write_text(OWN_TYPES)
    shapes = ("--shapes", "x=f16[rows=1..9,16]")
    export = ("export", f"own_types:{name}", "-o", "m.onnx", "--dtype", "f16", *shapes)
    done = run(*export, "--verify", "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    verified = done.json["verification"]
    assert verified["notes"] == [f"compared with the source in its own {own}"]
    (first, _) = verified["outputs"]
    coarser = "bfloat16" if own == "bfloat16" else "float16"
    assert coarser in first["tolerance"]
    assert own in first["tolerance"]
    assert 0 < first["metrics"]["max_abs"] < first["bound_abs"]


def test_a_type_that_changes_the_source_is_seen(run: Run, tmp_path: Path) -> None:
    """In float16 module and file overflow alike; the source in bfloat16 does not."""
    (tmp_path / "own_types.py").write_text(OWN_TYPES)
    shapes = ("--shapes", "x=f16[rows=1..9,16]")
    export = ("export", "own_types:large", "-o", "m.onnx", "--dtype", "f16", *shapes)
    done = run(*export, "--verify")
    done.assert_error(4, "differs from PyTorch", "NaN or infinities in different places")
    assert (tmp_path / "m.onnx").exists()


def test_a_source_that_is_another_model_each_time(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own_types.py").write_text(OWN_TYPES)
    shapes = ("--shapes", "x=f16[rows=1..9,16]")
    export = ("export", "own_types:each_time", "-o", "m.onnx", "--dtype", "f16", *shapes)
    done = run(*export, "--verify")
    assert (done.code, done.stderr) == (0, "")
    assert "not in its own bfloat16: its weights are not the same each time" in done.text


def test_a_cache_of_any_number_of_arguments_has_names(run: Run) -> None:
    inputs, outputs = ["x", "past.0", "past.1"], ["y", "present.0", "present.1"]
    named = [part for name in inputs for part in ("--input-name", name)]
    named += [part for name in outputs for part in ("--output-name", name)]
    done = run("export", "factories:cached", "-o", "m.onnx", *named)
    assert (done.code, done.stderr) == (0, "")
    graph = onnx.load("m.onnx").graph
    assert [value.name for value in graph.input] == inputs
    assert [value.name for value in graph.output] == outputs
    run("export", "factories:cached", "-o", "n.onnx", *named[2:]).assert_error(
        2, "past.1", "past_0", "3 different names"
    )
    assert not Path("n.onnx").exists()
