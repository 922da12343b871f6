"""``rx.export`` on small modules: one node per norm, named after its module, rounded as PyTorch."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")

import torch

from rmsnorm_export.graph import place
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import BFLOAT16, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.runtime.session import open_session, run_session
from rmsnorm_export.torch.export.export import STAGES, ExportResult, export
from tests.sample import crossed
from tests.torch.export_modules import KINDS, Llama, Model, N, ids, make

pytestmark = pytest.mark.export

DYNAMIC = {"ids": {0: "batch", 1: "sequence"}}
PATHS = ["layers.0.input_layernorm", "layers.1.input_layernorm", "norm"]
ORDERS = {
    "llama": {},
    "gemma": {"scale_before_cast": True, "scale_offset": 1.0},
    "t5": {},
    "builtin": {"scale_before_cast": True},
}


def array(tensor):
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(numpy_dtype(BFLOAT16))
    return tensor.numpy()


def run(path: Path, *, optimize: bool = True, **feeds):
    session = open_session(str(path), optimize=optimize)
    return run_session(session, {name: array(tensor) for name, tensor in feeds.items()})


def declared(result: ExportResult, dtype: int) -> NormSpec:
    """The one norm of a file as its node declares it."""
    (site,) = (*result.report.fused, *result.report.kept)
    (node,) = (n for n in result.model.graph if n.name == site.name)
    a = node.attributes
    spec = NormSpec(
        epsilon=a.get_float("epsilon", 0),
        stash_type=a.get_int("stash_type", 0),
        scale_before_cast=bool(a.get_int("scale_before_cast", 0)),
        scale_offset=a.get_float("scale_offset", 0),
        round_rstd=bool(a.get_int("round_rstd", 0)),
    )
    return spec.canonical(dtype)


@crossed(3, opset=[18, 23], dtype=[torch.float32, torch.float16], kind=[*KINDS])
def test_every_norm_is_one_node_with_its_module_path(tmp_path, kind, dtype, opset):
    model = make(Model, dtype, KINDS[kind])
    result = export(
        model, (ids(),), tmp_path / "m.onnx", opset=opset, dynamic_shapes=DYNAMIC, prove=True
    )
    assert [site.module for site in result.report.fused] == PATHS
    assert [site.name.rpartition("/")[0] for site in result.report.fused] == PATHS
    assert not result.report.refused
    assert all(site.proof is not None and site.proof.passed for site in result.report.fused)
    assert [site.op.split("_")[0] for site in result.report.fused] == [
        "RMSNorm",
        "SkipRMSNorm",
        "SkipRMSNorm",
    ]
    assert result.report.opset_after == opset
    other = ids(3, 7, seed=1)
    found = run(tmp_path / "m.onnx", ids=other)
    expected = model(other)
    assert list(found) == list(expected) == ["logits", "hidden"]
    # Two blocks: some ten roundings of the type on the way, f16 sums in another order.
    bound = {torch.float32: 1e-5, torch.float16: 5e-3}[dtype]
    for name, tensor in expected.items():
        want = array(tensor).astype(np.float64)
        assert np.abs(found[name] - want).max() <= bound * np.abs(want).max()


@crossed(3, opset=[18, 23], dtype=[FLOAT16, BFLOAT16, FLOAT], kind=[*KINDS])
def test_the_declared_rounding_order_is_pytorchs(tmp_path, kind, dtype, opset):
    """The rounding-exact reference of the exported node against PyTorch, element by element."""
    of = {FLOAT: torch.float32, FLOAT16: torch.float16, BFLOAT16: torch.bfloat16}[dtype]
    norm = make(KINDS[kind], of)
    x = torch.randn((64, N), generator=torch.Generator().manual_seed(1)).to(of)
    result = export(norm, (x,), tmp_path / "n.onnx", opset=opset)
    spec = declared(result, dtype)
    wanted = NormSpec(epsilon=spec.epsilon, **ORDERS[kind]).canonical(dtype)
    assert (spec.scale_before_cast, spec.round_rstd) == (wanted.scale_before_cast, False)
    scale = array(norm.weight)
    if ORDERS[kind].get("scale_offset") and not spec.scale_offset:
        scale = (1 + scale.astype(np.float32)).astype(scale.dtype if dtype == FLOAT else np.float32)
    got = reference_exact(spec, array(x), scale).astype(np.float64)
    expected = array(norm(x)).astype(np.float64)
    other = NormSpec(epsilon=spec.epsilon, scale_before_cast=not spec.scale_before_cast)
    if dtype == FLOAT:
        np.testing.assert_allclose(got, expected, rtol=(N / 2 + 8) * 2.0**-24)
        return
    # PyTorch sums the squares in float32 in another order: now and then a value close to the
    # middle of two numbers is rounded to the other. The wrong order differs in a quarter.
    assert (got != expected).mean() <= 0.01
    wrong = reference_exact(other, array(x), scale).astype(np.float64)
    assert (wrong != expected).mean() > 0.05


def test_weights_keep_their_names_and_tied_ones_are_stored_once(tmp_path):
    result = export(make(Model, torch.float16), (ids(),), tmp_path / "m.onnx")
    names = set(result.model.graph.initializers)
    assert {f"{path}.weight" for path in PATHS} <= names
    assert len(names & {"embed.weight", "head.weight"}) == 1
    types = {value.dtype.name for value in result.model.graph.initializers.values()}
    assert types == {"FLOAT16"}


def test_a_tiny_epsilon_survives(tmp_path):
    """PyTorch's optimizer takes every addend up to 1e-8 for a zero."""

    class Tiny(torch.nn.Module):
        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-12)

    result = export(Tiny(), (torch.ones(2, 8),), tmp_path / "t.onnx")
    (site,) = result.report.fused
    assert site.epsilon == pytest.approx(1e-12)
    assert (run(tmp_path / "t.onnx", x=torch.zeros(2, 8))["output"] == 0).all()


