"""``export --verify``: the written file in ONNX Runtime against the module in PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from rmsnorm_export.op.dtypes import Array
    from rmsnorm_export.proof.compare import Verification

Feed = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named inputs of one call."""


def compare_with_pytorch(
    module: torch.nn.Module | torch.export.ExportedProgram,
    path: str | os.PathLike[str],
    feeds: Sequence[Feed],
    *,
    rtol: float | None,
    source: str,
) -> Verification:
    """Every output of the file, graph optimization on, against PyTorch eager on the same inputs.

    Args:
        module: run in evaluation mode.
        path: the exported file.
        feeds: the inputs of each call; all are run.
        rtol: bound relative to the largest element of an output; None: by its type, as ``verify``.
        source: where the inputs came from, for the report.

    Raises:
        InputError: the module cannot be run on these inputs.
        VerificationError: ONNX Runtime cannot load or run the file.
        BackendMissingError: ONNX Runtime is not installed.
    """
    from rmsnorm_export.errors import VerificationError
    from rmsnorm_export.proof.compare import Verification, compare_output
    from rmsnorm_export.proof.runtime import open_session, run_session, runtime_name

    try:
        session = open_session(path, optimize=True)
    except VerificationError as error:
        raise VerificationError(
            "ONNX Runtime cannot load the exported file, which was written but not compared.",
            found=error.found,
            fix="its CPU kernels are few in bfloat16: verify an export with --dtype f16 or f32, "
            "and prove the norms of this one with --prove",
        ) from error
    names = [argument.name for argument in session.get_inputs()]
    outputs = []
    fed: list[str] = []
    for number, (args, kwargs) in enumerate(feeds):
        inputs = _named(names, args, kwargs)
        expected = _eager(module, args, kwargs)
        found = run_session(session, inputs)
        suffix = f" [{number + 1}]" if len(feeds) > 1 else ""
        fed += [f"{name} {a.dtype} {list(a.shape)}{suffix}" for name, a in inputs.items()]
        outputs += [
            compare_output(name + suffix, found[name], array, rtol=rtol, atol=None, max_ulp=None)
            for name, array in zip(found, expected, strict=True)
        ]
    failed = [f"{output.name}: {output.reason}" for output in outputs if not output.passed]
    return Verification(
        passed=not failed,
        reason="; ".join(failed),
        outputs=tuple(outputs),
        runtime=runtime_name(),
        optimized=(False, True),
        inputs=tuple(fed),
        source=source,
    )


def _eager(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> list[Array]:
    import torch
    from torch.utils import _pytree as pytree

    from rmsnorm_export.errors import InputError
    from rmsnorm_export.torch.export import inference
    from rmsnorm_export.torch.export_failure import describe

    run = module.module() if isinstance(module, torch.export.ExportedProgram) else module
    try:
        with inference(run):
            made = run(*args, **kwargs)
    except Exception as error:
        raise InputError(
            "PyTorch cannot run the module on the inputs of --verify.",
            found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}; "
            f"inputs: {describe(args, kwargs)}",
            fix="give other --shapes, or leave --verify away",
        ) from error
    leaves = pytree.tree_leaves(made)
    return [_array(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _named(
    names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Array]:
    """The tensors by the names of the file's inputs: by name where they have it, else in order."""
    import torch
    from torch.utils import _pytree as pytree

    tensors = [t for t in pytree.tree_leaves((args, dict(kwargs))) if isinstance(t, torch.Tensor)]
    if not args and set(kwargs) == set(names):
        tensors = [kwargs[name] for name in names]
    return {name: _array(tensor) for name, tensor in zip(names, tensors, strict=True)}


def _array(tensor: torch.Tensor) -> Array:
    import ml_dtypes
    import numpy as np
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())
