"""``rx.export``: one node per norm, named after its module, and what it refuses.

That each is rounded as in PyTorch, test_parity_rounding.py holds. Small modules, and tiny
configurations of ``transformers`` in half precision, the targets and opsets in turn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rmsnorm_export.api import export
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.runtime.session import load_session, open_session, run_session
from rmsnorm_export.torch.export.convert import STAGES
from tests.op.torch_arrays import to_numpy
from tests.sample import crossed, sampled
from toolbox.corpus.architectures import count_norms
from toolbox.corpus.architectures import make as make_architecture

pytestmark = pytest.mark.export

N = 64


class Model(nn.Module):
    """An embedding, two pre-norm layers, a norm and a head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, N)
        self.layers = nn.ModuleList(
            nn.Sequential(LlamaRMSNorm(N), nn.Linear(N, N)) for _ in range(2)
        )
        self.norm = nn.RMSNorm(N, eps=1e-6)
        self.head = nn.Linear(N, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return {"logits": self.head(self.norm(x)), "hidden": x}


def make(dtype: torch.dtype) -> Model:
    torch.manual_seed(0)
    model = Model()
    for norm in (model.layers[0][0], model.norm):
        nn.init.normal_(norm.weight)
    return model.to(dtype)


def ids(rows: int = 2, columns: int = 5) -> Tensor:
    return torch.arange(rows * columns).reshape(rows, columns) * 7 % 50


DYNAMIC = {"ids": {0: "batch", 1: "sequence"}}
PATHS = ["layers.0.0", "layers.1.0", "norm"]
OPS = ["RMSNorm", "SkipRMSNorm", "SkipRMSNorm"]


def run(path: Path, *, optimize: bool = True, **feeds):
    session = open_session(str(path), optimize=optimize)
    return run_session(session, {name: to_numpy(tensor) for name, tensor in feeds.items()})


def assert_within(value, expected, bound: float) -> None:
    """``bound`` is relative to the largest of what is expected."""
    expected = to_numpy(expected.detach()).astype(np.float64)
    assert np.abs(value.astype(np.float64) - expected).max() <= bound * np.abs(expected).max()


@crossed(2, opset=[18, 23], dtype=[torch.float32, torch.float16])
def test_every_norm_is_one_node_with_its_module_path(tmp_path, dtype, opset):
    model = make(dtype)
    result = export(
        model, (ids(),), tmp_path / "m.onnx", opset=opset, dynamic_shapes=DYNAMIC, prove=True
    )
    fused = result.report.fused
    assert [site.module for site in fused] == PATHS
    assert [site.name.rpartition("/")[0] for site in fused] == PATHS
    assert [site.op.split("_")[0] for site in fused] == OPS
    assert not result.report.refused
    assert all(site.proof is not None and site.proof.passed for site in fused)
    assert result.report.opset_after == opset
    initializers = result.model.graph.initializers
    assert {f"{path}.weight" for path in PATHS} <= set(initializers)
    assert len({"embed.weight", "head.weight"} & set(initializers)) == 1, "tied: stored once"
    assert b".py" not in (tmp_path / "m.onnx").read_bytes(), "no files of this machine"
    types = {torch.float32: "FLOAT", torch.float16: "FLOAT16"}
    assert {value.dtype.name for value in initializers.values()} == {types[dtype]}
    other = ids(3, 7)
    outputs, expected = run(tmp_path / "m.onnx", ids=other), model(other)
    assert list(outputs) == list(expected) == ["logits", "hidden"]
    for name, tensor in expected.items():
        # Two blocks: some ten roundings of the type on the way, f16 sums in another order.
        assert_within(outputs[name], tensor, {torch.float32: 1e-5, torch.float16: 5e-3}[dtype])


class Tiny(torch.nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-12)


def test_epsilons_survive(tmp_path):
    """PyTorch's optimizer takes every addend up to 1e-8 for a zero; float64 has its own default."""
    (site,) = export(Tiny(), (torch.ones(2, 8),), tmp_path / "t.onnx").report.fused
    assert site.epsilon == pytest.approx(1e-12)
    assert (run(tmp_path / "t.onnx", x=torch.zeros(2, 8))["output"] == 0).all()
    norm = torch.nn.RMSNorm(8, dtype=torch.float64)
    x = torch.full((2, 8), 1e-8, dtype=torch.float64)
    result = export(norm, (x,), tmp_path / "d.onnx", opset=23)
    assert [site.dtype for site in result.report.fused] == ["float64"]
    # ONNX Runtime 1.31's own fusion takes 1e-5 for an epsilon in float64.
    output = run(tmp_path / "d.onnx", optimize=False, x=x)["output"]
    np.testing.assert_allclose(output, norm(x).detach().numpy(), rtol=1e-12)


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, N))

    def forward(self, x, r):
        ops = torch.ops.rmsnorm_export
        y, total = ops.skip_rms_norm(x, r, scale=self.weight, scale_offset=1.0, epsilon=1e-6)
        z = ops.gated_rms_norm(total, torch.tanh(y), self.weight, activation="sigmoid")
        half = ops.rms_norm(z, None, self.weight, partial_size=4, epsilon_outside=True)
        groups = ops.rms_norm(torch.tanh(half), self.weight, group_size=16)
        return torch.nn.functional.rms_norm(groups.exp(), [N], self.weight)


def test_own_operators_are_translated(tmp_path):
    own, (x, r) = Own(), torch.randn(2, 3, N)
    fused = export(own, (x, r), tmp_path / "o.onnx", opset=18, prove=True).report.fused
    kinds = ["SkipRMSNorm", "GatedRMSNorm", "RMSNorm", "RMSNorm", "RMSNorm"]
    assert [site.op.split("_")[0] for site in fused] == kinds
    assert all(site.proof.passed for site in fused)
    outputs = run(tmp_path / "o.onnx", x=x, r=r)
    np.testing.assert_allclose(outputs["output"], own(x, r).detach(), rtol=1e-5, atol=1e-6)


