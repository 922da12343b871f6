"""``verify`` as users call it: any two models, each on the backend that is to run it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rmsnorm_export.compare.backend import Answer, Backend, Chosen
from rmsnorm_export.compare.backends import choose_backend, open_backends
from rmsnorm_export.compare.bisect import locate_difference
from rmsnorm_export.compare.onnx_backend import OnnxRuntime
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.outputs import (
    Bounds,
    coarser_type,
    compare_outputs,
    describe_feeds,
    failed_outputs,
    pair_outputs,
)
from rmsnorm_export.compare.result import OutputComparison, Verification, not_run
from rmsnorm_export.errors import Error, InputError, NotRunError, UsageError, VerificationError
from rmsnorm_export.graph.bundle import bundle_at
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.options import takes
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.runtime.inputs import (
    SIZE_CHOICES,
    array_type,
    check_inputs,
    input_shapes,
    make_inputs,
    numpy_type,
    read_npz,
)
from rmsnorm_export.runtime.metrics import NOTHING_COMPARED, is_float, narrower, nonfinite_agree
from rmsnorm_export.runtime.session import runtime_name

if TYPE_CHECKING:
    from rmsnorm_export.compare.backends import Model


@takes(VerifyOptions)
def verify(a: Model, b: Model, options: VerifyOptions) -> Verification:
    """Run two models on the same inputs and compare every output of ``a`` with ``b``'s.

    A model is an ONNX file (needed above 2 GB), its bytes, ``onnx.ModelProto`` or
    ``onnx_ir.Model``; a ``torch.nn.Module``, ``ExportedProgram`` or ``.pt2`` file; or an engine of
    TensorRT or TensorRT-RTX. ONNX models run in ONNX Runtime, on the CPU, unless a backend is
    given; with ``tensorrt`` or ``tensorrt-rtx`` an engine is built in a temporary folder, for the
    shapes of the inputs, and run. Two folders of graphs, such as ``export_generation`` makes, are
    compared component by component. Where two backends compute with unlike digits, as with TF32,
    the default bound is wider, and each output says why (``OutputComparison.tolerance``).

    Args:
        a: the reference.
        b: the model to check, with the inputs and outputs of ``a`` by name; those of a PyTorch
            module are taken in order.

    Returns:
        The comparison; it does not raise when a bound fails, nor where a backend has no kernel for
        a model, or lacks an operator of it: the verdict is ``not run`` then.

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
    if options.generate is not None:
        from rmsnorm_export.compare.generation import verify_export

        return verify_export(a, b, options, verify)
    folders = bundle_at(a), bundle_at(b)
    if folders[0] is not None and folders[1] is not None:
        from rmsnorm_export.compare.folder import verify_folders

        return verify_folders(folders[0], folders[1], options, verify)
    if folders[0] is not None or folders[1] is not None:
        raise UsageError(
            "A folder of graphs is compared with another one, or with PyTorch token by token.",
            found="one of the two models is a folder of graphs",
            fix="give two folders; or a model of transformers and its export, with --generate N",
        )
    first, second = open_backends(
        *(
            choose_backend(model, choice, optimize=optimize, trust_source=options.trust_source)
            for model, choice, optimize in (
                (a, options.backend_a, options.optimize_a),
                (b, options.backend_b, options.optimize_b),
            )
        )
    )
    return _verify(first, second, options)


