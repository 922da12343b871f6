"""Run two models on the same inputs and compare every output of the first with the second's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

import numpy as np

from rmsnorm_export.compare.locate import locate
from rmsnorm_export.compare.result import Bounds, OutputComparison, Verification, compare_output
from rmsnorm_export.compare.side import Answer, Side
from rmsnorm_export.errors import Error, UsageError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.inputs import (
    SIZE_CHOICES,
    Declared,
    check_inputs,
    make_inputs,
    read_npz,
    type_name,
)

Inputs = str | os.PathLike[str] | Mapping[str, Array] | None


def check_options(inputs: object, shapes: object, **bounds: float | None) -> None:
    """Refuse options that make no sense.

    Raises:
        UsageError: naming the option.
    """
    for name, value in bounds.items():
        if value is not None and not value >= 0:
            raise UsageError("a bound must be 0 or more", found=f"{name} = {value}", fix="raise it")
    if inputs is not None and shapes:
        raise UsageError(
            "shapes are for random inputs",
            found="inputs and shapes together",
            fix="leave one of them out",
        )


def compare(
    a: Side,
    b: Side,
    *,
    inputs: Inputs,
    shapes: Mapping[str, Sequence[int]],
    seed: int,
    bounds: Bounds,
    bisect: bool,
) -> Verification:
    """``rmsnorm_export.verify`` on models that are made ready; see there.

    Args:
        a, b: the reference and the model to check.
        inputs, shapes, seed, bisect: as there.
        bounds: as given; what the backends' arithmetic needs is added here.

    Raises:
        InputError, UsageError, VerificationError, BackendMissingError: as there.
    """
    reduced = "; ".join(dict.fromkeys(side.reduced for side in (a, b) if side.reduced))
    bounds = dataclasses.replace(bounds, reduced=reduced)
    feeds, source, first = _run_first(a, b, inputs, shapes, seed)
    expected, found = paired(first, _run_second(b, feeds))
    outputs = judge(expected, found, bounds)
    failed = [output for output in outputs if not output.passed]
    notes = [
        f"output {name!r} holds no finite number: it compares nothing"
        for name, array in expected.items()
        if array.dtype.kind not in "OSUbiu"
        and array.size
        and not np.isfinite(array.astype(np.float64)).any()
    ]
    difference = None
    if failed:
        plain, note = _without_optimization(b, feeds, first, bounds)
        notes += [note] if note else []
        if bisect:
            reference = (a.plain() or a) if plain is not b else a
            sides, values = (reference, plain), (expected, found)
            difference, note = locate(sides, feeds, outputs, values, bounds)
            notes += [note] if note else []
    return Verification(
        passed=not failed,
        reason="; ".join(f"{output.name}: {output.reason}" for output in failed),
        outputs=outputs,
        runtime=" and ".join(dict.fromkeys((a.runtime, b.runtime))),
        optimized=(a.optimized, b.optimized),
        inputs=tuple(
            f"{name} {type_name(array.dtype)} {list(array.shape)}" for name, array in feeds.items()
        ),
        source=source,
        notes=tuple(notes),
        backends=(a.backend, b.backend),
        first_difference=difference,
    )


def judge(
    expected: Mapping[str, Array], found: Mapping[str, Array], bounds: Bounds
) -> tuple[OutputComparison, ...]:
    """Every output of the first model against the one of the same name."""
    given = dataclasses.asdict(bounds)
    return tuple(
        compare_output(name, found[name], array, **given) for name, array in expected.items()
    )


def _without_optimization(
    b: Side, feeds: Mapping[str, Array], first: Answer, bounds: Bounds
) -> tuple[Side, str]:
    """The side on which to look for the place, and what the reader should know of that.

    Where the models differ without ONNX Runtime's optimization too, that keeps out of the search.
    """
    plain = b.plain()
    if plain is None:
        return b, ""
    expected, found = paired(first, _run_second(plain, feeds))
    if not all(output.passed for output in judge(expected, found, bounds)):
        return plain, ""
    also = " (and TF32)" if b.backend == "onnxruntime-cuda" else ""
    return b, (
        f"the second model passes with ONNX Runtime's graph optimization{also} disabled: the"
        " difference is made by that optimization"
    )


def _run_first(
    a: Side, b: Side, inputs: Inputs, shapes: Mapping[str, Sequence[int]], seed: int
) -> tuple[dict[str, Array], str, Answer]:
    """Inputs, where they came from, and the first model's outputs; it is closed afterwards."""
    with a.open() as runner:
        declared = runner.declared
        if declared is None:
            declared = b.declared()
        if inputs is not None:
            feeds = dict(inputs) if isinstance(inputs, Mapping) else read_npz(inputs)
            source = "given arrays" if isinstance(inputs, Mapping) else os.fspath(inputs)
            if declared is not None:
                feeds = check_inputs(feeds, declared)
            return feeds, source, runner.run(feeds)
        if declared is None:
            feeds = dict(_example(a, b, shapes))
            return feeds, "the example inputs of the module", runner.run(feeds)
        limits = a.limits(declared) or b.limits(declared)
        wanted = {**a.shapes(), **b.shapes()}
        wanted = {name: size for name, size in wanted.items() if name in declared} | dict(shapes)
        failure: Error | None = None
        for sizes in SIZE_CHOICES:
            feeds = make_inputs(declared, limits, shapes=wanted, sizes=sizes, seed=seed)
            try:
                return feeds, f"random, seed {seed}", runner.run(feeds)
            except VerificationError as error:
                failure = failure or error
    raise VerificationError(
        "the first model does not run on random inputs",
        found=failure.found if failure is not None else "",
        fix="give the sizes of its inputs with shapes, or the inputs themselves",
    )


