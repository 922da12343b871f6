"""Compare two whole models in ONNX Runtime on the same inputs.

The default bound of an output is relative to its largest element: after many layers single small
elements are differences of large ones and carry no relative accuracy of their own.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rmsnorm_export.errors import Error, UsageError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.proof.inputs import (
    SIZE_CHOICES,
    check_inputs,
    declared_inputs,
    index_limits,
    make_inputs,
    read_npz,
)
from rmsnorm_export.proof.metrics import ErrorMetrics, compare_arrays
from rmsnorm_export.proof.runtime import open_session, run_session, runtime_name
from rmsnorm_export.proof.source import Source, Sourced, open_source

# Largest |a - b| over the largest |a|. A fused norm differs from its source by some units of
# roundoff (u), and each layer of a residual network passes such differences on about as large as
# they came; tens of layers make tens of u. float32: u = 6e-8, and the sums inside matrix products
# and softmax add to it; 1e-4 is 1700 u. float16: u = 4.9e-4; 1e-2 is 20 u. bfloat16: u = 3.9e-3;
# 4e-2 is 10 u. A wrong epsilon, weight or axis moves a trained model's logits by far more.
DEFAULT_RTOL = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}


@dataclasses.dataclass(frozen=True, slots=True)
class OutputComparison:
    """One output of the two models.

    Attributes:
        name: of the output.
        metrics: of the second model's values against the first model's.
        bound_abs: largest ``max_abs`` allowed: ``atol + rtol * (largest finite |a|)``.
        bound_ulp: largest ``max_ulp`` allowed; None: no such bound.
        passed: every bound held, and NaN and infinities agree.
        reason: the bound that failed, or "".
    """

    name: str
    metrics: ErrorMetrics
    bound_abs: float
    bound_ulp: float | None
    passed: bool
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of ``verify``.

    Attributes:
        passed: every output passed.
        reason: why not: the outputs that failed, with their bounds; or "".
        outputs: one entry per output of the first model, in its order.
        runtime: what computed both, e.g. ``onnxruntime 1.31.1 (CPU)``.
        optimized: whether ONNX Runtime's own graph optimization was on, for each model.
        inputs: what was fed, e.g. ``input_ids int64 [2, 3]``.
        source: where the inputs came from: ``random, seed 0``, a path, or ``given arrays``.
        notes: what the reader should know, e.g. that an output holds no finite number.
    """

    passed: bool
    reason: str
    outputs: tuple[OutputComparison, ...]
    runtime: str
    optimized: tuple[bool, bool]
    inputs: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()


def verify(
    a: Source | Sourced,
    b: Source | Sourced,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    max_ulp: float | None = None,
    optimize_a: bool = False,
    optimize_b: bool = True,
) -> Verification:
    """The public ``rmsnorm_export.verify``, on models that are well-formed; see there.

    Args:
        a, b: models; ``Sourced`` where they were read and checked already.
        inputs, shapes, seed, atol, rtol, max_ulp, optimize_a, optimize_b: as there.

    Raises:
        InputError, UsageError, VerificationError, BackendMissingError: as there.
    """
    _check_options(inputs, shapes, atol=atol, rtol=rtol, max_ulp=max_ulp)
    runtime = runtime_name()
    first, second = open_source(a), open_source(b)
    feeds, expected = _run_first(first, optimize_a, inputs, shapes or {}, seed)
    found = _run_second(second, optimize_b, feeds, expected)
    outputs = tuple(
        compare_output(name, found[name], array, atol=atol, rtol=rtol, max_ulp=max_ulp)
        for name, array in expected.items()
    )
    failed = [output for output in outputs if not output.passed]
    notes = [
        f"output {name!r} holds no finite number: it compares nothing"
        for name, array in expected.items()
        if array.dtype.kind not in "OSUbiu"
        and array.size
        and not np.isfinite(array.astype(np.float64)).any()
    ]
    if failed and optimize_b:
        plain = _run_second(second, False, feeds, expected)
        if all(
            compare_output(name, plain[name], array, atol=atol, rtol=rtol, max_ulp=max_ulp).passed
            for name, array in expected.items()
        ):
            notes.append(
                "the second model passes with ONNX Runtime's graph optimization disabled: the"
                " difference is made by that optimization"
            )
    return Verification(
        passed=not failed,
        reason="; ".join(f"{output.name}: {output.reason}" for output in failed),
        outputs=outputs,
        runtime=runtime,
        optimized=(optimize_a, optimize_b),
        inputs=tuple(
            f"{name} {'string' if array.dtype.kind == 'O' else array.dtype} {list(array.shape)}"
            for name, array in feeds.items()
        ),
        source=_describe(inputs, seed),
        notes=tuple(notes),
    )


