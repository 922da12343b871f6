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
from rmsnorm_export.torch.dtypes import dtype_name
from rmsnorm_export.torch.operator.plan import NormPlan

_NOT_IN_IT = "the kernels have none of these types"


class _Loaded:
    """The library that is in use, if any."""

    library: ctypes.CDLL | None = None


def use(path: Path | None) -> None:
    """Run the operators on CUDA by the library at ``path``; None: by ATen again.

    Raises:
        InputError: it cannot be loaded, or belongs to another version of this package.
    """
    _Loaded.library = None if path is None else abi.functions(path)


def launched(
    plan: NormPlan,
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    **more: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """``eager.forward`` in one launch on the current stream; None where ATen is to do it."""
    library = _Loaded.library
    if library is None or x.device.type != "cuda":
        return None
    stream = torch.cuda.current_stream(x.device).cuda_stream
    with torch.cuda.device(x.device):
        return launch(library, stream, plan, x, scale, bias, **more)


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
    """The launch, on tensors in memory that the library's kernels reach."""
    spec = plan.spec
    x = x.contiguous()
    second = residual if gate is None else gate
    given = {"other": second, "scale": scale, "bias": bias, "cos": cos, "sin": sin}
    tensors = {k: None if v is None else v.contiguous() for k, v in given.items()}
    types = {
        name: abi.TYPES.get(dtype_name(x.dtype if value is None else value.dtype))
        for name, value in {"x": x, "scale": scale, "bias": bias, "table": cos}.items()
    }
    behind = x.ndim + spec.last_axis + 1
    problem = abi.Problem(
        n=math.prod(x.shape[spec.axis : behind]),
        inner=math.prod(x.shape[behind:]),
        has_scale=scale is not None,
        has_bias=bias is not None,
    )
    stays = _NOT_IN_IT
    if None not in types.values() and plan.stash in (torch.float32, x.dtype):
        problem.set_norm(spec)
        for name, value in {**types, "y": types["x"]}.items():
            setattr(problem, name, value)
        refused = _refusal(library, problem, x, cos) if x.numel() else None
        stays = "" if refused is None else refused.decode()
    y = torch.empty_like(x)
    total = torch.empty_like(x) if residual is not None else x
    if not stays and x.numel():
        pointers = abi.Pointers(
            x=x.data_ptr(), y=y.data_ptr(), sum=total.data_ptr() if total is not x else None
        )
        for name, tensor in tensors.items():
            setattr(pointers, name, None if tensor is None else tensor.data_ptr())
        arguments = (ctypes.byref(problem), ctypes.byref(pointers), x.numel() // problem.n)
        status = library.rmsnorm_launch(*arguments, abi.THROUGHPUT, stream)
        stays = "" if status == 0 else library.rmsnorm_error(status).decode()
    if stays:
        _note(f"{spec.kind} of {dtype_name(x.dtype)}: {stays}")
        return None
    return y, total


def _refusal(
    library: ctypes.CDLL, problem: abi.Problem, x: Tensor, table: Tensor | None
) -> bytes | None:
    """Why the kernels do not take it; the problem knows the table's shape then."""
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
def _note(reason: str) -> None:
    """Once for each reason."""
    warnings.warn(
        f"rmsnorm_export: PyTorch's own operators compute a norm, not the CUDA kernels: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )
