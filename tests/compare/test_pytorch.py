"""PyTorch as one of the two models: inputs and outputs are paired, differences found by module."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import rmsnorm_export as rx  # noqa: E402
from rmsnorm_export.compare import eager  # noqa: E402
from rmsnorm_export.compare.flow import Flow  # noqa: E402
from rmsnorm_export.compare.onnx_backend import OnnxRuntime  # noqa: E402
from rmsnorm_export.compare.pytorch import PyTorch, module_results  # noqa: E402
from rmsnorm_export.errors import InputError, UsageError, VerificationError  # noqa: E402
from rmsnorm_export.graph.load import load_model  # noqa: E402
from rmsnorm_export.runtime.inputs import graph_inputs  # noqa: E402
from rmsnorm_export.torch.source.example import Loaded  # noqa: E402

from .broken import set_epsilon, told  # noqa: E402

pytestmark = pytest.mark.export


class Norm(torch.nn.Module):
    """As in transformers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Block(torch.nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm = Norm(n)
        self.up = torch.nn.Linear(n, 2 * n, bias=False)
        self.act = torch.nn.SiLU()
        self.down = torch.nn.Linear(2 * n, n, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Tower(torch.nn.Module):
    """Blocks, a norm at the end, a head."""

    def __init__(self, n: int = 24, blocks: int = 4) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = torch.nn.Embedding(50, n)
        self.blocks = torch.nn.ModuleList(Block(n) for _ in range(blocks))
        self.last = Norm(n)
        self.head = torch.nn.Linear(n, 10, bias=False)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(self.last(x)) * scale, "hidden": x}


ARGS = (torch.randint(0, 50, (2, 5)), torch.ones(10))


@pytest.fixture(scope="module")
def tower() -> Tower:
    return Tower().eval()


@pytest.fixture(scope="module")
def exported(tower: Tower, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tower") / "tower.onnx"
    rx.export(tower, ARGS, path)
    return path


@pytest.fixture(scope="module")
def raw(tower: Tower, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PyTorch's own export, norms spelled out."""
    path = tmp_path_factory.mktemp("raw") / "raw.onnx"
    torch.onnx.export(tower, ARGS, str(path), dynamo=True, verbose=False, external_data=False)
    return path


def test_a_module_and_its_file(tower: Tower, exported: Path) -> None:
    tower.train()
    try:
        for pair in ((tower, exported), (exported, tower)):
            found = rx.verify(*pair)
            assert found.passed, found.reason
            assert {output.name for output in found.outputs} == {"logits", "hidden"}
            assert found.inputs == ("ids int64 [2, 5]", "scale float32 [10]")
            assert set(found.backends) == {"torch", "onnxruntime"}
            assert f"PyTorch {torch.__version__} (CPU)" in found.runtime
        assert tower.training  # left as it was, and run in evaluation mode
    finally:
        tower.eval()


def test_random_ids_stay_in_the_table(tower: Tower, exported: Path) -> None:
    side = PyTorch(Loaded(tower, "tower"))
    declared = graph_inputs(ir.load(exported))
    assert side.limits(declared) == {"ids": 50}
    assert rx.verify(tower, exported, seed=5).source == "random, seed 5"


def test_a_program_and_a_pt2_file(tower: Tower, exported: Path, tmp_path: Path) -> None:
    program = torch.export.export(tower, ARGS)
    saved = tmp_path / "tower.pt2"
    torch.export.save(program, saved)
    for source in (program, saved, str(saved)):
        assert rx.verify(source, exported, trust_source=True).passed
        assert rx.verify(exported, source, trust_source=True).passed
    with pytest.raises(InputError, match="trust"):
        rx.verify(saved, exported)
    both = rx.verify(program, tower)
    assert both.passed
    assert both.source == "the example inputs of the module"
    assert both.outputs[0].name == "logits"
    named = torch.export.export(tower, (), kwargs={"scale": ARGS[1], "ids": ARGS[0]})
    assert rx.verify(exported, named).passed


def test_two_modules_need_inputs(tower: Tower) -> None:
    with pytest.raises(UsageError, match="are not known"):
        rx.verify(tower, tower)
    arrays = {"ids": np.array([[1, 2, 3]]), "scale": np.full(10, 2, np.float32)}
    found = rx.verify(tower, Tower(), inputs=arrays)
    assert found.passed, found.reason
    assert [output.metrics.shape for output in found.outputs] == [(1, 3, 10), (1, 3, 24)]
    assert [output.name for output in found.outputs] == ["logits", "hidden"]


def test_bfloat16_there_and_back() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    array = np.linspace(-3, 3, 7).astype(ml_dtypes.bfloat16)
    found = rx.verify(Twice(), Twice(), inputs={"x": array})
    assert found.passed
    assert found.outputs[0].metrics.dtype == "bfloat16"
    assert np.array_equal(eager.to_array(eager.to_tensor(array)), array)
    with pytest.raises(InputError, match="no input of this type"):
        eager.to_tensor(np.array(["text"], dtype=object))


def test_what_does_not_fit(tower: Tower, exported: Path) -> None:
    class One(torch.nn.Module):
        def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return ids * scale.sum()

    with pytest.raises(VerificationError, match="different numbers of outputs"):
        rx.verify(exported, One())

    class Failing(torch.nn.Module):
        def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(f"no such thing: {ids.ndim} {scale.ndim}")

    with pytest.raises(VerificationError) as caught:
        rx.verify(exported, Failing())
    assert "no such thing" in caught.value.found
    with pytest.raises(UsageError, match="runs no PyTorch model"):
        rx.verify(tower, exported, backend_a="onnxruntime")
    with pytest.raises(UsageError, match="runs no such model"):
        rx.verify(onnx.load(exported), exported, backend_a="torch")


@pytest.mark.parametrize("k", range(5))
def test_a_broken_norm_is_found_by_its_module(tower: Tower, exported: Path, k: int) -> None:
    model = ir.load(exported)
    names = [f"blocks.{i}.norm" for i in range(4)] + ["last"]
    norms = [node for node in model.graph if "RMSNorm" in node.op_type]
    assert [str(node.name).rpartition("/")[0] for node in norms] == names
    set_epsilon(model, str(norms[k].name), 0.3)
    for pair in ((tower, model), (model, tower)):
        found = rx.verify(*pair)
        assert told(found) == (norms[k].name, "at", True)
        first = found.first_difference
        assert first is not None
        assert first.site is not None
        assert first.site.module == names[k]


PLACES = [f"blocks.{i}.{part}" for i in range(4) for part in ("up", "down")]


@pytest.mark.parametrize("path", [*PLACES, "head", "table"])
def test_a_broken_linear_is_found_by_its_module(tower: Tower, exported: Path, path: str) -> None:
    model = ir.load(exported)
    weight = model.graph.initializers[f"{path}.weight"]
    assert weight.const_value is not None
    weight.const_value = ir.tensor(weight.const_value.numpy() * 1.3, name=weight.name)
    first = rx.verify(tower, model).first_difference
    assert first is not None
    assert first.module == path
    assert first.inputs_agree
    assert first.site is None or first.site.place == "before"


@pytest.mark.parametrize("path", ["blocks.2.norm", "blocks.1.up", "blocks.3.act", "last"])
def test_in_a_raw_export_too(tower: Tower, raw: Path, path: str) -> None:
    """Here the module is broken, in PyTorch itself, and the file is right."""
    broken = Tower().eval()
    broken.load_state_dict(tower.state_dict())
    child = broken.get_submodule(path)
    handle = child.register_forward_hook(lambda *call: call[2] * 1.2)
    try:
        found = rx.verify(broken, raw)
    finally:
        handle.remove()
    assert not found.passed
    first = found.first_difference
    assert first is not None
    assert first.module == path
    assert first.inputs_agree


def test_results_of_modules_are_what_hooks_see(tower: Tower, raw: Path, exported: Path) -> None:
    """Every value that is taken for a module's result equals it."""
    feeds = {"ids": np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]), "scale": np.ones(10, np.float32)}
    for path, least in ((raw, 20), (exported, 17)):
        flow = Flow(ir.load(path))
        found = module_results(flow.model, tower)
        assert len(found) >= least, found
        with PyTorch(Loaded(tower, "")).probing(feeds, flow) as read:
            values = read(list(found))
        assert values.keys() == found.keys()
        with OnnxRuntime(load_model(path)).probing(feeds, flow) as read:
            theirs = read(list(found))
        for name, value in values.items():
            assert value.shape == theirs[name].shape, found[name]
            np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=1e-5)
    blocks = {path for path in module_results(ir.load(raw), tower).values() if path.count(".") == 1}
    assert blocks  # modules with children, where no norm took an Add with it
    assert not blocks & set(module_results(ir.load(exported), tower).values())


def test_a_module_that_is_called_twice_is_left_out() -> None:
    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.tanh(self.layer(x)))

    module = Shared()
    feeds = {"x": np.ones((2, 8), np.float32)}
    assert eager.results_of_modules(Loaded(module, ""), feeds, {"v": "layer"}) == {}
    assert not module.layer._forward_hooks


def test_programs_are_not_searched(tower: Tower, exported: Path) -> None:
    model = ir.load(exported)
    norm = next(node for node in model.graph if "RMSNorm" in node.op_type)
    set_epsilon(model, str(norm.name), 0.3)
    found = rx.verify(torch.export.export(tower, ARGS), model)
    assert not found.passed
    first = found.first_difference
    assert first is not None
    assert (first.shared, first.compared) == (0, 0)
    assert "no value that both models have" in first.conclusion
