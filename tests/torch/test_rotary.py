"""A norm with its rotary embedding as one operator: numbers, gradients, compiler, export."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rmsnorm_export as rx
import rmsnorm_export.torch as rt
from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import DOUBLE, FLOAT, FLOAT16, HALF_TYPES, NormSpec
from rmsnorm_export.torch.dtypes import TORCH_TYPES
from tests.sample import sampled
from tests.torch.norm_cases import DTYPES, Case, array, arrays, orders, tensor

N = 12
LAYOUTS = [
    {"rotary_dim": size, "rotary_interleaved": interleaved}
    for size in (0, 8)
    for interleaved in (False, True)
]
ROTARY = torch.ops.rmsnorm_export.rotary_rms_norm


def _operands(
    spec: NormSpec, dtype: int, table: int, shape: tuple[int, ...]
) -> dict[str, torch.Tensor]:
    """Rows whose squares add up exactly, a scale, and tables of any numbers."""
    case = Case(spec, dtype, dtype, None)
    made = {name: tensor(value) for name, value in arrays(case, (2, 3, N)).items()}
    generator = torch.Generator().manual_seed(1)
    for name in ("cos", "sin"):
        made[name] = torch.randn(shape, generator=generator, dtype=torch.float64).to(
            TORCH_TYPES[table]
        )
    return made


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=type_name)
def test_every_bit_is_that_of_the_exact_reference(dtype: int, layout: dict) -> None:
    width = layout["rotary_dim"] or N
    for order in orders(dtype, "plain"):
        spec = NormSpec(kind="RotaryRMSNorm", **layout, **order)
        if DOUBLE in (dtype, spec.stash_type):  # MKL's square root is an ulp off now and then
            continue
        for table in {dtype, FLOAT if dtype in HALF_TYPES else dtype}:
            for shape in ((width,), (width // 2,), (3, width), (2, 1, width // 2)):
                operands = _operands(spec, dtype, table, shape)
                expected = reference_exact(spec, **{k: array(v) for k, v in operands.items()})
                got = rt.call(spec, **operands)
                assert got.is_contiguous()
                np.testing.assert_array_equal(array(got), expected, err_msg=str((spec, shape)))


def test_it_is_what_transformers_computes() -> None:
    """Qwen3's norm and its embedding, in float32 and in bfloat16."""
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

    for dtype in (torch.float32, torch.bfloat16):
        norm = Qwen3RMSNorm(N, eps=1e-6).to(dtype)
        torch.nn.init.normal_(norm.weight)
        x = torch.randn(2, 5, 3, N).to(dtype)
        cos, sin = (torch.randn(2, 5, N).to(dtype) for _ in range(2))
        expected, _ = apply_rotary_pos_emb(*[norm(x).transpose(1, 2)] * 2, cos, sin)
        got = rt.rotary_rms_norm(x, cos[:, :, None], sin[:, :, None], norm.weight, epsilon=1e-6)
        # The sum of 12 squares in another order is all that differs.
        bound = 16 * 2.0**-24 if dtype == torch.float32 else 2.0**-6
        torch.testing.assert_close(got.transpose(1, 2), expected, rtol=bound, atol=bound)


# The plain ones have every pair of a size, a layout of pairs and tables half as wide or whole.
@sampled(
    "layout, half",
    [(layout, half) for layout in LAYOUTS for half in (False, True)],
    [(LAYOUTS[i], i in (1, 2)) for i in range(4)],
    ids=str,
)
def test_first_and_second_derivatives(layout: dict, half: bool) -> None:
    spec = NormSpec(kind="RotaryRMSNorm", stash_type=DOUBLE, scale_offset=1.0, **layout)
    width = (layout["rotary_dim"] or N) // (1 + half)
    operands = _operands(spec, DOUBLE, DOUBLE, (3, width))
    values = [value.requires_grad_() for value in operands.values()]
    function = lambda *v: rt.call(spec, **dict(zip(operands, v, strict=True)))  # noqa: E731
    assert torch.autograd.gradcheck(function, values)
    assert torch.autograd.gradgradcheck(function, values)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS[1:3], ids=str)
def test_opcheck(trained: bool, layout: dict) -> None:
    spec = NormSpec(kind="RotaryRMSNorm", **layout)
    operands = _operands(spec, FLOAT16, FLOAT, (3, layout["rotary_dim"] or N))
    given = [operands[name].requires_grad_(trained) for name in ("x", "cos", "sin", "scale")]
    attributes = {name: getattr(spec, name) for name in spec.attributes()}
    torch.library.opcheck(ROTARY.default, given, attributes)


class _Heads(torch.nn.Module):
    def __init__(self, **attributes: object) -> None:
        super().__init__()
        self.norm = rt.RMSNorm(N, kind="RotaryRMSNorm", scale_offset=1.0, **attributes)
        torch.nn.init.normal_(self.norm.weight)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return self.norm(x * 2, cos, sin)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_an_export_spells_it_out_in_plain_operators(tmp_path, layout: dict) -> None:
    ort = pytest.importorskip("onnxruntime")
    module = _Heads(**layout).half()
    x = torch.randn(2, 3, N).half()
    cos, sin = torch.randn(2, 3, (layout["rotary_dim"] or N) // 2)
    path = tmp_path / "m.onnx"
    rx.export(module, (x, cos, sin), path)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {i.name: v.numpy() for i, v in zip(session.get_inputs(), (x, cos, sin), strict=True)}
    (got,) = session.run(None, feeds)
    expected = module(x, cos, sin).detach().numpy()
    # One step of the half type in the norm, as large as its largest element.
    np.testing.assert_allclose(got, expected, rtol=2.0**-9, atol=2.0**-9 * np.abs(expected).max())


X = torch.ones(2, 3, N)
T = torch.ones(3, N)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cos": T[0, :4], "sin": T[0, :4]}, "cos does not have a shape that fits"),
        ({"cos": T[:2], "sin": T[:2]}, "cos does not have a shape that fits"),
        ({"cos": T[None, None], "sin": T[None, None]}, "cos does not have a shape that fits"),
        ({"cos": T, "sin": T[:1]}, "one type and one shape"),
        ({"cos": T.double(), "sin": T.double()}, "cos must have the type of x"),
        ({"cos": T.bool(), "sin": T}, "cos must be a float tensor"),
        ({"cos": T, "sin": T.to("meta")}, "another device"),
        ({"cos": T, "sin": T, "rotary_dim": 14}, "rotary_dim does not fit"),
        ({"cos": T, "sin": T, "rotary_dim": 3}, "rotary_dim must be even"),
        ({"cos": T, "sin": T, "group_size": 4}, "no partial_size or group_size"),
        ({"x": X[..., :11], "cos": T[:, :11], "sin": T[:, :11]}, "rotary_dim does not fit"),
    ],
)
def test_operands_that_do_not_fit_are_rejected(arguments: dict, message: str) -> None:
    for function in (rt.rotary_rms_norm, ROTARY):
        with pytest.raises(UsageError, match=message):
            function(**{"x": X, **arguments})
    with pytest.raises(UsageError, match="RotaryRMSNorm needs sin"):
        rt.call(NormSpec(kind="RotaryRMSNorm"), X, cos=T)
    with pytest.raises(UsageError, match="takes no cos"):
        rt.call(NormSpec(), X, cos=T, sin=T)