def test_float64_has_its_own_default_epsilon(tmp_path):
    norm = torch.nn.RMSNorm(8, dtype=torch.float64)
    x = torch.full((2, 8), 1e-8, dtype=torch.float64)
    result = export(norm, (x,), tmp_path / "d.onnx", opset=23)
    assert [site.dtype for site in result.report.fused] == ["float64"]
    # ONNX Runtime 1.31's own fusion takes 1e-5 for an epsilon in float64.
    found = run(tmp_path / "d.onnx", optimize=False, x=x)["output"]
    np.testing.assert_allclose(found, array(norm(x)), rtol=1e-12)


def test_own_operators_are_translated(tmp_path):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, N))

        def forward(self, x, r):
            ops = torch.ops.rmsnorm_export
            y, total = ops.skip_rms_norm(x, r, self.weight, scale_offset=1.0, epsilon=1e-6)
            z = ops.gated_rms_norm(total, torch.tanh(y), self.weight, activation="sigmoid")
            half = ops.rms_norm(z, None, self.weight, partial_size=4, epsilon_outside=True)
            groups = ops.rms_norm(torch.tanh(half), self.weight, group_size=16)
            fused, rstd = torch.ops.aten._fused_rms_norm(groups.exp(), [N], self.weight, None)
            return fused, rstd

    own = Own()
    x, r = torch.randn(3, N), torch.randn(3, N)
    result = export(own, (x, r), tmp_path / "o.onnx", opset=18, prove=True)
    assert [site.op.split("_")[0] for site in result.report.fused] == [
        "SkipRMSNorm",
        "GatedRMSNorm",
        "RMSNorm",
        "RMSNorm",
        "RMSNorm",
    ]
    assert all(site.proof.passed for site in result.report.fused)
    found = run(tmp_path / "o.onnx", x=x, r=r)
    for name, tensor in zip(["output", "output_1"], own(x, r), strict=True):
        np.testing.assert_allclose(found[name], array(tensor), rtol=1e-5, atol=1e-6)


def test_an_exported_program(tmp_path):
    model = make(Model, torch.float32).eval()
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(model, (ids(),), dynamic_shapes={"ids": {0: batch}})
    result = export(program, (), tmp_path / "p.onnx")
    assert [site.module for site in result.report.fused] == PATHS


def test_the_module_is_left_as_it_was(tmp_path):
    model = make(Model, torch.float32).train()
    model.layers[0].eval()
    before = [(name, module.training) for name, module in model.named_modules()]
    export(model, (ids(),), tmp_path / "m.onnx")
    assert [(name, module.training) for name, module in model.named_modules()] == before
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_names_are_given_and_make_others_step_aside(tmp_path):
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.output = torch.nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x + self.output

    result = export(Named(), (torch.ones(2, 4),), tmp_path / "a.onnx", input_names=["tokens"])
    graph = onnx.load(result.path).graph
    assert [v.name for v in graph.input] == ["tokens"]
    assert [v.name for v in graph.output] == ["output"]
    assert [v.name for v in graph.initializer] == ["output_1"]
    np.testing.assert_array_equal(run(result.path, tokens=torch.ones(2, 4))["output"], 2)


def test_progress_is_told_and_nothing_is_printed(tmp_path, capfd):
    told = []

    def listen(what, done, total):
        told.append((what, done, total))
        print("heard", what)

    result = export(make(Llama, torch.float32), (torch.ones(2, N),), tmp_path / "n.onnx",
                    progress=listen)  # fmt: skip
    assert told == [(stage, i, len(STAGES)) for i, stage in enumerate(STAGES)]
    out, err = capfd.readouterr()
    assert out.splitlines() == [f"heard {stage}" for stage in STAGES]
    assert err == ""
    assert "torch.export.export" in result.log


@pytest.mark.parametrize("apart", [False, True], ids=["one file", "data file"])
def test_weights_on_the_meta_device_are_made_when_they_are_written(tmp_path, monkeypatch, apart):
    if apart:
        monkeypatch.setattr(place, "MAX_EMBEDDED_BYTES", 4000)
    with torch.device("meta"):
        absent = Model()
    model = make(Model, torch.float32)
    values = model.state_dict()
    asked = []
    given = []

    def state(name):
        assert [one for one in given if one() is not None] == [], "one weight at a time"
        asked.append(name)
        value = values[name].clone()
        given.append(weakref.ref(value))
        return value

    result = export(absent, (ids(),), tmp_path / "m.onnx", state=state)
    assert len(result.saved.data_files) == apart
    assert sorted(asked) == sorted(set(asked)), "each weight once"
    assert all(parameter.device.type == "meta" for parameter in absent.parameters())
    np.testing.assert_allclose(
        run(tmp_path / "m.onnx", ids=ids())["logits"],
        array(model(ids())["logits"]),
        rtol=1e-4,
        atol=1e-5,
    )
