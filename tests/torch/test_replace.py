"""Replacing norms: the model computes the same, keeps all it has, and can be put back."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.torch.probe.replace import ATTRIBUTE, replace_norms

N = 64
OPERATORS = {
    torch.ops.rmsnorm_export.rms_norm.default,
    torch.ops.rmsnorm_export.gated_rms_norm.default,
}


class Llama(nn.Module):
    """Rounds, then scales; the gain may be anything."""

    def __init__(self, width: int = N) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Gated(Llama):
    """With an optional gate."""

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:  # type: ignore[override]
        wide = x.float()
        if gate is not None:
            wide = wide * nn.functional.silu(gate.float())
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Model(nn.Module):
    """One norm in two places, a gated one, a LayerNorm and a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Llama()
        self.linear = nn.Linear(N, N)
        self.same = self.first
        self.centre = nn.LayerNorm(N)
        self.gated = Gated()

    def forward(self, x: Tensor) -> Tensor:
        y = self.same(self.linear(self.first(x)))
        return self.gated(y, gate=x) + self.gated(self.centre(y))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture
def x() -> Tensor:
    return torch.randn((2, 5, N), generator=torch.Generator().manual_seed(1))


def operators_called(model: nn.Module, x: Tensor) -> int:
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = 0

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            nonlocal calls
            calls += func in OPERATORS
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Count():
        model(x)
    return calls


def test_what_is_replaced_and_what_is_skipped(model: Model, x: Tensor) -> None:
    replacement = replace_norms(model)
    assert [(r.path, r.class_name) for r in replacement.replaced] == [
        ("first", "Llama"),
        ("gated", "Gated"),
    ]
    assert replacement.replaced[0].spec == NormSpec(epsilon=1e-6)
    assert replacement.replaced[1].spec.kind == "GatedRMSNorm"
    assert any("own parameters, float32" in line for line in replacement.replaced[0].evidence)
    assert any("bfloat16" in line for line in replacement.replaced[0].evidence)
    reasons = {s.path: s.reason for s in replacement.skipped}
    assert reasons.keys() == {"linear", "centre"}
    assert "centred" in reasons["centre"]
    assert operators_called(model, x) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_result_is_the_same(model: Model, x: Tensor, dtype: torch.dtype) -> None:
    """float32: a few ulp of sums and roots. Half types: steps of 2 ** -10 or 2 ** -7, if any."""
    model, x = model.to(dtype), x.to(dtype)
    before = model(x).detach()
    with replace_norms(model):
        assert operators_called(model, x) == 4
        during = model(x).detach()
    apart = (during.double() - before.double()).abs().max() / before.abs().max()
    assert float(apart) <= (1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps)
    if dtype != torch.float32:
        assert int((during != before).sum()) <= before.numel() // 100
    assert torch.equal(model(x), before)
    assert operators_called(model, x) == 0


def test_restore_leaves_no_trace(model: Model) -> None:
    before = {name: (type(m), set(vars(m))) for name, m in model.named_modules()}
    replacement = replace_norms(model)
    assert isinstance(model.first, Llama)
    assert type(model.first) is not Llama
    replacement.restore()
    replacement.restore()
    assert {name: (type(m), set(vars(m))) for name, m in model.named_modules()} == before


def test_parameters_stay_the_same_objects(model: Model) -> None:
    model.gated.weight = model.first.weight  # tied
    model.first.weight.requires_grad_(False)
    before = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    keys = list(model.state_dict())
    with replace_norms(model):
        assert {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)} == before
        assert list(model.state_dict()) == keys
        model.load_state_dict({k: torch.full_like(v, 2.0) for k, v in model.state_dict().items()})
        model.half()
    assert model.gated.weight is model.first.weight
    assert not model.first.weight.requires_grad
    assert model.first.weight.dtype == torch.float16
    assert bool((model.first.weight == 2).all())


def test_hooks_run_as_before(model: Model, x: Tensor) -> None:
    seen: list[nn.Module] = []
    model.first.register_forward_hook(lambda module, *_: seen.append(module))
    model.first.register_forward_pre_hook(lambda module, _: seen.append(module))
    with replace_norms(model):
        assert seen == []
        model(x)
        assert seen == [model.first] * 4
        model.first.register_forward_hook(lambda *_: seen.clear())
    model(x)
    assert seen == []


