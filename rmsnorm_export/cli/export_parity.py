"""``export --verify``: the written file in ONNX Runtime against the module in PyTorch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.torch.source.example import Feed


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
        VerificationError: ONNX Runtime cannot load or run the file, or it has other inputs or
            outputs than the module.
        BackendMissingError: ONNX Runtime is not installed.
    """
    from rmsnorm_export.compare.backend import Answer
    from rmsnorm_export.compare.eager import feeds_of_call, run_eager
    from rmsnorm_export.compare.outputs import Bounds, RecordedCall, compare_recorded
    from rmsnorm_export.compare.pytorch import PyTorch
    from rmsnorm_export.errors import VerificationError
    from rmsnorm_export.runtime.session import open_session
    from rmsnorm_export.torch.source.example import Loaded

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
    calls = [
        RecordedCall(
            feeds_of_call(names, args, kwargs),
            Answer(*run_eager(module, args, kwargs), named=False),
        )
        for args, kwargs in feeds
    ]
    runtime = PyTorch(Loaded(module, source)).runtime
    return compare_recorded(session, calls, Bounds(rtol=rtol), runtime=runtime, source=source)
