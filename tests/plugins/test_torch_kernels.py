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
from rmsnorm_export.torch.operator.plan import make_plan
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
    operands = {
        name: torch.randn(sizes, generator=random).to(dtype)
        for name, sizes in (("x", shape), ("scale", row + behind), ("bias", row + behind))
    }
    second = {"SkipRMSNorm": "residual", "GatedRMSNorm": "gate"}.get(spec.kind)
    if second:
        operands[second] = torch.randn(shape, generator=random).to(dtype)
    return operands


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_launch_is_the_operator(
    on_the_cpu: ctypes.CDLL, dtype: torch.dtype, variant: str
) -> None:
    kinds: tuple[Kind, ...] = ("RMSNorm", "SkipRMSNorm", "GatedRMSNorm")
    attributes = VARIANTS[variant]
    for kind, apart in itertools.product(kinds, (False, True)):
        if "stash_type" in attributes and dtype != torch.bfloat16:
            continue
        spec = NormSpec(kind=kind, **attributes)
        given = _operands(spec, dtype)
        if apart:  # not contiguous, and without a bias
            given["x"] = given["x"].transpose(0, 1).contiguous().transpose(0, 1)
            given["bias"] = None
        _compare(on_the_cpu, spec, dtype, given)


def _compare(
    library: ctypes.CDLL, spec: NormSpec, dtype: torch.dtype, given: dict[str, Any]
) -> None:
    """Every operand is in its place; how exact the kernels are, test_kernels.py holds."""
    plan = make_plan(spec, dtype)
    outputs = kernels.launch(library, 0, plan, **given)
    assert outputs is not None
    for ours, theirs in zip(outputs, forward(plan, **given), strict=True):
        assert (ours.shape, ours.is_contiguous()) == (theirs.shape, True)
        # What rounds the other way is a unit of the largest term, before the bias takes from it.
        off = (ours.double() - theirs.double()).abs().max()
        assert off <= 4 * torch.finfo(dtype).eps * theirs.double().abs().max()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 1, 4), (1, 3, 1), (4,), ()], ids=str)
def test_rotary(on_the_cpu: ctypes.CDLL, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    random = torch.Generator().manual_seed(1)
    for part, interleaved, half, of_table in itertools.product(
        (0, 32), (False, True), (False, True), (dtype, torch.float32)
    ):
        turns = {"rotary_dim": part, "rotary_interleaved": interleaved}
        width = (part or 48) // (2 if half else 1)
        x, scale, bias = (torch.randn(s, generator=random) for s in ((2, 3, 4, 48), (48,), (48,)))
        cos, sin = (torch.rand(*shape, width, generator=random) for _ in range(2))
        given = {"x": x, "scale": scale, "bias": bias}
        tables = {"cos": cos.to(of_table), "sin": sin.to(of_table)}
        spec = NormSpec(kind="RotaryRMSNorm", **turns)
        given = {name: value.to(dtype) for name, value in given.items()}
        _compare(on_the_cpu, spec, dtype, given | tables)


_ROWS = torch.randn(2, 8)
_TABLE = torch.rand(2, 1, 2, 1, 8)
_ROTARY = NormSpec(kind="RotaryRMSNorm")


@pytest.mark.parametrize(
    ("spec", "operands", "reason"),
    [
        (NormSpec(), (_ROWS.double(), None), "RMSNorm of float64: the kernels have none"),
        (NormSpec(stash_type=DOUBLE), (_ROWS, None), "RMSNorm of float32: the kernels have none"),
        (NormSpec(), (_ROWS.half(), torch.ones(8).bfloat16()), "scale must be of the type of x"),
        (NormSpec(), (torch.zeros(1, (1 << 20) + 8), None), "1 to 1048576 elements"),
        (_ROTARY, (torch.randn(2, 3, 2, 3, 8), None, _TABLE, _TABLE), "at most two runs of axes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_kernels_lack_stays_with_pytorch(
    on_the_cpu: ctypes.CDLL, spec: NormSpec, operands: tuple[Any, ...], reason: str
) -> None:
    x, scale, *tables = operands
    kernels._note.cache_clear()
    angles = dict(zip(("cos", "sin"), tables, strict=False))
    plan = make_plan(spec, x.dtype)
    with pytest.warns(RuntimeWarning, match=reason):
        assert kernels.launch(on_the_cpu, 0, plan, x, scale, None, **angles) is None


def test_no_rows(on_the_cpu: ctypes.CDLL) -> None:
    outputs = kernels.launch(
        on_the_cpu, 0, make_plan(NormSpec(), torch.float32), _ROWS[:0], None, None
    )
    assert outputs is not None
    assert outputs[0].shape == (0, 8)


def test_a_library_of_something_else(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="cannot open"):
        kernels.use(tmp_path / "missing.so")
    source = tmp_path / "other.c"
    source.write_text("int rmsnorm_problem_bytes(void) { return 8; }\n")
    library = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    with pytest.raises(InputError, match="its problem has 8 bytes"):
        kernels.use(library)
    kernels.use(None)


def test_tensors_of_the_cpu_stay_with_pytorch() -> None:
    plan = make_plan(NormSpec(), torch.float32)
    assert kernels.launched(plan, torch.ones(2, 8)) is None