def test_calls_that_no_operator_serves_keep_their_result(model: Model, x: Tensor) -> None:
    """A gate that broadcasts, a gain of another type, an explicit None: as the module has it."""
    norm = model.gated
    gate = x[:, :1]
    wide, none = norm(x.half()), norm(x, None)
    before = norm(x, gate)
    replacement = replace_norms(norm)
    assert torch.equal(norm(x, gate), before)
    assert torch.equal(norm(x.half()), wide)
    assert wide.dtype == torch.float32, "the module promotes; the operator would not"
    torch.testing.assert_close(norm(x, None), none)
    with pytest.raises(RuntimeError):
        norm(x[..., :-1])
    with pytest.raises(TypeError):
        norm(x, gat=gate)
    lines = replacement.replaced[0].evidence
    assert any("float32 parameters: runs its own forward" in line for line in lines)


def test_gradients_flow(model: Model, x: Tensor) -> None:
    (expected,) = torch.autograd.grad(model(x).square().sum(), model.first.weight)
    with replace_norms(model):
        (found,) = torch.autograd.grad(model(x).square().sum(), model.first.weight)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_model_itself_may_be_the_norm(x: Tensor) -> None:
    norm = Llama()
    before = norm(x)
    replacement = replace_norms(norm)
    assert [r.path for r in replacement.replaced] == [""]
    torch.testing.assert_close(norm(x), before)
    replacement.restore()
    assert type(norm) is Llama


def test_a_second_call_replaces_nothing(model: Model) -> None:
    first = replace_norms(model)
    second = replace_norms(model)
    assert second.replaced == ()
    assert {s.path for s in second.skipped if s.reason == "replaced already"} == {"first", "gated"}
    second.restore()
    assert ATTRIBUTE in vars(model.first)
    first.restore()
    assert ATTRIBUTE not in vars(model.first)


def test_copies_and_pickles_stay_replaced(model: Model, x: Tensor) -> None:
    with replace_norms(model):
        expected = model(x)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        copies = [
            copy.deepcopy(model),
            pickle.loads(pickle.dumps(model)),
            torch.load(buffer, weights_only=False),
        ]
    for other in copies:
        assert operators_called(other, x) == 4
        assert torch.equal(other(x), expected)
        assert other.first is other.same
        assert other.first.weight is not model.first.weight


def test_export_keeps_one_node_with_the_module_path(model: Model, x: Tensor) -> None:
    with replace_norms(model):
        shapes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("length")},)
        exported = torch.export.export(model, (x,), dynamic_shapes=shapes)
    nodes = [node for node in exported.graph.nodes if node.target in OPERATORS]
    assert len(nodes) == 4
    paths = [[path for path, _ in node.meta["nn_module_stack"].values()][-1] for node in nodes]
    assert paths == ["first", "same", "gated", "gated"]


def test_compiles_without_a_graph_break(model: Model, x: Tensor) -> None:
    with replace_norms(model):
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


def test_weights_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = Model().bfloat16()
    replacement = replace_norms(model)
    assert [r.path for r in replacement.replaced] == ["first", "gated"]
    assert not any("own parameters" in line for line in replacement.replaced[0].evidence)
    assert model.first.weight.is_meta
    assert model.first(torch.empty((2, N), dtype=torch.bfloat16, device="meta")).is_meta


def test_verify_can_be_left_out(model: Model) -> None:
    with replace_norms(model, verify=False) as replacement:
        assert len(replacement.replaced) == 2
        assert not any("own parameters" in line for line in replacement.replaced[0].evidence)


def test_verification_uses_the_modules_own_parameters() -> None:
    """Branches on the value of its gain: a probe with random gains cannot see the other branch."""

    class Branching(Llama):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y * 2 if bool((self.weight == 1).all()) else y

    model = Branching()
    with replace_norms(model) as replacement:
        assert len(replacement.replaced) == 1
    nn.init.ones_(model.weight)
    replacement = replace_norms(model)
    assert replacement.replaced == ()
    assert "its own parameters" in replacement.skipped[0].reason


