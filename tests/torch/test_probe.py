"""Probing: every variant and every look-alike is told apart by what it computes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.spec import BFLOAT16, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.torch.operator.module import RMSNorm
from rmsnorm_export.torch.probe.fit import Fit, NotANorm
from rmsnorm_export.torch.probe.probe import probe_module

N = 48
HALF = {torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}


class Norm(nn.Module):
    """A module from a function of itself and its inputs; parameters by name."""

    def __init__(self, function: Callable[..., Any], **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.ones(shape)))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


class TwoInputs(Norm):
    def forward(self, x: Tensor, other: Tensor) -> Any:
        return self.function(self, x, other)


def unit(x: Tensor, eps: float = 1e-6, dim: Any = -1) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim, keepdim=True) + eps)


def in_float(x: Tensor, eps: float = 1e-6) -> Tensor:
    return unit(x.float(), eps)


def in_channels(x: Tensor) -> Tensor:
    return unit(x.float(), dim=1)


def in_groups(x: Tensor, size: int) -> Tensor:
    return unit(x.unflatten(-1, (-1, size))).flatten(-2)


VARIANTS: dict[str, tuple[nn.Module, NormSpec]] = {
    "round, then scale": (
        Norm(lambda m, x: in_float(x).to(x.dtype) * m.gain, gain=(N,)),
        NormSpec(epsilon=1e-6),
    ),
    "scale, then round": (
        Norm(lambda m, x: (in_float(x) * m.gain.float()).to(x.dtype), gain=(N,)),
        NormSpec(epsilon=1e-6, scale_before_cast=True),
    ),
    "gain of three dimensions": (
        Norm(lambda m, x: in_float(x).to(x.dtype) * m.gain, gain=(1, 1, N)),
        NormSpec(epsilon=1e-6),
    ),
    "unit offset": (
        Norm(lambda m, x: (in_float(x) * (1 + m.gain.float())).to(x.dtype), gain=(N,)),
        NormSpec(epsilon=1e-6, scale_offset=1.0, scale_before_cast=True),
    ),
    "odd offset": (
        Norm(lambda m, x: (in_float(x) * (m.gain.float() - 0.3)).to(x.dtype), gain=(N,)),
        NormSpec(epsilon=1e-6, scale_offset=-0.3, scale_before_cast=True),
    ),
    "bias": (
        Norm(lambda m, x: in_float(x).to(x.dtype) * m.gain + m.shift, shift=(N,), gain=(N,)),
        NormSpec(epsilon=1e-6),
    ),
    "bias alone": (
        Norm(lambda m, x: (in_float(x) + m.shift.float()).to(x.dtype), shift=(N,)),
        NormSpec(epsilon=1e-6, scale_before_cast=True),
    ),
    "epsilon outside": (
        Norm(
            lambda m, x: (
                (x.float() / (x.float().square().mean(-1, keepdim=True).sqrt() + 1e-3)).to(x.dtype)
                * m.gain
            ),
            gain=(N,),
        ),
        NormSpec(epsilon=1e-3, epsilon_outside=True),
    ),
    "normalize": (
        Norm(
            lambda m, x: (
                (nn.functional.normalize(x.float(), dim=-1, eps=1e-3 * N**0.5) * N**0.5).to(x.dtype)
                * m.gain
            ),
            gain=(N,),
        ),
        NormSpec(epsilon=1e-3, epsilon_clamp=True),
    ),
    "clamped mean square": (
        Norm(
            lambda m, x: (
                (x.float() * x.float().square().mean(-1, True).clamp_min(1e-6).rsqrt()).to(x.dtype)
                * m.gain
            ),
            gain=(N,),
        ),
        NormSpec(epsilon=1e-3, epsilon_clamp=True),
    ),
    "the paper": (
        Norm(lambda m, x: in_float(x, 0.0).to(x.dtype) * m.gain, gain=(N,)),
        NormSpec(epsilon=0.0),
    ),
    "L2 norm times sqrt(n)": (
        Norm(
            lambda m, x: (
                (x.float() / x.float().norm(dim=-1, keepdim=True) * math.sqrt(N)).to(x.dtype)
                * m.gain
            ),
            gain=(N,),
        ),
        NormSpec(epsilon=0.0),
    ),
    "channels first": (
        Norm(lambda m, x: in_channels(x).to(x.dtype) * m.a[:, None, None], a=(N,)),
        NormSpec(epsilon=1e-6, axis=-3, last_axis=-3),
    ),
    "channels first, a gain of three dimensions": (
        Norm(lambda m, x: in_channels(x).to(x.dtype) * m.a, a=(N, 1, 1)),
        NormSpec(epsilon=1e-6, axis=-3, last_axis=-3),
    ),
    "channels of a volume": (
        Norm(lambda m, x: in_channels(x).to(x.dtype) * m.a, a=(N, 1, 1, 1)),
        NormSpec(epsilon=1e-6, axis=-4, last_axis=-4),
    ),
    "large epsilon": (
        Norm(lambda m, x: in_float(x, 3.0).to(x.dtype) * m.gain, gain=(N,)),
        NormSpec(epsilon=3.0),
    ),
    "weightless": (Norm(lambda _, x: in_float(x).to(x.dtype)), NormSpec(epsilon=1e-6)),
    "rounded reciprocal": (
        Norm(
            lambda _, x: (
                x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype)
            )
        ),
        NormSpec(epsilon=1e-6, round_rstd=True),
    ),
    "partial": (
        Norm(
            lambda m, x: (
                (
                    x.float()
                    * torch.rsqrt(x.float()[..., :5].square().mean(-1, keepdim=True) + 1e-6)
                ).to(x.dtype)
                * m.gain
            ),
            gain=(N,),
        ),
        NormSpec(epsilon=1e-6, partial_size=5),
    ),
    "groups": (
        Norm(lambda m, x: in_groups(x.float(), 12).to(x.dtype) * m.gain, gain=(N,)),
        NormSpec(epsilon=1e-6, group_size=12),
    ),
    "weightless groups": (
        Norm(lambda _, x: in_groups(x.float(), 12).to(x.dtype)),
        NormSpec(epsilon=1e-6, group_size=12),
    ),
    "two axes": (
        Norm(lambda m, x: unit(x.float(), dim=(-2, -1)).to(x.dtype) * m.gain, gain=(6, 8)),
        NormSpec(epsilon=1e-6, axis=-2),
    ),
    "residual": (
        TwoInputs(
            lambda m, x, r: (in_float(x + r).to(x.dtype) * m.gain, x + r),
            gain=(N,),
        ),
        NormSpec(kind="SkipRMSNorm", epsilon=1e-6),
    ),
    "gate after": (
        TwoInputs(
            lambda m, x, z: (
                (in_float(x).to(x.dtype) * m.gain).float() * nn.functional.silu(z.float())
            ).to(x.dtype),
            gain=(N,),
        ),
        NormSpec(kind="GatedRMSNorm", epsilon=1e-6),
    ),
    "gate before": (
        TwoInputs(
            lambda m, x, z: unit(x.float() * z.float().sigmoid()).to(x.dtype) * m.gain, gain=(N,)
        ),
        NormSpec(kind="GatedRMSNorm", epsilon=1e-6, activation="sigmoid", gate_first=True),
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_fitted_exactly(name: str) -> None:
    """The spec that was meant, and half-type numbers that differ in a few single steps at most."""
    module, spec = VARIANTS[name]
    fit = probe_module(module)
    assert isinstance(fit, Fit), fit
    (form,) = fit.forms
    stored = None if name in ("weightless", "weightless groups", "rounded reciprocal") else True
    for dtype in HALF:
        found = form.rounding(dtype, dtype if stored else None)
        assert found is not None, form.refused
        assert found.spec == spec
        assert found.different <= found.elements / 1000
    single = form.rounding(torch.float32, torch.float32 if stored else None)
    assert single is not None
    assert single.ulps <= 8


def test_everything_in_the_half_type() -> None:
    """x / sqrt(mean + eps) * g, each step rounded: bitwise in every type."""
    module = Norm(
        lambda m, x: x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * m.g, g=(N,)
    )
    fit = probe_module(module)
    assert isinstance(fit, Fit), fit
    for dtype, element_type in {**HALF, torch.float32: FLOAT}.items():
        found = fit.forms[0].rounding(dtype, dtype)
        assert found is not None
        assert found.spec.stash_type == element_type
        assert found.ulps <= 4
        assert found.different == 0 or dtype == torch.float32


def test_the_gain_is_found_by_its_response() -> None:
    """Names that lie: the bias is called weight, the gain is a buffer called bias."""
    module = Norm(lambda m, x: unit(x) * m.bias + m.weight, weight=(N,))
    module.register_buffer("bias", torch.ones(N))
    fit = probe_module(module)
    assert isinstance(fit, Fit), fit
    assert (fit.forms[0].formula.scale, fit.forms[0].formula.bias) == ("bias", "weight")


def test_a_tensor_without_effect_is_ignored() -> None:
    fit = probe_module(Norm(lambda _, x: unit(x), weight=(N,)))
    assert isinstance(fit, Fit), fit
    assert fit.forms[0].formula.scale is None


def test_epsilon_may_follow_the_type() -> None:
    """torch.nn.RMSNorm without eps takes the machine epsilon of the type it computes in."""
    fit = probe_module(nn.RMSNorm(N))
    assert isinstance(fit, Fit), fit
    epsilons = {r.dtype: r.spec.epsilon for r in fit.forms[0].roundings if r.dtype == r.stored}
    assert epsilons == {
        torch.float64: torch.finfo(torch.float64).eps,
        **dict.fromkeys((torch.float32, *HALF), torch.finfo(torch.float32).eps),
    }


def test_types_without_an_operator_are_named() -> None:
    """A float32 gain promotes the product of half rows: no operator returns that."""
    module, _ = VARIANTS["round, then scale"]
    fit = probe_module(module)
    assert isinstance(fit, Fit)
    refused = {(x, w): why for x, w, why in fit.forms[0].refused}
    assert refused == {
        (dtype, torch.float32): f"its result is float32, its rows {str(dtype)[6:]}"
        for dtype in HALF
    }
    module, _ = VARIANTS["scale, then round"]
    fit = probe_module(module)
    assert isinstance(fit, Fit)
    mixed = fit.forms[0].rounding(torch.bfloat16, torch.float32)
    assert mixed is not None
    assert mixed.spec.scale_before_cast


class Counting(Norm):
    def forward(self, x: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return unit(x) * self.gain


class Averaging(Norm):
    def forward(self, x: Tensor) -> Tensor:
        self.seen.mul_(0.9)
        return unit(x) * self.gain


def averaging() -> nn.Module:
    module = Averaging(unit, gain=(N,))
    module.register_buffer("seen", torch.ones(N))
    return module


def overridden() -> nn.Module:
    module = Norm(lambda m, x: unit(x) * m.gain, gain=(N,))
    module.forward = lambda x: x  # type: ignore[method-assign]
    return module


def parametrized() -> nn.Module:
    module = Norm(lambda m, x: unit(x) * m.gain, gain=(N,))
    return nn.utils.parametrize.register_parametrization(module, "gain", nn.Identity())


LOOK_ALIKES: dict[str, tuple[nn.Module, str]] = {
    "LayerNorm": (nn.LayerNorm(N), "centred"),
    "GroupNorm": (nn.GroupNorm(3, N), "centred"),
    "InstanceNorm": (nn.InstanceNorm1d(N), "centred"),
    "BatchNorm": (nn.BatchNorm1d(N), "holds 5 tensors"),
    "Dropout": (nn.Dropout(0.5), "random"),
    "Identity": (nn.Identity(), "elementwise"),
    "ReLU": (nn.ReLU(), "elementwise"),
    "PReLU": (nn.PReLU(), "one element"),
    "Softmax": (nn.Softmax(-1), "neither scale invariant nor affine"),
    "Linear": (nn.Linear(N, N), "a matrix of 48 x 48"),
    "Embedding": (nn.Embedding(7, N), "raises RuntimeError"),
    "Conv1d": (nn.Conv1d(N, N, 3), "no scale of a row"),
    "Sequential of norms": (nn.Sequential(nn.Sequential(nn.RMSNorm(N))), "no leaf"),
    "our own": (RMSNorm(N), "runs the operator already"),
    "affine": (Norm(lambda m, x: x * m.a + m.b, a=(N,), b=(N,)), "elementwise"),
    "cumulative sum": (Norm(lambda m, x: x.cumsum(-1) * m.a, a=(N,)), "affine"),
    "clamped from above": (
        Norm(lambda m, x: x / x.square().mean(-1, True).sqrt().clamp(1e-3, 1e3) * m.a, a=(N,)),
        "affine",
    ),
    "L2": (Norm(lambda m, x: nn.functional.normalize(x, dim=-1) * m.a, a=(N,)), "its scale is no"),
    "n - 1": (
        Norm(lambda m, x: unit(x) * ((N - 1) / N) ** 0.5 * m.a, a=(N,)),
        "its scale is no parameter plus a constant",
    ),
    "constant gain": (Norm(lambda _, x: 2 * unit(x)), "constant 2"),
    "squared gain": (Norm(lambda m, x: unit(x) * m.a.square(), a=(N,)), "its scale is no"),
    "one gain": (Norm(lambda m, x: unit(x) * m.a, a=(1,)), "uses 'a', a tensor of one element"),
    "learned epsilon": (
        Norm(lambda m, x: unit(x, m.e) * m.a, a=(N,), e=()),
        "uses 'e', a tensor of one element",
    ),
    "two epsilons": (
        Norm(lambda m, x: x / ((x.square().mean(-1, True) + 0.1).sqrt() + 0.1) * m.a, a=(N,)),
        "two epsilons, or the like",
    ),
    "mean of magnitudes": (
        Norm(lambda m, x: x / (x.abs().mean(-1, keepdim=True) + 1e-6) * m.a, a=(N,)),
        "not the root mean square",
    ),
    "rows of an image": (
        Norm(lambda m, x: unit(x, dim=2) * m.a[:, None], a=(N,)),
        "its divisor is not the root mean square",
    ),
    "over the batch": (
        Norm(lambda m, x: unit(x, dim=tuple(range(x.ndim))) * m.a, a=(N,)),
        "mixes the rows of a batch",
    ),
    "strided groups": (
        Norm(lambda m, x: unit(x.unflatten(-1, (16, 3)), dim=-2).flatten(-2) * m.a, a=(N,)),
        "not in groups side by side",
    ),
    "clamped result": (
        Norm(lambda m, x: unit(x).clamp(-5, 5) * m.a, a=(N,)),
        "but not for",
    ),
    "clamped rows": (
        Norm(lambda m, x: unit(x.clamp(-50, 50)) * m.a, a=(N,)),
        "not the root mean square",
    ),
    "other for rank four": (
        Norm(lambda m, x: unit(x, dim=-1 if x.ndim < 4 else -2) * m.a, a=(N,)),
        "but not for (2, 3, 2, 48)",
    ),
    "NaN to zero": (Norm(lambda m, x: (unit(x) * m.a).nan_to_num(), a=(N,)), "in float32"),
    "half inside": (
        Norm(lambda m, x: unit(x).half().to(x.dtype).bfloat16().to(x.dtype) * m.a, a=(N,)),
        "in float32",
    ),
    "modulation": (TwoInputs(lambda _, x, z: unit(x) * (1 + z)), "neither a gate"),
    "GELU gate": (
        TwoInputs(lambda m, x, z: unit(x) * nn.functional.gelu(z) * m.a, a=(N,)),
        "neither a gate",
    ),
    "three inputs": (nn.Bilinear(4, 4, 4), "no scale of a row"),
    "counting": (Counting(unit, gain=(N,)), "stateful: a call changes its 'calls'"),
    "averaging": (averaging(), "stateful: a call changes its 'seen'"),
    "noisy": (
        Norm(lambda m, x: unit(x) * m.a + 1e-6 * torch.randn(()), a=(N,)),
        "random or stateful",
    ),
    "other in training": (
        Norm(lambda m, x: unit(x) * m.a if m.training else m.a * x, a=(N,)),
        "training flag",
    ),
    "overridden forward": (overridden(), "overridden on the instance"),
    "parametrized": (parametrized(), "parametrized"),
    "no forward": (nn.ModuleList(), "has no forward"),
    "reciprocal alone": (
        Norm(lambda _, x: torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)),
        "returns (3, 4, 1)",
    ),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike_is_left_alone_with_its_reason(name: str) -> None:
    module, reason = LOOK_ALIKES[name]
    found = probe_module(module)
    assert isinstance(found, NotANorm), found
    assert reason in found.reason


def test_nothing_of_the_module_or_the_process_changes() -> None:
    module = Norm(lambda m, x: unit(x) * m.gain, gain=(N,)).half()
    ran = []
    module.register_forward_hook(lambda *_: ran.append("hook"))
    module.register_forward_pre_hook(lambda *_: ran.append("pre-hook"))
    gain, value = module.gain, module.gain.detach().clone()
    attributes = dict(vars(module))
    version = gain._version
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    assert isinstance(probe_module(module), Fit)
    assert not ran
    assert module.gain is gain
    assert gain._version == version
    assert torch.equal(gain, value)
    assert gain.grad is None
    assert vars(module) == attributes
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])


def test_an_example_gives_the_shape() -> None:
    """Nothing else tells that the rows have 33 elements."""

    def only_33(_: nn.Module, x: Tensor) -> Tensor:
        if x.shape[-1] != 33:
            raise ValueError("rows of 33 only")
        return unit(x)

    module = Norm(only_33)
    assert isinstance(probe_module(module), NotANorm)
    fit = probe_module(module, example=(torch.zeros(2, 33),))
    assert isinstance(fit, Fit), fit
    assert fit.forms[0].shape == (33,)
    assert not fit.forms[0].any_width


@pytest.mark.parametrize("width", [2, 3, 111, 199, 4104])
def test_widths(width: int) -> None:
    fit = probe_module(nn.RMSNorm(width, eps=1e-5))
    assert isinstance(fit, Fit), fit
    found = fit.forms[0].rounding(torch.float16, torch.float16)
    assert found is not None
    assert found.spec == NormSpec(epsilon=1e-5, scale_before_cast=True)


@pytest.mark.parametrize(
    ("module", "example"),
    [(torch.zeros(3), None), (nn.RMSNorm(3), ()), (nn.RMSNorm(3), torch.zeros(3))],
)
def test_wrong_arguments(module: Any, example: Any) -> None:
    with pytest.raises(UsageError):
        probe_module(module, example=example)


@pytest.mark.parametrize(("instead", "of"), [("inf", "isnan"), ("-inf", "isnan"), ("nan", "isinf")])
def test_infinities_and_nan_are_not_alike(instead, of):
    """A module that answers another special value is not the operator, however few they are."""

    class Special(torch.nn.Module):
        def forward(self, x, y=None):
            del y
            wide = x.float()
            made = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
            special = getattr(torch, of)(x if of == "isinf" else made)
            return torch.where(special, float(instead), made)

    found = probe_module(Special(), example=(torch.randn(3, 64),))
    if of == "isinf":  # inf / inf is NaN in the norm, too
        assert isinstance(found, Fit)
    else:
        assert isinstance(found, NotANorm)
