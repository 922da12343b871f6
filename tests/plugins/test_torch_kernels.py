"""PyTorch's operators by the CUDA kernels: the launch, interpreted, and what is refused."""

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
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, NormSpec
from rmsnorm_export.torch.operator import kernels
from rmsnorm_export.torch.operator.eager import forward
from rmsnorm_export.torch.operator.plan import make_plan
from tests.plugins import kernel_build
from tests.tools.variants import VARIANTS

TYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def on_the_cpu() -> ctypes.CDLL:
    """The library for PyTorch, with the interpreter instead of CUDA."""
    if reason := kernel_build.missing_compiler():
        pytest.skip(reason)
    torch.manual_seed(1)
    return abi.functions(kernel_build.library())


def _compare(library: ctypes.CDLL, spec: NormSpec, operands: dict[str, Any]) -> None:
    """Every operand is in its place; how exact the kernels are, test_kernels.py holds."""
    dtype = operands["x"].dtype
    plan = make_plan(spec, dtype)
    outputs = kernels.launch(library, 0, plan, **operands)
    assert outputs is not None
    for ours, theirs in zip(outputs, forward(plan, **operands), strict=True):
        assert (ours.shape, ours.is_contiguous()) == (theirs.shape, True)
        # What rounds the other way is a unit of the largest term, before the bias takes from it.
        off = (ours.double() - theirs.double()).abs().max()
        assert off <= 4 * torch.finfo(dtype).eps * theirs.double().abs().max()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("second", [None, "residual", "gate"])
def test_the_launch_is_the_operator(
    on_the_cpu: ctypes.CDLL, dtype: torch.dtype, second: str | None
) -> None:
    kind = {None: "RMSNorm", "residual": "SkipRMSNorm", "gate": "GatedRMSNorm"}[second]
    halves = [{"stash_type": BFLOAT16, "association": 2}] if dtype == torch.bfloat16 else []
    for attributes in ({}, *VARIANTS["torch_kernels"], *halves):
        spec = NormSpec(kind=kind, **attributes)
        x, more = torch.randn(2, 3, 4, 48).to(dtype)
        row = (*x.shape[spec.axis : 3 + spec.last_axis + 1], *(1,) * (-1 - spec.last_axis))
        scale, bias = torch.randn(2, *row).to(dtype)
        operands = {"x": x, "scale": scale, "bias": bias} | ({second: more} if second else {})
        _compare(on_the_cpu, spec, operands)
        apart = x.transpose(0, 1).contiguous().transpose(0, 1)  # not contiguous, without a bias
        _compare(on_the_cpu, spec, operands | {"x": apart, "bias": None})


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 1, 4), (1, 3, 1), (4,), ()], ids=str)
def test_rotary(on_the_cpu: ctypes.CDLL, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    for part, interleaved, half, of_table in itertools.product(
        (0, 32), (False, True), (False, True), (dtype, torch.float32)
    ):
        spec = NormSpec(kind="RotaryRMSNorm", rotary_dim=part, rotary_interleaved=interleaved)
        cos, sin = torch.rand(2, *shape, (part or 48) // (2 if half else 1)).to(of_table)
        scale, bias = torch.randn(2, 48).to(dtype)
        operands = {"x": torch.randn(2, 3, 4, 48).to(dtype), "scale": scale, "bias": bias}
        _compare(on_the_cpu, spec, operands | {"cos": cos, "sin": sin})


_ROWS = torch.ones(2, 8)
_ROTARY = NormSpec(kind="RotaryRMSNorm")
_ANGLES = dict.fromkeys(("cos", "sin"), torch.ones(2, 1, 2, 1, 8))


@pytest.mark.parametrize(
    ("spec", "x", "scale", "angles", "reason"),
    [
        (NormSpec(), _ROWS.double(), None, {}, "RMSNorm of float64: the kernels have none"),
        (NormSpec(stash_type=DOUBLE), _ROWS, None, {}, "of float32: the kernels have none"),
        (NormSpec(), _ROWS.half(), torch.ones(8).bfloat16(), {}, "scale must be of the type of x"),
        (NormSpec(), torch.zeros(1, (1 << 20) + 8), None, {}, "1 to 1048576 elements"),
        (_ROTARY, torch.ones(2, 3, 2, 3, 8), None, _ANGLES, "at most two runs of axes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_kernels_lack_stays_with_pytorch(
    on_the_cpu: ctypes.CDLL, spec: NormSpec, x: Any, scale: Any, angles: Any, reason: str
) -> None:
    kernels._note.cache_clear()
    plan = make_plan(spec, x.dtype)
    with pytest.warns(RuntimeWarning, match=reason):
        assert kernels.launch(on_the_cpu, 0, plan, x, scale, None, **angles) is None


def test_what_is_not_launched(on_the_cpu: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rows give none; tensors of the CPU stay with PyTorch."""
    plan = make_plan(NormSpec(), torch.float32)
    outputs = kernels.launch(on_the_cpu, 0, plan, _ROWS[:0], None, None)
    assert outputs is not None
    assert outputs[0].shape == (0, 8)
    monkeypatch.setattr(kernels, "_IN_USE", [on_the_cpu])
    assert kernels.launched(plan, _ROWS) is None


def test_a_library_of_something_else(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        kernels.use(tmp_path / "missing.so")
    source = tmp_path / "other.c"
    source.write_text("int rmsnorm_problem_bytes(void) { return 8; }\n")
    library = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    with pytest.raises(InputError, match="its problem has 8 bytes"):
        kernels.use(library)
    kernels.use(None)