def _check_options(inputs: object, shapes: object, **bounds: float | None) -> None:
    for name, value in bounds.items():
        if value is not None and not value >= 0:
            raise UsageError("a bound must be 0 or more", found=f"{name} = {value}", fix="raise it")
    if inputs is not None and shapes:
        raise UsageError(
            "shapes are for random inputs",
            found="inputs and shapes together",
            fix="leave one of them out",
        )


def _run_first(
    source: Sourced,
    optimize: bool,
    inputs: str | os.PathLike[str] | Mapping[str, Array] | None,
    shapes: Mapping[str, Sequence[int]],
    seed: int,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and outputs of the first model; its session is gone before the second one opens."""
    session = _open(source, optimize)
    declared = declared_inputs(session)
    if inputs is not None:
        given = dict(inputs) if isinstance(inputs, Mapping) else read_npz(inputs)
        feeds = check_inputs(given, declared)
        return feeds, run_session(session, feeds)
    limits = index_limits(source.model)
    failure: Error | None = None
    for sizes in SIZE_CHOICES:
        feeds = make_inputs(declared, limits, shapes=shapes, sizes=sizes, seed=seed)
        try:
            return feeds, run_session(session, feeds)
        except VerificationError as error:
            failure = failure or error
    raise VerificationError(
        "the first model does not run on random inputs",
        found=failure.found if failure is not None else "",
        fix="give the sizes of its inputs with shapes, or the inputs themselves",
    )


def _run_second(
    source: Sourced, optimize: bool, feeds: Mapping[str, Array], expected: Mapping[str, Array]
) -> dict[str, Array]:
    session = _open(source, optimize)
    wanted = declared_inputs(session)
    missing = sorted(wanted.keys() - feeds.keys())
    if missing:
        raise VerificationError(
            "the second model has inputs that the first one lacks",
            found=", ".join(map(repr, missing)),
            fix="compare models with the same inputs",
        )
    for name, declared in wanted.items():
        if declared.dtype != feeds[name].dtype:
            raise VerificationError(
                "an input has different types in the two models",
                found=f"{name!r}: {feeds[name].dtype} and {declared.dtype}",
                fix="compare models with the same inputs",
            )
    lacking = sorted(expected.keys() - {output.name for output in session.get_outputs()})
    if lacking:
        raise VerificationError(
            "the second model lacks outputs of the first one",
            found=", ".join(map(repr, lacking)),
            fix="compare models with the same outputs",
        )
    found = run_session(session, {name: feeds[name] for name in wanted})
    for name, array in expected.items():
        if found[name].shape != array.shape or found[name].dtype != array.dtype:
            raise VerificationError(
                "an output has different types or shapes in the two models",
                found=f"{name!r}: {array.dtype} {list(array.shape)} and"
                f" {found[name].dtype} {list(found[name].shape)}",
                fix="compare models that compute the same",
            )
    return found


def _open(source: Sourced, optimize: bool) -> Any:
    try:
        return open_session(
            source.content, optimize=optimize, external_folder=source.external_folder
        )
    except VerificationError as error:
        error.what = f"{error.what}: {source.description}"
        raise


def compare_output(
    name: str,
    found: Array,
    expected: Array,
    *,
    atol: float | None,
    rtol: float | None,
    max_ulp: float | None,
) -> OutputComparison:
    """One output against what it should be.

    Args:
        name: of the output.
        found, expected: arrays of one type and shape.
        atol, rtol, max_ulp: bounds, as for ``verify``; with neither atol nor rtol, the default
            rtol of the type.
    """
    metrics = compare_arrays(found, expected)
    if rtol is None:
        rtol = DEFAULT_RTOL.get(metrics.dtype, 0.0) if atol is None else 0.0
    bound = (atol or 0.0) + (rtol * _largest(expected) if rtol else 0.0)
    reason = ""
    if not metrics.nan_inf_agree:
        reason = "NaN or infinities in different places"
    elif metrics.max_abs > bound:
        reason = f"largest difference {metrics.max_abs:.3g}, {bound:.3g} allowed"
    elif max_ulp is not None and metrics.max_ulp > max_ulp:
        reason = f"largest difference {metrics.max_ulp:g} ulp, {max_ulp:g} allowed"
    return OutputComparison(name, metrics, bound, max_ulp, not reason, reason)


def _largest(array: Array) -> float:
    if array.dtype.kind in "OSU":
        return 0.0
    sizes = np.abs(array.astype(np.float64))
    return float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))


def _describe(inputs: str | os.PathLike[str] | Mapping[str, Array] | None, seed: int) -> str:
    if inputs is None:
        return f"random, seed {seed}"
    return "given arrays" if isinstance(inputs, Mapping) else os.fspath(inputs)
