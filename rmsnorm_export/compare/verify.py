"""``verify`` as users call it: any two models, each on the backend that is to run it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmsnorm_export.compare.backend import Answer, Backend
from rmsnorm_export.compare.backends import choose_backend, open_backends
from rmsnorm_export.compare.locate import locate_difference
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.outputs import (
    Bounds,
    compare_outputs,
    describe_feeds,
    failed_outputs,
    pair_outputs,
)
from rmsnorm_export.compare.result import NOTHING_COMPARED, Verification
from rmsnorm_export.errors import Error, UsageError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.options import takes
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.runtime.inputs import (
    SIZE_CHOICES,
    array_type,
    check_inputs,
    input_shapes,
    make_inputs,
    read_npz,
)

if TYPE_CHECKING:
    from rmsnorm_export.compare.backends import Model


@takes(VerifyOptions)
def verify(a: Model, b: Model, options: VerifyOptions) -> Verification:
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
    first, second = open_backends(
        *(
            choose_backend(model, choice, optimize=optimize, trust_source=options.trust_source)
            for model, choice, optimize in (
                (a, options.backend_a, options.optimize_a),
                (b, options.backend_b, options.optimize_b),
            )
        )
    )
    reduced = dict.fromkeys(side.reduced for side in (first, second) if side.reduced)
    bounds = Bounds(options.atol, options.rtol, options.max_ulp, "; ".join(reduced))
    feeds, source, answer = _run_first(first, second, options)
    expected, computed = pair_outputs(answer, _run_second(second, feeds))
    outputs = compare_outputs(expected, computed, bounds)
    notes = [*first.notes, *second.notes]
    passed = all(output.passed for output in outputs)
    difference = None
    if any(not output.passed and output.reason not in NOTHING_COMPARED for output in outputs):
        plain, note = _without_optimization(second, feeds, answer, bounds)
        notes += [note] if note else []
        if options.bisect:
            reference = first if plain is second else first.plain() or first
            sides, values = (reference, plain), (expected, computed)
            differing = [o for o in outputs if o.reason not in NOTHING_COMPARED]
            difference, note = locate_difference(sides, feeds, differing, values, bounds)
            notes += [note] if note else []
    return Verification(
        passed=passed,
        reason=failed_outputs(outputs),
        outputs=outputs,
        runtime=" and ".join(dict.fromkeys((first.runtime, second.runtime))),
        optimized=(first.optimized, second.optimized),
        inputs=describe_feeds(feeds),
        source=source,
        notes=tuple(notes),
        backends=(first.name, second.name),
        first_difference=difference,
    )


def _without_optimization(
    b: Backend, feeds: Mapping[str, Array], first: Answer, bounds: Bounds
) -> tuple[Backend, str]:
    """The model on which to look for the place, and what the reader should know of that.

    Where the models differ without the runtime's optimization too, that keeps out of the search.
    """
    plain = b.plain()
    if plain is None:
        return b, ""
    outputs = compare_outputs(*pair_outputs(first, _run_second(plain, feeds)), bounds)
    if not all(output.passed for output in outputs):
        return plain, ""
    return b, (
        f"the second model passes with {b.optimization} disabled: the difference is made by that"
        " optimization"
    )


def _run_first(
    a: Backend, b: Backend, options: VerifyOptions
) -> tuple[dict[str, Array], str, Answer]:
    """Inputs, where they came from, and the first model's outputs; it is closed afterwards."""
    inputs = options.inputs
    with a.running() as run:
        declared = a.declared()
        if declared is None:
            declared = b.declared()
        if inputs is not None:
            feeds = dict(inputs) if isinstance(inputs, Mapping) else read_npz(inputs)
            source = "given arrays" if isinstance(inputs, Mapping) else os.fspath(inputs)
            if declared is not None:
                feeds = check_inputs(feeds, declared)
            return feeds, source, run(feeds)
        if declared is None:
            feeds = _example_feeds(a, b, options.shapes or options.dims)
            return feeds, "the example inputs of the module", run(feeds)
        limits = a.limits(declared) or b.limits(declared)
        usual = {**a.shapes(), **b.shapes()}
        failure: Error | None = None
        for sizes in SIZE_CHOICES:
            every = input_shapes(declared, options.shapes, options.dims, usual=usual, sizes=sizes)
            feeds = make_inputs(declared, limits, every, seed=options.seed)
            try:
                return feeds, f"random, seed {options.seed}", run(feeds)
            except VerificationError as error:
                failure = failure or error
    raise VerificationError(
        "The first model does not run on random inputs.",
        found=failure.found if failure is not None else "",
        fix="give the sizes of its inputs with shapes, or the inputs themselves",
    )


def _example_feeds(a: Backend, b: Backend, shapes: object) -> dict[str, Array]:
    """Inputs for two models of which neither says what it takes."""
    examples = (side.example() for side in (a, b))
    example = next((one for one in examples if one is not None), None)
    if example is None or shapes:
        raise UsageError(
            "The inputs of two PyTorch models are not known.",
            found="shapes without types" if shapes else "neither has example inputs",
            fix="give the inputs themselves, by the names of forward's parameters",
        )
    return dict(example)


def _run_second(b: Backend, feeds: Mapping[str, Array]) -> Answer:
    """The outputs of the second model; it is closed afterwards."""
    with b.running() as run:
        declared = b.declared()
        if declared is None:
            return run(feeds)
        _check_interface(declared, feeds)
        return run({name: feeds[name] for name in declared})


def _check_interface(declared: Mapping[str, Declared], feeds: Mapping[str, Array]) -> None:
    if missing := sorted(declared.keys() - feeds.keys()):
        raise VerificationError(
            "The second model has inputs that the first one lacks.",
            found=", ".join(map(repr, missing)),
            fix="compare models with the same inputs",
        )
    for name, one in declared.items():
        if one.dtype != array_type(feeds[name].dtype):
            raise VerificationError(
                "An input has different types in the two models.",
                found=f"{name!r}: {array_type(feeds[name].dtype)} and {one.dtype}",
                fix="compare models with the same inputs",
            )
