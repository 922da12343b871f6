"""``verify`` as users call it: any two models, each on the backend that is to run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from rmsnorm_export.compare.backend import Answer, Backend, RunModel, choose_backend
from rmsnorm_export.compare.bisect import locate_difference
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.outputs import Bounds, compare_outputs, describe_feeds, pair_outputs
from rmsnorm_export.compare.result import Verification, merged, not_run
from rmsnorm_export.decoder.bundle import Bundle, bundle_at
from rmsnorm_export.errors import ExitCode, NotRunError, UsageError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.options import takes
from rmsnorm_export.runtime.inputs import first_run, input_candidates
from rmsnorm_export.runtime.metrics import DEFAULT_RTOL, NOTHING_COMPARED
from rmsnorm_export.runtime.sizes import ONE_POINT

if TYPE_CHECKING:
    import torch

    from rmsnorm_export.graph.load import Source

    Model: TypeAlias = Source | torch.nn.Module | torch.export.ExportedProgram

Feeds = dict[str, Array]


@takes(VerifyOptions)
def verify(a: Model, b: Model, options: VerifyOptions) -> Verification:
    """Run two models on the same inputs and compare every output of ``a`` with ``b``'s.

    A model is an ONNX file (needed above 2 GB), its bytes, ``onnx.ModelProto`` or
    ``onnx_ir.Model``; a ``torch.nn.Module``, ``ExportedProgram`` or ``.pt2`` file, a Hugging Face
    folder, a ``config.json`` or ``module:factory``, whose code runs; or an engine of TensorRT or
    TensorRT-RTX. ONNX models run in ONNX Runtime, on the CPU, unless a backend is
    given: ``a`` without its graph optimization, for it fuses norms itself, some of them wrongly,
    ``b`` with it. Two folders of graphs, such as ``export_generation``
    makes, are compared component by component. Where two backends compute with unlike digits, as
    with TF32, the default bound is wider, and each output says why
    (``OutputComparison.tolerance``).

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
            version or for another GPU.
        UsageError: a negative bound, ``shapes`` together with ``inputs``, or a backend that does
            not run such a model.
        VerificationError: a backend rejects or cannot run a model, or the two have different
            inputs, outputs, types or shapes.
        BackendMissingError: a package that a backend needs, or the GPU, is not there; known before
            anything is run.
    """
    if options.generate is not None:
        from rmsnorm_export.decoder.generation import verify_export

        return verify_export(a, b, options)
    folders = [bundle for bundle in (bundle_at(a), bundle_at(b)) if bundle is not None]
    if len(folders) == 2:
        return _verify_folders(folders[0], folders[1], options)
    if folders:
        what = "A folder of graphs is compared with another one, or with PyTorch token by token."
        fix = "give two folders; or a model of transformers and its export, with --generate N"
        raise UsageError(what, found="one of the two models is a folder of graphs", fix=fix)
    return _verify_files(a, b, options)


def _verify_files(a: Model, b: Model, options: VerifyOptions) -> Verification:
    first = choose_backend(a, options.backend_a, options.trust_source, optimize=False)
    second = choose_backend(b, options.backend_b, options.trust_source, optimize=True)
    return compare_backends(first.backend.open(first), second.backend.open(second), options)


def _verify_folders(a: Bundle, b: Bundle, options: VerifyOptions) -> Verification:
    """Compare every component of ``a`` with that of the same name, on random inputs of its own."""
    if options.inputs is not None or a.files.keys() != b.files.keys():
        what = "The components of the two folders are others, or inputs are given."
        fix = "compare two exports of one model, without inputs; or files of single components"
        raise UsageError(what, found=f"{', '.join(a.files)}; and {', '.join(b.files)}", fix=fix)
    parts: dict[str, Verification] = {}
    for name, (shapes, dims) in a.sizes(options.shapes, options.dims, ONE_POINT).items():
        own = dataclasses.replace(options, shapes=shapes, dims=dims)
        parts[name] = _verify_files(a.files[name], b.files[name], own)
    return merged(parts)


def compare_backends(first: Backend, second: Backend, options: VerifyOptions) -> Verification:
    """Compare two opened models, see `verify`."""
    reduced = dict.fromkeys(side.reduced for side in (first, second) if side.reduced)
    bounds = Bounds(options.atol, options.rtol, "; ".join(reduced))
    how: Any = {
        "runtime": " and ".join(dict.fromkeys((first.runtime, second.runtime))),
        "backends": (first.name, second.name),
    }
    notes = [*first.notes, *second.notes]
    try:
        candidates, source = _candidates(first, second, options)
        with first.running() as run:
            feeds, answer = _first_answer(candidates, run)
        computed_by = _run_second(second, feeds)
    except NotRunError as error:
        return not_run(error, notes=tuple(notes), **how)
    outputs = compare_outputs(*pair_outputs(answer, computed_by), bounds)
    difference = None
    failed = [o for o in outputs if not o.passed and o.reason not in NOTHING_COMPARED]
    if failed:
        difference, note = locate_difference((first, second), feeds, failed, bounds)
        notes += [note] if note else []
    return Verification(
        outputs=outputs,
        inputs=describe_feeds(feeds),
        source=source,
        notes=tuple(notes),
        first_difference=difference,
        **how,
    )


def _first_answer(candidates: Iterable[Feeds], run: RunModel) -> tuple[Feeds, Answer]:
    """Return the first inputs that the first model takes, and what it makes of them."""
    try:
        return first_run(candidates, run)
    except VerificationError as error:
        error.exit_code = ExitCode.NOT_RUN  # there is nothing to compare with
        raise


def _candidates(a: Backend, b: Backend, options: VerifyOptions) -> tuple[Iterable[Feeds], str]:
    """Return inputs to try, and where they come from: those given, or random ones of some sizes."""
    declared = a.declared() or b.declared()
    if declared is None and options.inputs is None:
        what = "The inputs of two PyTorch models are not known."
        fix = "give them, by the names of forward's parameters"
        raise UsageError(what, found="no inputs are given", fix=fix)
    make, source = input_candidates(
        declared, a.limits() or b.limits(), options.inputs, seed=options.seed,
        shapes=options.shapes, dims=options.dims, usual={**a.shapes(), **b.shapes()},
    )  # fmt: skip
    return make(), source


def _run_second(b: Backend, feeds: Feeds) -> Answer:
    """Return the outputs of the second model; it is closed afterwards."""
    declared = b.declared()
    for name, one in (declared or {}).items():
        kind = str(feeds[name].dtype) if name in feeds else "none"
        floats = kind in DEFAULT_RTOL and one.dtype in DEFAULT_RTOL
        if kind != one.dtype and not floats:
            what = "The second model takes another input than the first one."
            found = f"{name!r}: {one.dtype}, and of the first model {kind}"
            raise VerificationError(what, found=found, fix="compare models with the same inputs")
    with b.running() as run:
        return run({name: feeds[name] for name in (feeds if declared is None else declared)})
