"""The operator on CUDA by the kernels of plugins/kernels, once ``use`` has loaded them.

They are those of the TensorRT plugin: what is compared on a GPU is one kernel with itself. What
they do not compute (float64, a row of more than 2^20 elements, a stash type or a scale of another
type) stays with ATen, which a warning says once.
"""

from __future__ import annotations

import ctypes
import functools
import math
import warnings
from pathlib import Path

import torch
from torch import Tensor

from rmsnorm_export.op import abi
from rmsnorm_export.op.spec import IN_KERNELS
from rmsnorm_export.torch.dtypes import dtype_name
from rmsnorm_export.torch.operator.plan import NormPlan

_IN_USE: list[ctypes.CDLL] = []
"""The library that is in use, if any."""


def use(path: Path | None) -> None:
    """Run the operators on CUDA by the library at ``path``; None: by ATen again.

    Raises:
        InputError: it cannot be loaded, or belongs to another version of this package.
    """
    _IN_USE[:] = [] if path is None else [abi.functions(path)]


def launched(
    plan: NormPlan,
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    **more: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """``eager.forward`` in one launch on the current stream; None where ATen is to do it."""
    if not _IN_USE or x.device.type != "cuda":
        return None
    stream = torch.cuda.current_stream(x.device).cuda_stream
    with torch.cuda.device(x.device):
        return launch(_IN_USE[0], stream, plan, x, scale, bias, **more)


def launch(
    library: ctypes.CDLL,
    stream: int,
    plan: NormPlan,
    x: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Launch on tensors in memory that the library's kernels reach."""
    spec = plan.spec
    x = x.contiguous()
    operands = {"other": residual if gate is None else gate, "scale": scale, "bias": bias}
    operands |= {"cos": cos, "sin": sin}
    types = {
        name: abi.TYPES.get(dtype_name(x.dtype if value is None else value.dtype))
        for name, value in {"x": x, "y": x, "scale": scale, "bias": bias, "table": cos}.items()
    }
    end = x.ndim + spec.last_axis + 1
    problem = abi.Problem(
        n=math.prod(x.shape[spec.axis : end]),
        inner=math.prod(x.shape[end:]),
        has_scale=scale is not None,
        has_bias=bias is not None,
    )
    y = torch.empty_like(x)
    total = torch.empty_like(x) if residual is not None else x
    if None in types.values() or plan.stash not in (torch.float32, x.dtype):
        _note(plan, b"the kernels have none of these types")
        return None
    if unknown := spec.beyond(IN_KERNELS):
        _note(plan, f"the kernels do not know the attribute {unknown}".encode())
        return None
    if not x.numel():
        return y, total
    problem.set_norm(spec)
    for name, value in types.items():
        setattr(problem, name, value)
    if (refusal := _refusal(library, problem, x, cos)) is not None:
        _note(plan, refusal)
        return None
    dense = {name: value.contiguous() for name, value in operands.items() if value is not None}
    dense |= {"x": x, "y": y} | ({} if residual is None else {"sum": total})
    pointers = abi.Pointers(**{name: value.data_ptr() for name, value in dense.items()})
    arguments = (ctypes.byref(problem), ctypes.byref(pointers), x.numel() // problem.n)
    status = library.rmsnorm_launch(*arguments, stream)
    if status:
        _note(plan, library.rmsnorm_error(status))
        return None
    return y, total


def _refusal(
    library: ctypes.CDLL, problem: abi.Problem, x: Tensor, table: Tensor | None
) -> bytes | None:
    """Return why the kernels do not take it; the problem knows the table's shape then."""
    if table is not None:
        problem.table_width = table.shape[-1]
        shapes = [shape[:-1] for shape in (x.shape, table.shape)]
        sizes = [((ctypes.c_int64 * len(shape))(*shape), len(shape)) for shape in shapes]
        no_broadcast = library.rmsnorm_broadcast_tables(ctypes.byref(problem), *sizes[0], *sizes[1])
        if no_broadcast is not None:
            return bytes(no_broadcast)
    refused: bytes | None = library.rmsnorm_refusal(ctypes.byref(problem))
    return refused


@functools.cache
def _note(plan: NormPlan, reason: bytes) -> None:
    """Warn that a norm is left to PyTorch, once for each reason."""
    warnings.warn(
        f"rmsnorm_export: PyTorch's own operators compute a norm, not the CUDA kernels: "
        f"{plan.spec.kind} of {dtype_name(plan.out)}: {reason.decode()}",
        RuntimeWarning,
        stacklevel=2,
    )