def test_equal_modules_of_one_class_may_differ_in_an_attribute() -> None:
    model = nn.Sequential(Llama(), Llama(), Llama(), nn.RMSNorm(N, eps=1e-5))
    model[1].eps = 1e-3
    with replace_norms(model) as replacement:
        assert [r.spec.epsilon for r in replacement.replaced] == [1e-6, 1e-3, 1e-6, 1e-5]


def test_left_alone_with_a_reason() -> None:
    model = nn.Sequential(Llama(), Llama(), nn.Dropout(0.1))
    nn.utils.parametrize.register_parametrization(model[0], "weight", nn.Identity())
    own = model[1].forward
    model[1].forward = lambda x: own(x)  # type: ignore[method-assign]
    replacement = replace_norms(model)
    assert replacement.replaced == ()
    reasons = {s.path: s.reason for s in replacement.skipped}
    assert "parametrized" in reasons["0"]
    assert "overridden on the instance" in reasons["1"]
    assert "random" in reasons["2"]


def test_a_half_model_whose_rounding_no_operator_has() -> None:
    """rsqrt rounds the reciprocal root once, the operator twice: float32 only."""

    class OwnType(Llama):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight

    with replace_norms(OwnType()) as replacement:
        assert len(replacement.replaced) == 1
    replacement = replace_norms(OwnType().half())
    assert replacement.replaced == ()
    assert "float16: runs its own forward" in replacement.skipped[0].reason


def test_restore_refuses_a_module_changed_since(model: Model) -> None:
    replacement = replace_norms(model)
    nn.utils.parametrize.register_parametrization(model.first, "weight", nn.Identity())
    with pytest.raises(UsageError, match="its class has changed"):
        replacement.restore()
    assert ATTRIBUTE in vars(model.gated), "nothing is half undone"
    nn.utils.parametrize.remove_parametrizations(model.first, "weight")
    replacement.restore()
    assert type(model.first) is Llama


def test_only_modules() -> None:
    with pytest.raises(UsageError, match=r"torch\.nn\.Module"):
        replace_norms(torch.zeros(3))  # type: ignore[arg-type]


class Contained(nn.Module):
    """A norm whose scale is in a container, as layers of Keras keep theirs."""

    def __init__(self, n: int, *, by_name: bool) -> None:
        super().__init__()
        scale = nn.Parameter(torch.linspace(0.5, 2.0, n))
        self.weights = nn.ParameterDict({"scale": scale}) if by_name else nn.ParameterList([scale])
        self.by_name = by_name

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weights["scale" if self.by_name else 0]  # type: ignore[index]
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale


@pytest.mark.parametrize("by_name", [True, False])
def test_parameters_in_a_container(by_name: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 24), Contained(24, by_name=by_name))
    x = torch.randn(3, 8)
    before, keys = model(x), list(model.state_dict())
    with replace_norms(model) as replacement:
        assert [r.path for r in replacement.replaced] == ["1"]
        torch.testing.assert_close(model(x), before)
        assert list(model.state_dict()) == keys
        with torch.no_grad():
            next(model[1].parameters()).mul_(2)
        torch.testing.assert_close(model(x), 2 * before)


class CallsItself(nn.Module):
    """Layers of Keras: a ``__call__`` of their own, and parameters in a container."""

    def __init__(self) -> None:
        super().__init__()
        self.torch_params = nn.ParameterDict({"a": nn.Parameter(torch.ones(4))})

    def __call__(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return x

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_one_reason_for_a_family() -> None:
    blocks = [nn.Sequential(nn.Linear(n, n), CallsItself()) for n in (4, 6, 8)]
    replacement = replace_norms(nn.Sequential(*blocks, nn.Dropout(0.5)))
    assert len(replacement.skipped) == 7
    said = {(r.class_name, r.path) for r in replacement.reasons}
    assert said == {("Linear", "{0-2}.0"), ("CallsItself", "{0-2}.1"), ("Dropout", "3")}
    assert [r.reason for r in replacement.reasons if r.class_name == "CallsItself"] == [
        "its class overrides __call__: optimize what its own exporter writes (keras has one)"
    ]
