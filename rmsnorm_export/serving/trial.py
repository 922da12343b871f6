"""The packaged model in ONNX Runtime: it loads, answers what the server will warm it with, and
joined requests have the answers that they have alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_export.errors import BackendMissingError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.input_sizes import Declared, InputSizes
from rmsnorm_export.runtime.inputs import (
    SIZE_CHOICES,
    declared_inputs,
    index_limits,
    make_inputs,
    numpy_type,
)
from rmsnorm_export.runtime.metrics import is_float
from rmsnorm_export.runtime.session import NoKernelError, open_session, run_session, runtime_name
from rmsnorm_export.runtime.sizes import RANGES
from rmsnorm_export.serving.batching import RequestShapes, request_shapes
from rmsnorm_export.serving.result import PackageCheck
from rmsnorm_export.serving.served_model import ServedModel
from rmsnorm_export.tensorrt.engine.result import EngineProfile

# Largest difference relative to the largest element: a product of matrices of another height is
# summed in another order, nothing more. A mean over the batch differs by orders of magnitude more.
_BOUNDS = {"float64": 1e-6, "float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}

_SEED = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """What ONNX Runtime said.

    Attributes:
        samples: shapes that the model answered, the usual one first.
        warm: it answers zeros for integers, which is what the server can send by itself.
        mixed: how joined requests change each other's answers; "" when they do not.
    """

    samples: tuple[RequestShapes, ...]
    warm: bool
    mixed: str
    checks: tuple[PackageCheck, ...]


def untried(
    subject: ServedModel, max_batch: int, profile: EngineProfile | None, reason: str
) -> Trial:
    """What is assumed where the model is not run."""
    samples = request_shapes(subject.inputs, max_batch, profile, SIZE_CHOICES[0])
    return Trial(samples, True, "", (PackageCheck("answers in ONNX Runtime", "skipped", reason),))


def try_model(
    path: Path, subject: ServedModel, max_batch: int, profile: EngineProfile | None
) -> Trial:
    """Load the packaged model on the CPU and ask it; without a profile, small sizes are tried.

    Raises:
        VerificationError: ONNX Runtime rejects the model, or it answers no request.
    """
    try:
        session = open_session(path, optimize=True)
    except BackendMissingError as error:
        return untried(subject, max_batch, profile, f"{error.found}; {error.fix}")
    except NoKernelError as error:
        return untried(subject, max_batch, profile, f"not on the CPU: {error.found}")
    declared = declared_inputs(session)
    limits = index_limits(subject.loaded.model)
    samples = _answered(session, subject, declared, limits, max_batch, profile)
    how = f"{runtime_name()}, {' and '.join(_request_words(shapes) for shapes in samples)}"
    checks = [PackageCheck("answers in ONNX Runtime", "passed", how)]
    warm = True
    try:
        for shapes in samples:
            run_session(session, warm_feeds(declared, shapes))
    except VerificationError:
        warm = False
    mixed = _mixed(session, declared, limits, samples[0]) if max_batch > 1 else ""
    if max_batch > 1 and not mixed:
        checks.append(PackageCheck("joined requests", "passed", "answers are those of each alone"))
    return Trial(samples, warm, mixed, tuple(checks))


def answers(path: Path, shapes: RequestShapes, subject: ServedModel) -> PackageCheck:
    """The model in its final place: it loads and answers.

    Raises:
        VerificationError: it does not.
    """
    session = open_session(path, optimize=True)
    limits = index_limits(subject.loaded.model)
    run_session(session, _feeds(declared_inputs(session), limits, shapes))
    return PackageCheck("answers from its final place", "passed", runtime_name())


def warm_feeds(declared: Mapping[str, Declared], shapes: RequestShapes) -> dict[str, Array]:
    """What the server warms the model with: random floats, zeros (empty strings) else."""
    rng = np.random.default_rng(_SEED)
    feeds: dict[str, Array] = {}
    for name, tensor in declared.items():
        shape = shapes[name]
        dtype = numpy_type(tensor.dtype)
        if is_float(dtype):
            feeds[name] = rng.standard_normal(shape).astype(dtype)
        else:
            feeds[name] = np.full(shape, "" if tensor.dtype == "string" else 0, dtype)
    return feeds


def _feeds(
    declared: Mapping[str, Declared], limits: Mapping[str, int], shapes: RequestShapes
) -> dict[str, Array]:
    return make_inputs(declared, limits, shapes, seed=_SEED)


def _answered(
    session: Any,
    subject: ServedModel,
    declared: Mapping[str, Declared],
    limits: Mapping[str, int],
    max_batch: int,
    profile: EngineProfile | None,
) -> tuple[RequestShapes, ...]:
    """Shapes of requests that the model answers, from the first choice of sizes that it does."""
    failure = ""
    for sizes in SIZE_CHOICES if profile is None else SIZE_CHOICES[:1]:
        samples = request_shapes(subject.inputs, max_batch, profile, sizes)
        try:
            for shapes in samples:
                run_session(session, _feeds(declared, limits, shapes))
        except VerificationError as error:
            failure = failure or error.found
            continue
        return samples
    example = InputSizes(subject.inputs, RANGES).example()
    example = f", in the way of {example}" if example else ""
    raise VerificationError(
        "The packaged model answers no request in ONNX Runtime.",
        found=failure,
        fix=f"leave the check out with --no-check, or give sizes that it accepts{example}",
    )


def _mixed(
    session: Any, declared: Mapping[str, Declared], limits: Mapping[str, int], shapes: RequestShapes
) -> str:
    """How two requests in a batch differ from each alone."""
    both = _feeds(declared, limits, {name: (2, *shape[1:]) for name, shape in shapes.items()})
    together = run_session(session, both)
    for number in range(2):
        alone = run_session(session, {k: v[number : number + 1] for k, v in both.items()})
        for name, answer in together.items():
            if answer.shape[:1] != (2,):
                return f"output {name!r} of 2 requests has the shape {list(answer.shape)}"
            if problem := _differs(answer[number : number + 1], alone[name]):
                return f"output {name!r} of a request changes when another is joined: {problem}"
    return ""


def _differs(joined: Array, alone: Array) -> str:
    if joined.shape != alone.shape:
        return f"its shape is {list(joined.shape)}, alone {list(alone.shape)}"
    if not is_float(joined.dtype):
        return "" if np.array_equal(joined, alone) else "its values differ"
    a, b = joined.astype(np.float64), alone.astype(np.float64)
    scale = float(np.nanmax(np.abs(b), initial=0.0, where=np.isfinite(b)))
    bound = _BOUNDS[str(joined.dtype)] * scale
    if np.allclose(a, b, rtol=0.0, atol=bound, equal_nan=True):
        return ""
    return f"by up to {float(np.nanmax(np.abs(a - b))):.3g} where {bound:.3g} is allowed"


def _request_words(shapes: RequestShapes) -> str:
    return ", ".join(f"{k} {'x'.join(map(str, v)) or 'scalar'}" for k, v in shapes.items())