def _verify(first: Backend, second: Backend, options: VerifyOptions) -> Verification:
    reduced = dict.fromkeys(side.reduced for side in (first, second) if side.reduced)
    bounds = Bounds(
        options.atol,
        options.rtol,
        options.max_ulp,
        "; ".join(reduced),
        coarser_type(first.weights_type, second.weights_type),
    )
    how: Any = {
        "runtime": " and ".join(dict.fromkeys((first.runtime, second.runtime))),
        "optimized": (first.optimized, second.optimized),
        "backends": (first.name, second.name),
    }
    notes = [*first.notes, *second.notes]
    try:
        feeds, source, answer = _run_first(first, second, options)
        computed_by = _run_second(second, feeds)
    except NotRunError as error:
        return not_run(error, notes=tuple(notes), **how)
    expected, computed = pair_outputs(answer, computed_by)
    outputs = compare_outputs(expected, computed, bounds)
    difference = None
    if any(not output.passed and output.reason not in NOTHING_COMPARED for output in outputs):
        plain, note = _without_optimization(second, feeds, answer, bounds)
        notes += [note] if note else []
        if options.bisect:
            reference = first if plain is second else first.plain() or first
            sides, values = (reference, plain), (expected, computed)
            differing = [o for o in outputs if o.reason not in NOTHING_COMPARED]
            fed = (_taken_by(reference, feeds), _taken_by(plain, feeds))
            difference, note = locate_difference(sides, fed, differing, values, bounds)
            notes += [note] if note else []
    return Verification(
        passed=all(output.passed for output in outputs),
        reason=failed_outputs(outputs),
        outputs=outputs,
        inputs=describe_feeds(feeds),
        source=source,
        notes=tuple(notes),
        first_difference=difference,
        **how,
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
            feeds = _rounded(feeds, a, b)
            return feeds, source, run(_taken_by(a, feeds))
        if declared is None:
            feeds = _rounded(_example_feeds(a, b, options.shapes or options.dims), a, b)
            return feeds, "the example inputs of the module", run(_taken_by(a, feeds))
        limits = a.limits(declared) or b.limits(declared)
        usual = {**a.shapes(), **b.shapes()}
        failure: Error | None = None
        for sizes in SIZE_CHOICES:
            every = input_shapes(declared, options.shapes, options.dims, usual=usual, sizes=sizes)
            feeds = _rounded(make_inputs(declared, limits, every, seed=options.seed), a, b)
            try:
                return feeds, f"random, seed {options.seed}", run(_taken_by(a, feeds))
            except NotRunError:
                raise
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
        feeds = _taken_by(b, feeds)
        if declared is None:
            return run(feeds)
        _check_interface(declared, feeds)
        return run({name: feeds[name] for name in declared})


def _float_types(side: Backend, feeds: Mapping[str, Array]) -> dict[str, np.dtype[Any]]:
    """The types that a model takes float inputs in."""
    declared = side.declared()
    types = {}
    for name, array in feeds.items():
        if is_float(array.dtype):
            known = None if declared is None else declared.get(name)
            taken = side.float_type if known is None else known.dtype
            dtype = numpy_type(taken) if taken else array.dtype
            types[name] = dtype if is_float(dtype) else array.dtype
    return types


def _taken_by(side: Backend, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs in the float types that a model takes."""
    types = _float_types(side, feeds)
    return {name: array.astype(types.get(name, array.dtype)) for name, array in feeds.items()}


def _rounded(feeds: Mapping[str, Array], a: Backend, b: Backend) -> dict[str, Array]:
    """Float inputs in the narrower of the types that the models take them in: both get the same.

    Raises:
        InputError: an element is too large for it.
    """
    rounded = dict(feeds)
    first, second = _float_types(a, feeds), _float_types(b, feeds)
    for name in first.keys() & second.keys():
        dtype = narrower(first[name], second[name])
        if first[name] == second[name] or dtype == feeds[name].dtype:
            continue
        with np.errstate(over="ignore"):
            rounded[name] = feeds[name].astype(dtype)
        if not nonfinite_agree(feeds[name], rounded[name]):
            raise InputError(
                "An input is too large for the type of one of the models.",
                found=f"{name!r}: {np.abs(feeds[name]).max():g} in {dtype}",
                fix="give smaller inputs",
            )
    return rounded


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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RecordedCall:
    """One call of a PyTorch module that was made before.

    Attributes:
        feeds: its inputs, by the names of the file's inputs.
        answer: its outputs.
    """

    feeds: Mapping[str, Array]
    answer: Answer


def compare_recorded(
    path: str | os.PathLike[str],
    calls: Callable[[Sequence[str]], Sequence[RecordedCall]],
    options: VerifyOptions,
    *,
    runtime: str,
    source: str,
) -> Verification:
    """A file in ONNX Runtime, graph optimization on, against what a PyTorch module computed.

    Args:
        path: of the file.
        calls: for the names of its inputs, what the module computed; the names of the outputs are
            numbered where there are several.
        options: of ``verify``: the bounds.
        runtime: what ran the module, e.g. ``PyTorch 2.13.0 (CPU)``.
        source: where the inputs came from, for the report.

    Raises:
        VerificationError: ONNX Runtime rejects the file or the inputs, or it has other outputs.
    """
    outputs: list[OutputComparison] = []
    inputs: list[str] = []
    how: Any = {
        "runtime": f"{runtime} and {runtime_name()}",
        "optimized": (False, True),
        "backends": ("torch", "onnxruntime"),
    }
    file = OnnxRuntime.open(Chosen(path, "onnx", "onnxruntime", "auto", optimize=True))
    recorded = calls(list(file.declared() or ()))

    try:
        with file.running() as run:
            computed = [run(_taken_by(file, call.feeds)) for call in recorded]
    except NotRunError as error:
        return not_run(error, **how)
    bounds = Bounds(options.atol, options.rtol, options.max_ulp)
    for number, (call, answer) in enumerate(zip(recorded, computed, strict=True), 1):
        suffix = f" [{number}]" if len(recorded) > 1 else ""
        inputs += [text + suffix for text in describe_feeds(call.feeds)]
        outputs += [
            dataclasses.replace(output, name=output.name + suffix)
            for output in compare_outputs(*pair_outputs(call.answer, answer), bounds)
        ]
    return Verification(
        passed=all(output.passed for output in outputs),
        reason=failed_outputs(outputs),
        outputs=tuple(outputs),
        inputs=tuple(inputs),
        source=source,
        **how,
    )
