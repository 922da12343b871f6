"""The packaged model in ONNX Runtime: it answers requests, and joined ones as each alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmsnorm_export.compare.outputs import Bounds, compare_output
from rmsnorm_export.deploy.served import ServedModel
from rmsnorm_export.errors import NotRunError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import collapse
from rmsnorm_export.runtime.inputs import graph_inputs, index_limits, input_candidates, make_inputs
from rmsnorm_export.runtime.metrics import without_evidence
from rmsnorm_export.runtime.session import open_session, run_session, runtime_name

_BOUNDS = {"float64": 1e-6, "float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}
"""Largest difference of joined requests, relative to the largest element: a product of matrices of
another height is summed in another order, nothing more. A mean over the batch differs by orders of
magnitude more."""


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
    assert subject.loaded is not None  # an engine is not run here
    session, problems = open_session(path, optimize=True, kernels=kernels), []
    declared, limits = graph_inputs(subject.loaded.model), index_limits(subject.loaded.model)
    profile = subject.profiles[-1][1] if subject.profiles else None
    usual = dict.fromkeys(declared, (1,)) if max_batch > 0 else {}  # a batch of 1
    requests, _ = input_candidates(declared, limits, None, shapes=profile, usual=usual)
    for request in requests():
        shapes = {name: array.shape for name, array in request.items()}
        asked = "; ".join(collapse(f"{k} {'x'.join(map(str, v))}" for k, v in shapes.items()))
        try:
            answers = run_session(session, request)
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
            return "", f"{runtime_name()}, a random request {asked}: it was answered"
        pair = {name: (2, *shape[1:]) for name, shape in shapes.items()}
        both = make_inputs(declared, limits, pair, seed=0)
        compared = "two in one batch got the answers that each got alone"
        try:
            mixed = _mixed(both, session)
        except VerificationError as error:
            mixed = f"two of them are not run: {error.found}"
        return mixed, f"{runtime_name()}, random requests {asked}: {compared}"
    what = "The packaged model does not answer with anything that could be compared."
    fix = "give sizes that it accepts with --shapes, or look for overflow in the model; in Python, "
    fix += "check=False packages it as it is"
    raise VerificationError(what, found=problems[0], fix=fix)


def _mixed(both: dict[str, Array], session: Any) -> str:
    """Say how two requests in a batch differ from each alone; "" where they do not."""
    together = run_session(session, both)
    for row in (slice(0, 1), slice(1, 2)):
        alone = run_session(session, {name: array[row] for name, array in both.items()})
        for name, joined in together.items():
            if joined.shape[:1] != (2,) or joined[row].shape != alone[name].shape:
                return f"output {name!r} of 2 requests has the shape {list(joined.shape)}"
            bounds = Bounds(rtol=_BOUNDS.get(str(joined.dtype), 0.0))
            if not compare_output(name, joined[row], alone[name], bounds).passed:
                return f"output {name!r} of a request changes when another is joined"
    return ""
