"""A parity matrix of modules and files, and that its claims fail where the operator is broken."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers", reason="needs the catalogue: pip install transformers")

import torch

from rmsnorm_export.compare.pytorch import to_array, to_tensor
from rmsnorm_export.torch.export.export import convert
from rmsnorm_export.torch.operator import eager
from rmsnorm_export.torch_options import ExportOptions
from tests.tools.parity import claims, modules, onnx_models, truth, variants

VARIANTS = {variant.name: variant for variant in variants.VARIANTS}
SIZES = (1, 111, 4104)
ELEMENTS = 2**12


def failures(cells: list[Any]) -> list[claims.Check]:
    return [check for check in claims.judge(cells) if not check.holds]


def cells_of(name: str, n: int, dtype: str) -> list[Any]:
    return list(modules.cells(VARIANTS[name], n, dtype, elements=ELEMENTS))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_claim_holds(name: str) -> None:
    variant = VARIANTS[name]
    dtypes = [d for d in variant.dtypes if d != "float64" or truth.EXTENDED]
    cells = [c for dtype in dtypes for n in SIZES for c in cells_of(name, n, dtype)]
    assert failures(cells) == []
    checked = collections.Counter(check.claim for check in claims.judge(cells))
    judged = sum(cell.judged is not None for cell in cells)
    assert checked["c accuracy"] == judged >= len(cells) * 0.9
    assert checked["c runtime"] >= 16
    # A type without a kernel says so.
    for cell in cells:
        assert set(cell.errors) | set(cell.absent) >= {"portable", "onnx", "ort", "portable+"}
        assert all(cell.absent.values())


@pytest.mark.parametrize(
    ("name", "dtype"), [("several axes", "float32"), ("skip", "float16"), ("bias", "float64")]
)
def test_the_file_is_that_of_export(name: str, dtype: str) -> None:
    """The matrix builds its files without tracing modules: they are what ``rx.export`` writes."""
    module = modules.make(VARIANTS[name], 111, dtype)
    inputs, _ = modules.operands(VARIANTS[name], 111, dtype, ELEMENTS)
    weights = {key: to_array(value) for key, value in module.named_parameters()}
    built = onnx_models.single(module.spec, inputs, weights).models["portable"]
    tensors = tuple(map(to_tensor, inputs.values()))
    options = ExportOptions(opset=onnx_models.OPSET, dynamic_shapes=({0: "batch"},) * len(tensors))
    exported = convert(module, tensors, options)[0].model
    assert onnx_models.nodes(built) == onnx_models.nodes(exported)
    bodies = [
        [[node.op_type for node in function] for function in model.functions.values()]
        for model in (built, exported)
    ]
    assert bodies[0] == bodies[1]


# The claims can fail: each of these breaks the operator in PyTorch, or what is declared of it.


RMS, GAIN, COUNT = eager._rms, eager._scale_factor, eager._elements
replace = dataclasses.replace
BROKEN = [
    ("_rms", lambda plan, *rest: RMS(replace(plan, epsilon=0.0), *rest), "LLaMA order"),
    ("_scale_factor", lambda plan, *rest: GAIN(replace(plan, offset=0.0), *rest), "unit offset"),
    ("_elements", lambda *operands: COUNT(*operands) + 1, "partial"),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("function", "broken", "name"), BROKEN)
def test_a_broken_operator_fails(
    monkeypatch: pytest.MonkeyPatch, function: str, broken: Any, name: str, dtype: str
) -> None:
    monkeypatch.setattr(eager, function, broken)
    places = [check.where for check in failures(cells_of(name, 111, dtype))]
    assert any("tiny" in where or "unit" in where for where in places)


@pytest.mark.parametrize("change", [{"epsilon": 1e-5}, {"scale_offset": 1.0}, {"group_size": 37}])
def test_a_wrong_declared_spec_fails(monkeypatch: pytest.MonkeyPatch, change: dict) -> None:
    """The file says something else than the module computes: claim b."""
    single = onnx_models.single
    wrong = lambda spec, *operands: single(replace(spec, **change), *operands)  # noqa: E731
    monkeypatch.setattr(onnx_models, "single", wrong)
    failed = failures(cells_of("LLaMA order", 111, "float32"))
    assert {check.claim for check in failed} == {"b class", "c runtime"}


def test_one_ulp_too_much_in_every_root_is_seen_in_the_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def up(*operands: Any) -> Any:
        rms = RMS(*operands)
        return torch.nextafter(rms, torch.full_like(rms, torch.inf))

    monkeypatch.setattr(eager, "_rms", up)
    assert "c mean" in {check.claim for check in failures(cells_of("LLaMA order", 199, "float32"))}