def test_an_exported_program_with_names(tmp_path):
    model = make(torch.float32).eval()
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(model, (ids(),), dynamic_shapes={"ids": {0: batch}})
    names = {"input_names": ["tokens"], "output_names": ["y", "z"]}
    result = export(program, (), tmp_path / "p.onnx", **names)
    assert [site.module for site in result.report.fused] == PATHS
    graph = onnx.load(result.path).graph
    values = [*graph.input, *graph.output]
    assert [value.name for value in values] == ["tokens", "y", "z"]


def test_progress_is_told_nothing_is_printed_and_the_module_is_left_as_it_was(tmp_path, capfd):
    steps, model = [], make(torch.float32).train()
    model.layers[0].eval()
    before = [(name, module.training) for name, module in model.named_modules()]
    result = export(model, (ids(),), tmp_path / "n.onnx", progress=lambda *step: steps.append(step))
    assert steps == [(stage, i, len(STAGES)) for i, stage in enumerate(STAGES)]
    assert capfd.readouterr() == ("", "")
    assert "torch.export.export" in result.log
    assert [(name, module.training) for name, module in model.named_modules()] == before
    assert all(parameter.requires_grad for parameter in model.parameters())


# What cannot be exported: which error, what it names, and that nothing is left behind.


class Branch(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


class Fixing(torch.nn.Module):
    def forward(self, x):
        return x[:, :2] + 1 if x.shape[1] == 4 else x


X = torch.ones(2, 4)
HALF = torch.nn.Linear(4, 4).half()
META = torch.nn.Linear(4, 4, device="meta")
NAMED, DIMS = ({"x": {0: "b", 1: "s"}}, ({0: torch.export.Dim("b"), 1: torch.export.Dim("s")},))
REFUSED = {
    "branch": (Branch(), {}, InputError, ["Branch", "torch.where"]),
    "types": (torch.nn.Sequential(HALF), {}, InputError, ["'0'", "float and float16"]),
    "missing": (Branch(), {"args": ()}, InputError, ["argument: 'x'"]),
    "fixed": (Fixing(), {"dynamic_shapes": NAMED}, UsageError, ["'x'", "[1]", "4"]),
    "fixed unsaid": (Fixing(), {"dynamic_shapes": DIMS}, UsageError, ["'x', axis 1", "4"]),
    "name": (Fixing(), {"dynamic_shapes": {"z": {0: "b"}}}, UsageError, ["['z']"]),
    "no axis": (Tiny(), {"dynamic_shapes": {"x": {2: "b"}}}, UsageError, ["axis 2 of input 0"]),
    "opset 17": (HALF, {"opset": 17}, UsageError, ["17", "18"]),
    "no weights": (META, {}, UsageError, ["weight is on the meta device"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exported_is_told(tmp_path: Path, case: str) -> None:
    module, options, kind, words = REFUSED[case]
    with pytest.raises(kind) as caught:
        export(module, **{"args": (X,), "path": tmp_path / "m.onnx"} | options)
    assert type(caught.value) is kind
    assert [word for word in words if word not in str(caught.value)] == []
    assert caught.value.found
    assert caught.value.fix
    assert list(tmp_path.iterdir()) == []


# Whole architectures. The diffusion transformer is an example of a pipeline (tests/deploy).

NAMES = ("mamba2", "t5_encoder", "llama", "aimv2_vision", "gemma3", "gpt_oss")
FORMS = ((18, "portable"), (23, "onnx"), (18, "ort"), (23, "portable"), (23, "ort"))
CASES = [
    *((name, "float16", *FORMS[i % len(FORMS)]) for i, name in enumerate(NAMES)),
    ("llama", "float32", 23, "portable"),
    ("llama", "bfloat16", 18, "portable"),
]
# An encoder, and one of images; tests/test_bench.py exports a decoder.
SAMPLE = {c for c in CASES if c[0] in ("t5_encoder", "aimv2_vision")}
# Symbolic in the batch alone: a second symbolic axis doubles what an export takes.
ONE_AXIS = ("mamba2", "aimv2_vision")


@pytest.mark.slow
@sampled("name, dtype, opset, target", CASES, SAMPLE)
def test_every_norm_of_an_architecture_is_one_node(tmp_path, name, dtype, opset, target):
    model, examples = make_architecture(name, dtype)
    inputs = tuple(examples.values())
    norms = sum(count_norms(model, *inputs).values())
    with torch.no_grad():
        expected = model(*inputs)
    axes = dict.fromkeys(range(1 if name in ONE_AXIS else 2), torch.export.Dim.DYNAMIC)
    result = export(
        model, inputs, tmp_path / "m.onnx", opset=opset, target=target, dynamic_shapes=(axes,)
    )
    sites = [*result.report.fused, *result.report.kept]
    assert result.report.unfused == ()
    assert len(sites) == norms > 0
    assert {site.module for site in sites} <= {path for path, _ in model.named_modules()}
    assert result.report.opset_after == opset
    if dtype != "bfloat16":  # ONNX Runtime's CPU provider has few kernels for it
        session = load_session(str(tmp_path / "m.onnx"), optimize=True)
        feed = {a.name: x.numpy() for a, x in zip(session.get_inputs(), inputs, strict=True)}
        (output,) = run_session(session, feed).values()
        # As tests/test_architectures.py.
        assert_within(output, expected, {"float32": 1e-4, "float16": 1e-2}[dtype])
