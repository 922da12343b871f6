"""``verify`` as users call it: any two models, each on the backend that is to run it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rmsnorm_export.compare.backends import open_sides
from rmsnorm_export.compare.compare import check_options, compare
from rmsnorm_export.compare.result import Bounds, Verification
from rmsnorm_export.compare.side import BackendChoice
from rmsnorm_export.op.dtypes import Array

if TYPE_CHECKING:
    from rmsnorm_export.compare.backends import Model


def verify(
    a: Model,
    b: Model,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    max_ulp: float | None = None,
    optimize_a: bool = False,
    optimize_b: bool = True,
    backend_a: BackendChoice = "auto",
    backend_b: BackendChoice = "auto",
    bisect: bool = True,
) -> Verification:
    """Run two models on the same inputs and compare every output of ``a`` with ``b``'s.

    A model is an ONNX file (needed above 2 GB), its bytes, ``onnx.ModelProto`` or
    ``onnx_ir.Model``; a ``torch.nn.Module``, ``ExportedProgram`` or ``.pt2`` file; or an engine of
    TensorRT or TensorRT-RTX. ONNX models run in ONNX Runtime, on the CPU, unless a backend is
    given; with ``tensorrt`` or ``tensorrt-rtx`` an engine is built in a temporary folder, for the
    shapes of the inputs, and run. Where two backends compute with unlike digits, as with TF32, the
    default bound is wider, and each output says why (``OutputComparison.tolerance``).

    Args:
        a: the reference.
        b: the model to check, with the inputs and outputs of ``a`` by name; those of a PyTorch
            module are taken in order.
        inputs: an .npz file or arrays, by input name; random ones where not given, or the example
            inputs of one of two PyTorch models.
        shapes: sizes of single random inputs; symbolic dimensions get small sizes otherwise, and
            the inputs of an engine the usual shape of its profile.
        seed: of the random inputs.
        atol: absolute bound, 0 by default.
        rtol: bound relative to the largest element of the output; by default 1e-9 for float64, 1e-4
            for float32 (1e-2 where it is computed by way of TF32), 1e-2 for float16, 4e-2 for
            bfloat16, 0 for every other type. When only ``atol`` is given it is 0.
        max_ulp: bound in units in the last place, in addition.
        optimize_a, optimize_b: leave ONNX Runtime's graph optimization on, and on CUDA TF32. Off
            for the reference, for ONNX Runtime fuses norms itself, some of them wrongly.
        backend_a, backend_b: ``onnxruntime``, ``onnxruntime-cuda``, ``torch``, ``tensorrt`` or
            ``tensorrt-rtx``; ``auto``: by the model. With ``torch`` a path or name is a source as
            ``rmsnorm-export export`` takes it; a factory and a .pt2 file run code.
        bisect: when an output differs, look for the first value that does
            (``Verification.first_difference``). Both models are run again a few times, with values
            inside as outputs; no more than a batch of them is held at a time.

    Returns:
        The comparison; it does not raise when a bound fails.

    Raises:
        InputError: a model cannot be read or is not well-formed, its external data is missing or
            outside its folder, the inputs do not fit the model, or an engine was made by another
            version or for another GPU, or cannot be built.
        UsageError: a negative bound, ``shapes`` together with ``inputs``, or a backend that does
            not run such a model.
        VerificationError: a backend rejects or cannot run a model, or the two have different
            inputs, outputs, types or shapes.
        BackendMissingError: a package that a backend needs, or the GPU, is not there; known before
            anything is run.
    """
    check_options(inputs, shapes, atol=atol, rtol=rtol, max_ulp=max_ulp)
    first, second = open_sides(a, b, (backend_a, backend_b), (optimize_a, optimize_b))
    return compare(
        first,
        second,
        inputs=inputs,
        shapes=shapes or {},
        seed=seed,
        bounds=Bounds(atol, rtol, max_ulp),
        bisect=bisect,
    )
