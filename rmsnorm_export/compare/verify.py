"""``verify`` as users call it: any two models, each on the backend that is to run it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from rmsnorm_export.compare.backend import Answer, Backend, RunModel, choose_backend
from rmsnorm_export.compare.bisect import locate_difference
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.outputs import Bounds, compare_outputs, describe_feeds, pair_outputs
from rmsnorm_export.compare.result import Verification, not_run
from rmsnorm_export.errors import ExitCode, NotRunError, UsageError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import quoted
from rmsnorm_export.runtime.inputs import first_run, input_candidates
from rmsnorm_export.runtime.metrics import DEFAULT_RTOL, NOTHING_COMPARED
from rmsnorm_export.runtime.sizes import Declared, Signature, agree

if TYPE_CHECKING:
    import torch

    from rmsnorm_export.graph.load import Source

    Model: TypeAlias = Source | torch.nn.Module | torch.export.ExportedProgram

Feeds = dict[str, Array]


def verify_models(a: Model, b: Model, options: VerifyOptions) -> Verification:
    """Compare two models, neither a folder of graphs; arguments and errors as for ``verify``."""
    first = choose_backend(a, options.backend_a, options.trust_source, optimize=False)
    second = choose_backend(b, options.backend_b, options.trust_source, optimize=True)
    return compare_backends(first(), second(), options)


def compare_backends(first: Backend, second: Backend, options: VerifyOptions) -> Verification:
    """Compare two opened models, see `verify`."""
    reduced = dict.fromkeys(side.reduced for side in (first, second) if side.reduced)
    bounds = Bounds(options.atol, options.rtol, "; ".join(reduced))
    how: Any = {
        "runtime": " and ".join(dict.fromkeys((first.runtime, second.runtime))),
        "backends": (first.name, second.name),
    }
    notes = [*first.notes, *second.notes]
    _check_inputs(first.declared(), second.declared())
    try:
        candidates, source = _candidates(first, second, options)
        with first.running() as run:
            feeds, answer = _first_answer(candidates, run)
        wanted = feeds if second.declared() is None else second.declared()
        with second.running() as run:
            computed = run({name: feeds[name] for name in wanted or ()})
    except NotRunError as error:
        return not_run(error, notes=tuple(notes), **how)
    outputs = compare_outputs(*pair_outputs(answer, computed), bounds)
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


def _check_inputs(first: Signature | None, second: Signature | None) -> None:
    """Check that the first model has the inputs of the second, as far as both are declared.

    Raises:
        UsageError: one is missing, or has another type, rank or fixed size.
    """
    for name, own in (second or {}).items() if first else ():
        other = (first or {}).get(name)
        if other is None or not _same_kind(own, other):
            listed = [
                ", ".join(one.text() for one in (side or {}).values()) for side in (first, second)
            ]
            raise UsageError(
                f"The two models take different inputs: A has no such {quoted(name)} as B.",
                found=f"A: {listed[0] or 'none'}; B: {listed[1]}",
                fix="compare models whose inputs have the same names, types and shapes",
            )


def _same_kind(a: Declared, b: Declared) -> bool:
    if a.dtype != b.dtype and not {a.dtype, b.dtype} <= DEFAULT_RTOL.keys():
        return False
    return a.shape is None or b.shape is None or agree(a.shape, b.shape)


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
