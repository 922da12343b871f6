"""The packaged model in ONNX Runtime: it answers requests, and joined ones as each alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from rmsnorm_export.deploy.batching import usual_request
from rmsnorm_export.deploy.served import ServedModel
from rmsnorm_export.errors import NotRunError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.inputs import SIZE_CHOICES, declared_inputs, index_limits, make_inputs
from rmsnorm_export.runtime.metrics import is_float, without_evidence
from rmsnorm_export.runtime.session import open_session, run_session, runtime_name

_BOUNDS = {"float64": 1e-6, "float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}
"""Largest difference of joined requests, relative to the largest element: a product of matrices of
another height is summed in another order, nothing more. A mean over the batch differs by orders of
magnitude more."""

Runner = Callable[[dict[str, Array]], dict[str, Array]]


def try_model(
    path: Path, subject: ServedModel, max_batch: int, kernels: Path | None
) -> tuple[str, str]:
    """Load the packaged model on the CPU and ask it.

    Returns:
        How requests in a batch change each other's answers, or ""; and what ran.

    Raises:
        NotRunError, BackendMissingError: it cannot be run here.
        VerificationError: ONNX Runtime rejects the model, or it answers no request, or with nothing
            to compare.
    """
    session, problems = open_session(path, optimize=True, kernels=kernels), []
    declared, limits = declared_inputs(session), index_limits(subject.loaded.model)
    for sizes in SIZE_CHOICES:
        shapes = usual_request(subject.inputs, max_batch > 0, subject.profiles, sizes)
        asked = "; ".join(f"{k} {'x'.join(map(str, v))}" for k, v in shapes.items())
        try:
            answers = run_session(session, make_inputs(declared, limits, shapes, seed=0))
        except NotRunError:
            raise
        except VerificationError as error:
            problems.append(f"{asked}: {error.found}")
            continue
        empty = without_evidence(answers)
        problems += [f"{asked}: output {name!r} has {why}" for name, why in empty.items()]
        if empty:
            continue
        if max_batch <= 1:
            return "", f"{runtime_name()}, random {asked}"
        pair = {name: (2, *shape[1:]) for name, shape in shapes.items()}
        both = make_inputs(declared, limits, pair, seed=0)
        mixed = _mixed(both, lambda feeds: run_session(session, feeds))
        return mixed, f"{runtime_name()}, random {asked}, alone and joined"
    raise VerificationError(
        "The packaged model does not answer with anything that could be compared.",
        found=problems[0],
        fix="give sizes that it accepts with --shapes, or look for overflow in the model; in "
        "Python, check=False packages it as it is",
    )


def _mixed(both: dict[str, Array], answer: Runner) -> str:
    """Say how two requests in a batch differ from each alone."""
    together = answer(both)
    for row in (slice(0, 1), slice(1, 2)):
        alone = answer({name: array[row] for name, array in both.items()})
        for name, joined in together.items():
            if joined.shape[:1] != (2,) or joined[row].shape != alone[name].shape:
                return f"output {name!r} of 2 requests has the shape {list(joined.shape)}"
            if not _agree(joined[row], alone[name]):
                return f"output {name!r} of a request changes when another is joined"
    return ""


def _agree(joined: Array, alone: Array) -> bool:
    if not is_float(joined.dtype):
        return bool(np.array_equal(joined, alone))
    a, b = joined.astype(np.float64), alone.astype(np.float64)
    scale = float(np.nanmax(np.abs(b), initial=0.0, where=np.isfinite(b)))
    bound = _BOUNDS[str(joined.dtype)] * scale
    return bool(np.allclose(a, b, rtol=0.0, atol=bound, equal_nan=True))
