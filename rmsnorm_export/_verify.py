"""``verify`` as users call it: both models are read, and refused, as ``optimize`` reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.proof import compare
from rmsnorm_export.proof.source import Sourced, open_source
from rmsnorm_export.rewrite.load import Source, load_model


def verify(
    a: Source,
    b: Source,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    max_ulp: float | None = None,
    optimize_a: bool = False,
    optimize_b: bool = True,
) -> compare.Verification:
    """Run two models in ONNX Runtime on the CPU and compare every output of ``a`` with ``b``'s.

    Args:
        a: the reference: a path (needed above 2 GB), bytes, ``onnx.ModelProto`` or
            ``onnx_ir.Model``.
        b: the model to check, with the inputs and outputs of ``a`` by name.
        inputs: an .npz file or arrays, by input name; random ones where not given.
        shapes: sizes of single random inputs; symbolic dimensions get small sizes otherwise.
        seed: of the random inputs.
        atol: absolute bound, 0 by default.
        rtol: bound relative to the largest element of the output; by default 1e-9 for float64, 1e-4
            for float32, 1e-2 for float16, 4e-2 for bfloat16, 0 for every other type. When only
            ``atol`` is given it is 0.
        max_ulp: bound in units in the last place, in addition.
        optimize_a, optimize_b: leave ONNX Runtime's graph optimization on. Off for the reference,
            for ONNX Runtime fuses norms itself, some of them wrongly.

    Returns:
        The comparison; it does not raise when a bound fails.

    Raises:
        InputError: a model cannot be read or is not well-formed, its external data is missing or
            outside its folder, or the inputs do not fit the model.
        UsageError: a negative bound, or ``shapes`` together with ``inputs``.
        VerificationError: ONNX Runtime rejects or cannot run a model, or the two have different
            inputs, outputs, types or shapes.
        BackendMissingError: ONNX Runtime is not installed.
    """
    return compare.verify(
        _checked(a),
        _checked(b),
        inputs=inputs,
        shapes=shapes,
        seed=seed,
        atol=atol,
        rtol=rtol,
        max_ulp=max_ulp,
        optimize_a=optimize_a,
        optimize_b=optimize_b,
    )


def _checked(source: Source) -> Sourced:
    """``source`` for ONNX Runtime, which gets the original and not what was put right in a copy."""
    loaded = load_model(source)
    if loaded.path is not None:
        return Sourced(str(loaded.path), loaded.model, loaded.description)
    assert not isinstance(source, (str, os.PathLike))
    return open_source(source)
