"""PyTorch's operators by the CUDA kernels: the launch on a CPU shim, and what is refused."""

from __future__ import annotations

import ctypes
import itertools
import pathlib
import subprocess
from typing import Any

import pytest
import torch

from rmsnorm_export.errors import InputError
from rmsnorm_export.op import abi
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, Kind, NormSpec
from rmsnorm_export.torch.operator import kernels
from rmsnorm_export.torch.operator.eager import forward
from rmsnorm_export.torch.operator.plan import NormPlan, make_plan
from tests.plugins import kernel_build

TYPES = (torch.float32, torch.float16, torch.bfloat16)
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "Gemma": {"scale_before_cast": True, "scale_offset": 1.0, "epsilon": 1e-3},
    "groups": {"group_size": 16},
    "partial": {"partial_size": 5},
    "two axes": {"axis": -2},
    "channels": {"axis": -2, "last_axis": -2},
    "clamp": {"epsilon_clamp": True, "epsilon": 1.5},
    "outside": {"epsilon_outside": True, "epsilon": 0.5},
    "rounded rstd": {"round_rstd": True},
    "stash": {"stash_type": BFLOAT16, "association": 2},
}


@pytest.fixture(scope="module")
def on_the_cpu() -> ctypes.CDLL:
    """The library for PyTorch, with the shim instead of CUDA."""
    if reason := kernel_build.missing_compiler():
        pytest.skip(reason)
    return abi.functions(kernel_build.shim_library())


def _operands(spec: NormSpec, dtype: torch.dtype) -> dict[str, Any]:
    shape = (3, 4, 48)
    random = torch.Generator().manual_seed(len(str(spec)))
    row = shape[spec.axis : len(shape) + spec.last_axis + 1]
    behind = (1,) * (-1 - spec.last_axis)
    made = {
        name: torch.randn(sizes, generator=random).to(dtype)
        for name, sizes in (("x", shape), ("scale", row + behind), ("bias", row + behind))
    }
    second = {"SkipRMSNorm": "residual", "GatedRMSNorm": "gate"}.get(spec.kind)
    if second:
        made[second] = torch.randn(shape, generator=random).to(dtype)
    return made


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_launch_is_the_operator(
    on_the_cpu: ctypes.CDLL, dtype: torch.dtype, variant: str
) -> None:
    kinds: tuple[Kind, ...] = ("RMSNorm", "SkipRMSNorm", "GatedRMSNorm")
    for kind, apart in itertools.product(kinds, (False, True)):
        attributes = dict(VARIANTS[variant])
        if "stash_type" in attributes and dtype != torch.bfloat16:
            continue
        spec = NormSpec(kind=kind, **attributes)
        plan = make_plan(spec, dtype)
        given = _operands(spec, dtype)
        if apart:  # not contiguous, and without a bias
            given["x"] = given["x"].transpose(0, 1).contiguous().transpose(0, 1)
            given["bias"] = None
        _compare(on_the_cpu, plan, given)


def _compare(library: ctypes.CDLL, plan: NormPlan, given: dict[str, Any]) -> None:
    """Every operand is in its place; how exact the kernels are, test_kernels.py holds."""
    found = kernels.launch(library, 0, plan, **given)
    expected = forward(plan, **given)
    assert found is not None
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.is_contiguous()
        # What rounds the other way is a unit of the largest term, before the bias takes from it.
        off = (ours.double() - theirs.double()).abs().max()
        assert off <= 4 * torch.finfo(plan.out).eps * theirs.double().abs().max()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 1, 4), (1, 3, 1), (4,), ()], ids=str)
def test_rotary(on_the_cpu: ctypes.CDLL, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    random = torch.Generator().manual_seed(1)
    for part, interleaved, half, of_table in itertools.product(
        (0, 32), (False, True), (False, True), (dtype, torch.float32)
    ):
        turns = {"rotary_dim": part, "rotary_interleaved": interleaved}
        plan = make_plan(NormSpec(kind="RotaryRMSNorm", **turns), dtype)
        width = (part or 48) // (2 if half else 1)
        x, scale, bias = (torch.randn(s, generator=random) for s in ((2, 3, 4, 48), (48,), (48,)))
        cos, sin = (torch.rand(*shape, width, generator=random) for _ in range(2))
        given = {"x": x, "scale": scale, "bias": bias}
        tables = {"cos": cos.to(of_table), "sin": sin.to(of_table)}
        _compare(on_the_cpu, plan, {k: v.to(dtype) for k, v in given.items()} | tables)


def test_angles_of_too_many_runs_stay_with_pytorch(on_the_cpu: ctypes.CDLL) -> None:
    plan = make_plan(NormSpec(kind="RotaryRMSNorm"), torch.float32)
    x, table = torch.randn(2, 3, 2, 3, 8), torch.rand(2, 1, 2, 1, 8)
    kernels._note.cache_clear()
    with pytest.warns(RuntimeWarning, match="at most two runs of axes"):
        assert kernels.launch(on_the_cpu, 0, plan, x, None, None, cos=table, sin=table) is None


@pytest.mark.thorough
def test_what_the_kernels_lack_stays_with_pytorch(on_the_cpu: ctypes.CDLL) -> None:
    """float64, a stash type of float64, another type of scale, a row that is too long."""
    x = torch.randn(2, 8)
    long = torch.zeros(1, (1 << 20) + 8)
    cases = (
        (NormSpec(), x.double(), None, "RMSNorm of float64: the kernels have none"),
        (NormSpec(stash_type=DOUBLE), x, None, "RMSNorm of float32: the kernels have none"),
        (NormSpec(), x.half(), torch.ones(8).bfloat16(), "scale must be of the type of x, or f32"),
        (NormSpec(), long, None, "a row must have 1 to 1048576 elements"),
    )
    for spec, given, scale, said in cases:
        kernels._note.cache_clear()
        plan = make_plan(spec, given.dtype)
        with pytest.warns(RuntimeWarning, match=said):
            found = kernels.launch(on_the_cpu, 0, plan, given, scale, None)
        assert found is None
    plan = make_plan(NormSpec(), x.dtype)
    nothing = kernels.launch(on_the_cpu, 0, plan, x[:0], None, None)
    assert nothing is not None
    assert nothing[0].shape == (0, 8)


def test_a_library_of_something_else(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="cannot be loaded"):
        kernels.use(tmp_path / "missing.so")
    source = tmp_path / "other.c"
    source.write_text("int rmsnorm_problem_bytes(void) { return 8; }\n")
    library = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    with pytest.raises(InputError, match="another version"):
        kernels.use(library)
    kernels.use(None)


def test_tensors_of_the_cpu_stay_with_pytorch() -> None:
    plan = make_plan(NormSpec(), torch.float32)
    assert kernels.launched(plan, torch.ones(2, 8)) is None
