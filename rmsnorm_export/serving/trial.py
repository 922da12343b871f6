"""The packaged model in ONNX Runtime: it loads, answers what the server will warm it with, and
joined requests have the answers that they have alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rmsnorm_export.errors import BackendMissingError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.input_sizes import InputSizes
from rmsnorm_export.runtime.inputs import (
    SIZE_CHOICES,
    declared_inputs,
    index_limits,
    make_inputs,
    numpy_type,
)
from rmsnorm_export.runtime.metrics import is_float, without_evidence
from rmsnorm_export.runtime.session import NoKernelError, open_session, run_session, runtime_name
from rmsnorm_export.runtime.sizes import RANGES
from rmsnorm_export.serving.batching import RequestShapes, request_shapes
from rmsnorm_export.serving.result import Outcome, PackageCheck
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
        positive: it answered numbers only where no float of the request was negative.
    """

    samples: tuple[RequestShapes, ...]
    warm: bool
    mixed: str
    checks: tuple[PackageCheck, ...]
    positive: bool = False


def untried(
    subject: ServedModel,
    max_batch: int,
    profile: EngineProfile | None,
    outcome: Outcome,
    reason: str,
) -> Trial:
    """What is assumed where the model is not run."""
    samples = request_shapes(subject.inputs, max_batch, profile, SIZE_CHOICES[0])
    return Trial(samples, True, "", (PackageCheck("answers in ONNX Runtime", outcome, reason),))


class _Asked:
    """The packaged model on the CPU, and the requests that it is sent.

    With ``positive`` no float of a request is negative, as a model with its epsilon or temperature
    as an input may need to answer with numbers.
    """

    def __init__(self, path: Path, subject: ServedModel, kernels: Path | None) -> None:
        self._session = open_session(path, optimize=True, kernels=kernels)
        self._declared = declared_inputs(self._session)
        self._limits = index_limits(subject.loaded.model)
        self.positive = False

    def feeds(self, shapes: RequestShapes) -> dict[str, Array]:
        """A random request."""
        feeds = make_inputs(self._declared, self._limits, shapes, seed=_SEED)
        if not self.positive:
            return feeds
        # The absolute value of a scalar would be no array.
        return {k: np.asarray(np.abs(v)) if is_float(v.dtype) else v for k, v in feeds.items()}

    def warm_feeds(self, shapes: RequestShapes) -> dict[str, Array]:
        """What the server warms the model with: random floats, zeros (empty strings) else."""
        rng = np.random.default_rng(_SEED)
        feeds: dict[str, Array] = {}
        for name, tensor in self._declared.items():
            dtype = numpy_type(tensor.dtype)
            if is_float(dtype):
                feeds[name] = rng.standard_normal(shapes[name]).astype(dtype)
            else:
                feeds[name] = np.full(shapes[name], "" if tensor.dtype == "string" else 0, dtype)
        return feeds

    def answer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs.

        Raises:
            VerificationError: there are none.
        """
        return run_session(self._session, feeds)

    def lacking(self, shapes: RequestShapes) -> str:
        """The first output of a random request that says nothing of the model; "" without one."""
        for name, why in without_evidence(self.answer(self.feeds(shapes))).items():
            return f"output {name!r} has {why}"
        return ""

    def words(self, samples: Sequence[RequestShapes]) -> str:
        """What ran and was asked."""
        texts = (
            ", ".join(f"{k} {'x'.join(map(str, shape)) or 'scalar'}" for k, shape in one.items())
            for one in samples
        )
        kind = "random positive" if self.positive else "random"
        return f"{runtime_name()}, {kind} {' and '.join(texts)}"


def try_model(
    path: Path,
    subject: ServedModel,
    max_batch: int,
    profile: EngineProfile | None,
    kernels: Path | None = None,
) -> Trial:
    """Load the packaged model on the CPU and ask it; without a profile, small sizes are tried.

    Raises:
        VerificationError: ONNX Runtime rejects the model, or it answers no request, or with nothing
            to compare.
    """
    try:
        model = _Asked(path, subject, kernels)
    except BackendMissingError as error:
        return untried(subject, max_batch, profile, "not run", f"{error.found}; {error.fix}")
    except NoKernelError as error:
        return untried(subject, max_batch, profile, "not run", f"not on the CPU: {error.found}")
    samples = _answered(model, subject, max_batch, profile)
    how = f"{model.words(samples)}; every output of floats has finite numbers"
    checks = [PackageCheck("answers in ONNX Runtime", "passed", how)]
    warm = True
    try:
        for shapes in samples:
            model.answer(model.warm_feeds(shapes))
    except VerificationError:
        warm = False
    mixed = _mixed(model, samples[0]) if max_batch > 1 else ""
    if max_batch > 1 and not mixed:
        checks.append(PackageCheck("joined requests", "passed", "answers are those of each alone"))
    return Trial(samples, warm, mixed, tuple(checks), model.positive)


def answers(
    path: Path, trial: Trial, subject: ServedModel, kernels: Path | None = None
) -> PackageCheck:
    """The model in its final place: it loads and answers.

    Raises:
        VerificationError: it does not.
    """
    model = _Asked(path, subject, kernels)
    model.positive = trial.positive
    asked = model.words(trial.samples[:1])
    if lacking := model.lacking(trial.samples[0]):
        raise _without_numbers(f"{lacking}; {asked}, from its final place")
    return PackageCheck("answers from its final place", "passed", asked)


def _without_numbers(found: str) -> VerificationError:
    return VerificationError(
        "The packaged model answers with nothing that could be compared.",
        found=found,
        fix="look for overflow in the model; --no-check packages it as it is",
    )


def _answered(
    model: _Asked, subject: ServedModel, max_batch: int, profile: EngineProfile | None
) -> tuple[RequestShapes, ...]:
    """Shapes of requests that the model answers with numbers, from the first choice of sizes that
    it does; where there is none, of positive requests."""
    failure = lacking = ""
    choices = SIZE_CHOICES if profile is None else SIZE_CHOICES[:1]
    for model.positive in (False, True):
        for sizes in choices:
            samples = request_shapes(subject.inputs, max_batch, profile, sizes)
            try:
                empty = next(filter(None, map(model.lacking, samples)), "")
            except VerificationError as error:
                failure = failure or error.found
                continue
            if not empty:
                return samples
            lacking = lacking or f"{empty}; {model.words(samples)}"
        if not lacking:
            break
    if lacking:
        raise _without_numbers(lacking)
    example = InputSizes(subject.inputs, RANGES).example()
    example = f", in the way of {example}" if example else ""
    raise VerificationError(
        "The packaged model answers no request in ONNX Runtime.",
        found=failure,
        fix=f"leave the check out with --no-check, or give sizes that it accepts{example}",
    )


def _mixed(model: _Asked, shapes: RequestShapes) -> str:
    """How two requests in a batch differ from each alone."""
    both = model.feeds({name: (2, *shape[1:]) for name, shape in shapes.items()})
    together = model.answer(both)
    for number in range(2):
        alone = model.answer({k: v[number : number + 1] for k, v in both.items()})
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
