"""PyTorch as one of the two models: inputs and outputs are paired, differences found by node."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import rmsnorm_export as rx  # noqa: E402
from rmsnorm_export.compare.pytorch import to_array, to_tensor  # noqa: E402
from rmsnorm_export.errors import InputError, UsageError, VerificationError  # noqa: E402
from tests.sample import crossed  # noqa: E402

from .broken import begins_at, set_epsilon  # noqa: E402

pytestmark = pytest.mark.export


class Tower(torch.nn.Module):
    """Norms and products, a norm at the end, a head."""

    def __init__(self, n: int = 24) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.last = torch.nn.Embedding(50, n), torch.nn.RMSNorm(n, eps=1e-6)
        pairs = ((torch.nn.RMSNorm(n, eps=1e-6), torch.nn.Linear(n, n)) for _ in range(4))
        self.blocks = torch.nn.Sequential(*(torch.nn.Sequential(*pair) for pair in pairs))
        self.head = torch.nn.Linear(n, 10, bias=False)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.blocks(self.table(ids))
        return {"logits": self.head(self.last(x)) * scale, "hidden": x}


class Scaled(torch.nn.Module):
    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return ids * scale.sum()


ARGS = (torch.randint(0, 50, (2, 5)), torch.ones(10))
ARRAYS = {"ids": np.array([[1, 2, 3]]), "scale": np.full(10, 2, np.float32)}
NORMS = [*(f"blocks.{i}.0" for i in range(4)), "last"]


@pytest.fixture(scope="module")
def tower() -> Tower:
    return Tower().eval()


@pytest.fixture(scope="module")
def exported(tower: Tower, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tower") / "tower.onnx"
    rx.export(tower, ARGS, path)
    return path


def test_a_module_and_its_file(tower: Tower, exported: Path) -> None:
    for pair in ((tower.train(), exported), (exported, tower)):
        outcome = rx.verify(*pair, seed=5)
        assert outcome.passed, outcome.reason
        assert {output.name for output in outcome.outputs} == {"logits", "hidden"}
        assert outcome.inputs == ("ids int64 [2, 5]", "scale float32 [10]")
        assert set(outcome.backends) == {"torch", "onnxruntime"}
        assert f"PyTorch {torch.__version__} (CPU)" in outcome.runtime
    assert tower.training  # left as it was, and run in evaluation mode
    tower.eval()


def test_a_program_and_a_pt2_file(tower: Tower, exported: Path, tmp_path: Path) -> None:
    program = torch.export.export(tower, ARGS)
    saved = tmp_path / "tower.pt2"
    torch.export.save(program, saved)
    for source in (program, str(saved)):
        assert rx.verify(source, exported, trust_source=True).passed
        assert rx.verify(exported, source, trust_source=True).passed
    with pytest.raises(InputError, match="trust"):
        rx.verify(saved, exported)
    named = torch.export.export(tower, (), kwargs={"scale": ARGS[1], "ids": ARGS[0]})
    assert rx.verify(exported, named).passed


def test_two_modules_need_inputs(tower: Tower) -> None:
    with pytest.raises(UsageError, match="are not known"):
        rx.verify(tower, tower)
    outcome = rx.verify(tower, Tower(), inputs=ARRAYS)
    assert outcome.passed, outcome.reason
    shapes = {output.name: output.metrics.shape for output in outcome.outputs}
    assert shapes == {"logits": (1, 3, 10), "hidden": (1, 3, 24)}


def test_bfloat16_there_and_back() -> None:
    array = np.linspace(-3, 3, 7).astype(ml_dtypes.bfloat16)
    outcome = rx.verify(torch.nn.Identity(), torch.nn.Identity(), inputs={"input": array})
    assert outcome.passed
    assert outcome.outputs[0].metrics.dtype == "bfloat16"
    assert np.array_equal(to_array(to_tensor(array)), array)
    with pytest.raises(InputError, match="no input of this type"):
        to_tensor(np.array(["text"], dtype=object))


def test_what_does_not_fit(exported: Path) -> None:
    with pytest.raises(VerificationError, match="different numbers of outputs"):
        rx.verify(exported, Scaled())
    with pytest.raises(VerificationError, match="cannot run the module on these inputs"):
        rx.verify(exported, torch.nn.Linear(3, 3))


@pytest.mark.parametrize("k", [0, 2, 4])
def test_a_broken_norm_is_found(tower: Tower, exported: Path, k: int) -> None:
    """In a new export of the module, in which it is spelled out."""
    model = ir.load(exported)
    norms = [node for node in model.graph if "RMSNorm" in node.op_type]
    assert [str(node.name).rpartition("/")[0] for node in norms] == NORMS
    set_epsilon(model, str(norms[k].name), 0.3)
    outcome = rx.verify(tower, model)
    assert begins_at(outcome) == (norms[k].name, "at", True)
    assert outcome.first_difference.site.module == NORMS[k]
    assert begins_at(rx.verify(model, tower))[1:] == ("at", True)


@crossed(2, path=["blocks.0.1", "blocks.3.1", "head", "table"], traced=[False, True])
def test_a_broken_layer_is_found_by_its_module(
    tower: Tower, exported: Path, path: str, traced: bool
) -> None:
    model = ir.load(exported)
    (weight,) = (v for v in model.graph.initializers.values() if v.name.startswith(f"{path}.w"))
    weight.const_value = ir.tensor(weight.const_value.numpy() + 0.3, name=weight.name)
    source = torch.export.export(tower, ARGS) if traced else tower
    first = rx.verify(source, model).first_difference
    assert (first.module, first.inputs_agree) == (path, True)
    assert first.site is None or first.site.place == "before"