def _example(a: Side, b: Side, shapes: Mapping[str, Sequence[int]]) -> Mapping[str, Array]:
    """Inputs for two models of which neither says what it takes."""
    found = a.example()
    if found is None:
        found = b.example()
    if found is None or shapes:
        raise UsageError(
            "The inputs of two PyTorch models are not known.",
            found="shapes without types" if shapes else "neither has example inputs",
            fix="give the inputs themselves, by the names of forward's parameters",
        )
    return found


def _run_second(b: Side, feeds: Mapping[str, Array]) -> Answer:
    with b.open() as runner:
        wanted = runner.declared
        if wanted is None:
            return runner.run(feeds)
        _check_interface(wanted, feeds)
        return runner.run({name: feeds[name] for name in wanted})


def _check_interface(wanted: Mapping[str, Declared], feeds: Mapping[str, Array]) -> None:
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


def paired(first: Answer, second: Answer) -> tuple[dict[str, Array], dict[str, Array]]:
    """The outputs of both by one name each: by name where both have names, else in order.

    Raises:
        VerificationError: they cannot be paired, or differ in type or shape.
    """
    names = first.names if first.named or not second.named else second.names
    if first.named and second.named:
        lacking = sorted(set(first.names) - set(second.names))
        if lacking:
            raise VerificationError(
                "the second model lacks outputs of the first one",
                found=", ".join(map(repr, lacking)),
                fix="compare models with the same outputs",
            )
        by_name = dict(zip(second.names, second.arrays, strict=True))
        arrays = tuple(by_name[name] for name in first.names)
    else:
        arrays = second.arrays
        if len(first.arrays) != len(arrays):
            raise VerificationError(
                "the two models have different numbers of outputs",
                found=f"{len(first.arrays)} ({', '.join(first.names)}) and {len(arrays)}"
                f" ({', '.join(second.names)})",
                fix="compare models with the same outputs",
            )
    expected = dict(zip(names, first.arrays, strict=True))
    found = dict(zip(names, arrays, strict=True))
    for name, array in expected.items():
        if found[name].shape != array.shape or found[name].dtype != array.dtype:
            raise VerificationError(
                "an output has different types or shapes in the two models",
                found=f"{name!r}: {array.dtype} {list(array.shape)} and"
                f" {found[name].dtype} {list(found[name].shape)}",
                fix="compare models that compute the same",
            )
    return expected, found
