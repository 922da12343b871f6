"""Prove one site: the original nodes against the new ones, on inputs at the edges of the types.

Three statements, each on every case:

1. *Mathematics.* With every float widened to float64, the original nodes compute the site's
   ``NormSpec``, and so do the new ones.
2. *Distance.* In the declared types, new and original differ by at most what the site's numerics
   class allows (``bounds``), NaN and infinities included.
3. *Accuracy.* Against float64 the new nodes err no more than the original, or than the rounding
   steps of the spec explain.

Half types are run twice, in NumPy with every declared rounding and in ONNX Runtime, whose CPU
provider keeps float32 between operators that have no half kernel and so says nothing about the
rounding order. Where a library of kernels is given, the new nodes run there as well, against the
original in NumPy if its type is a half one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import BackendMissingError, Error, InputError
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import Array, Float64Array, numpy_dtype
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.reference import activated, reference_float64
from rmsnorm_export.op.spec import DOMAIN, DOUBLE, HALF_TYPES, NormSpec
from rmsnorm_export.proof import site
from rmsnorm_export.proof.codes import differing_codes
from rmsnorm_export.proof.evaluate import run_float64, run_numpy
from rmsnorm_export.proof.feeds import (
    Batch,
    Layout,
    batches,
    case_names,
    layouts,
    random_weights,
    spread_weights,
)
from rmsnorm_export.proof.judge import Judge, Rows
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.proof.rotary import differing_turns
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.session import (
    NoKernelError,
    place_of_kernels,
    run_onnxruntime,
    runtime_name,
)

_Run: TypeAlias = Callable[[ir.Model, Mapping[str, Array]], dict[str, Array]]

_FREE_ELEMENTS = 1 << 19
"""Elements of rows that are proved whatever a file holds: some 2 s of work."""

_KEPT_PROOFS = 256
_proofs: OrderedDict[tuple[object, ...], Proof] = OrderedDict()


class Allowance:
    """Work that the proofs of one model may take, bounded by what its file stores.

    A few bytes declare rows of any length, and each is run on every case; the layers of a model
    store weights as long as their rows.

    Args:
        stored: elements of the model's tensors.
    """

    def __init__(self, stored: int) -> None:
        self._left = _FREE_ELEMENTS + stored

    def take(self, layout: Layout, dtype: int) -> None:
        """Count the rows that a layout runs, in elements of a row that every case runs once.

        Raises:
            InputError: the sites before it have used up what there was.
        """
        n = math.prod(layout.row)
        elements = n * max(1, math.prod(layout.lead) // len(case_names(dtype)))
        if elements > self._left:
            raise InputError(
                "The proofs of this model would compute more than its size allows.",
                found=f"{elements} elements, {self._left} are left",
                fix="prove a model with fewer sites, or verify the models as a whole",
            )
        self._left -= elements


def prove_site(
    match: Match,
    lowered: Lowered,
    *,
    types: Types,
    opset_imports: Mapping[str, int],
    functions: Iterable[ir.Function] = (),
    numerics: Numerics,
    stored_scale: Array | None = None,
    seed: int = 0,
    kernels: str | None = None,
    allowance: Allowance | None = None,
) -> Proof:
    """Run the nodes that a rewrite replaces against the nodes that replace them.

    Nothing of the source is changed, and of its weights nothing is read. Equal sites (the layers of
    a model) share one run.

    Args:
        match: the site; its nodes still in place.
        lowered: the new nodes.
        types: element types and shapes of the source.
        opset_imports: of the graph or function that holds the site, before the rewrite.
        functions: model-local functions that the original nodes may call.
        numerics: the class that the rewrite has to keep.
        stored_scale: the real values of ``match.scale``; a random scale is always tried as well.
        seed: of the random inputs.
        kernels: a library of custom operators for ONNX Runtime, which has those of this package.
        allowance: of the whole model; None: that of a model without weights, for this site alone.

    Returns:
        The proof; where the site cannot be cut out or run it has not passed, nor ``compared``.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, or does not take the kernels.
    """
    runtime = runtime_name()
    functions = tuple(functions)
    allowance = allowance or Allowance(0)
    if match.quantized is not None or match.rotary is not None:
        return _prove_behind(
            match, lowered, types, opset_imports, functions, stored_scale, seed, runtime, kernels,
            allowance,
        )  # fmt: skip
    failure: Error | None = None
    try:
        tried = tuple(layouts(match, lowered, types))
    except Error as error:
        tried, failure = (), error
    cut = functools.partial(
        site.cut_site,
        match,
        lowered,
        types=types,
        opset_imports=opset_imports,
        functions=functions,
    )
    for layout in tried:
        try:
            pair = cut(layout)
            key = (*_proof_key(pair, layout, numerics, stored_scale, seed), kernels)
            if key not in _proofs:
                allowance.take(layout, match.dtype)
                runs = _SiteRuns(pair, layout, numerics, seed, runtime, kernels)
                proof = runs.prove(stored_scale)
                _proofs[key] = _without_rows(proof, cut, layout) if proof.passed else proof
                while len(_proofs) > _KEPT_PROOFS:
                    _proofs.popitem(last=False)
            return _proofs[key]
        except BackendMissingError:
            raise
        except Error as error:
            # The first layout is the likelier one: its error says more.
            failure = failure or error
    return _not_compared(runtime, failure)


def _not_compared(runtime: str, failure: Error | None) -> Proof:
    return Proof(
        passed=False,
        reason="no sizes to try" if failure is None else _sentence(failure),
        cases=(),
        max_ulp=math.inf,
        mismatch=1.0,
        max_abs=math.inf,
        error_before=math.inf,
        error_after=math.inf,
        bound_ulp=0.0,
        runtime=runtime,
        compared=False,
    )


def _prove_behind(
    match: Match,
    lowered: Lowered,
    types: Types,
    opset_imports: Mapping[str, int],
    functions: tuple[ir.Function, ...],
    stored_scale: Array | None,
    seed: int,
    runtime: str,
    kernels: str | None,
    allowance: Allowance,
) -> Proof:
    """The proof of the norm, and of what is made of it (see ``proof.codes``, ``proof.rotary``)."""
    differing = differing_codes if match.quantized is not None else differing_turns
    proof = Proof(passed=True, reason="", cases=case_names(match.dtype), max_ulp=0.0, mismatch=0.0,
                  max_abs=0.0, error_before=0.0, error_after=0.0, bound_ulp=0.0,
                  runtime=runtime)  # fmt: skip
    if match.inner is not None and lowered.alone is not None:
        norm = lowered.alone()
        proof = prove_site(
            match.inner, norm, types=types, opset_imports=opset_imports, functions=functions,
            numerics=norm.numerics, stored_scale=stored_scale, seed=seed, kernels=kernels,
            allowance=allowance,
        )  # fmt: skip
    if not proof.passed:
        return proof
    failure: Error | None = None
    try:
        for layout in layouts(match, lowered, types):
            try:
                allowance.take(layout, match.dtype)
                reason = differing(
                    match, lowered, layout, types=types, opset_imports=opset_imports,
                    functions=functions, seed=seed,
                )  # fmt: skip
                return dataclasses.replace(proof, passed=not reason, reason=reason)
            except BackendMissingError:
                raise
            except Error as error:
                failure = failure or error
    except BackendMissingError:
        raise
    except Error as error:
        failure = error
    return _not_compared(runtime, failure)


def _proof_key(
    pair: site.SitePair, layout: Layout, numerics: Numerics, stored_scale: Array | None, seed: int
) -> tuple[object, ...]:
    def digest(content: bytes) -> bytes:
        return hashlib.sha256(content).digest()

    models = [ir.serde.serialize_model(model) for model in (pair.original, pair.new)]
    scale = None
    if stored_scale is not None:
        scale = (stored_scale.shape, str(stored_scale.dtype), digest(stored_scale.tobytes()))
    match = pair.match
    shapes = tuple(
        None if value is None else site.weight_shape(value, layout.row)
        for value in (match.scale, match.bias)
    )
    return (
        *(digest(model.SerializeToString(deterministic=True)) for model in models),
        tuple(pair.ports.items()),
        (match.spec, match.dtype, layout, shapes, numerics, scale, seed),
    )


class _SiteRuns:
    """All cases of one site with one layout."""

    def __init__(
        self,
        pair: site.SitePair,
        layout: Layout,
        numerics: Numerics,
        seed: int,
        runtime: str,
        kernels: str | None,
    ) -> None:
        self.pair, self.layout, self.seed, self.runtime = pair, layout, seed, runtime
        self.spec = _stored_spec(pair.match.spec).trailing()
        self.judge = Judge(pair.match, self.spec, math.prod(layout.row), numerics)
        # Of nodes that are not the operator there are none.
        own = any(node.domain == DOMAIN for node in pair.new.graph)
        self.kernels = kernels if own else None

    def prove(self, stored_scale: Array | None) -> Proof:
        pair = self.pair
        for feeds, rows in self._inputs(stored_scale):
            for side, model in (("original", pair.original), ("new", pair.new)):
                result = run_float64(model, feeds)
                for index, role in enumerate(pair.outputs):
                    output = self._rows_last(result.outputs[f"y{index}"])
                    self.judge.mathematics(rows, side, role, output, result.constants)
            for label, before, after in self._runs(feeds):
                for index, role in enumerate(pair.outputs):
                    name = f"y{index}"
                    old, new = (self._rows_last(side[name]) for side in (before, after))
                    self.judge.distance(rows, role, old, new, label)
        return self.judge.proof()

    def _rows_last(self, output: Array) -> Array:
        """An output with its rows on the last axis, where the reference has them."""
        place = self.pair.match.spec.last_axis
        return output if output.ndim < -place else np.moveaxis(output, place, -1)

    def _inputs(self, stored_scale: Array | None) -> Iterator[tuple[dict[str, Array], Rows]]:
        """Every run: what to feed, and what the formula makes of it."""
        match, layout = self.pair.match, self.layout
        n = math.prod(layout.row)
        random, addend = random_weights(match.spec, n, self.seed)
        weights = [("random weight", random, False)]
        if match.scale is not None:
            spread = spread_weights(match.spec, n, match.dtype, self.seed)
            weights.append(("weight of every size", spread, True))
            if stored_scale is not None:
                weights.append(("stored weight", stored_scale.astype(np.float64), False))
        for label, weight, is_spread in weights:
            scale, bias = (
                None if value is None else site.weight(value, values, layout)
                for value, values in ((match.scale, weight), (match.bias, addend))
            )
            if match.bias is match.scale:  # one value is fed one array
                bias = scale
            lead, row = layout.lead, layout.row
            factor = None
            if scale is not None and is_spread:
                factor = (scale.astype(np.float64) + match.spec.scale_offset).reshape(row)
            for batch in batches(match.spec, match.dtype, lead, row, self.seed):
                expected, mean_square = self._expected(batch, scale, bias)
                yield (
                    self.pair.feeds(batch, scale, bias),
                    Rows(
                        cases=batch.cases,
                        expected=expected,
                        mean_square=mean_square,
                        bias=None if bias is None else bias.astype(np.float64).reshape(row),
                        label=f" with a {label}" if match.scale is not None else "",
                        spread=factor,
                    ),
                )

    def _expected(
        self, batch: Batch, scale: Array | None, bias: Array | None
    ) -> tuple[dict[str, Float64Array], Float64Array]:
        """The formula in float64, by role of the output; and the mean square of every row."""
        spec, match = self.spec, self.pair.match
        residual = gate = None
        if spec.kind == "SkipRMSNorm":
            residual = batch.x if match.residual is match.x else batch.residual
        if spec.kind == "GatedRMSNorm":
            gate = batch.x if match.gate is match.x else batch.gate
        with np.errstate(all="ignore"):
            row = self.layout.row
            weights = (None if value is None else value.reshape(row) for value in (scale, bias))
            result = reference_float64(spec, batch.x, *weights, residual=residual, gate=gate)
            y, total = result if isinstance(result, tuple) else (result, batch.x)
            outputs = {"y": y, "sum": total} if isinstance(result, tuple) else {"y": y}
            squared = total.astype(np.float64)
            if spec.gate_first and gate is not None:
                squared *= activated(spec, gate.astype(np.float64))
            return outputs, _mean_square(spec, squared, len(batch.cases))

    def _runs(
        self, feeds: Mapping[str, Array]
    ) -> Iterator[tuple[str, Mapping[str, Array], Mapping[str, Array]]]:
        """(what computed it, outputs of the original, outputs of the new nodes)."""
        original, new = self.pair.original, self.pair.new
        before = after = None
        try:
            after = run_onnxruntime(new, feeds)
            before = run_onnxruntime(original, feeds)
        except NoKernelError:
            pass
        half = self.pair.match.dtype in HALF_TYPES
        # Where the row itself is computed in half, ONNX Runtime keeps some results in float32 and
        # some not, so that two spellings differ by all that a half square loses.
        blurred = half and self.spec.stash_type in HALF_TYPES
        if before is not None and after is not None and not blurred:
            yield self.runtime, before, after
        reference = before
        if before is None or half:
            reference = run_numpy(original, feeds)
            yield "numpy", reference, run_numpy(new, feeds)
            if before is None and after is not None and not blurred:
                yield f"{self.runtime} against numpy", reference, after
        if self.kernels is not None and reference is not None:
            computed = run_onnxruntime(new, feeds, kernels=self.kernels)
            where = place_of_kernels(self.kernels)[1]
            yield f"the kernels in {self.runtime}{where}", reference, computed


def _mean_square(spec: NormSpec, total: Float64Array, rows: int) -> Float64Array:
    """Of every row, the smallest of its groups."""
    flat = total.reshape(rows, -1)[:, : spec.partial_size or None]
    groups = flat.reshape(rows, -1, spec.group_size or flat.shape[1])
    return np.asarray(np.square(groups).mean(axis=2).min(axis=1))


def _without_rows(proof: Proof, cut: Callable[[Layout], site.SitePair], layout: Layout) -> Proof:
    """``proof``, and what comes of x without rows, as far as the original takes it: no rows."""
    sizes = {tuple(0 if i == axis else size for i, size in enumerate(layout.lead))
             for axis in range(len(layout.lead))}  # fmt: skip
    for lead in sorted({*sizes, (0,) * len(layout.lead)} - {()}):
        empty = dataclasses.replace(layout, lead=lead)
        try:
            pair = cut(empty)
            match, ones = pair.match, np.ones(math.prod(layout.row))
            x = np.zeros((*lead, *layout.row), numpy_dtype(match.dtype))
            scale, bias = (
                None if value is None else site.weight(value, ones, empty)
                for value in (match.scale, match.bias)
            )
            feeds = pair.feeds(Batch(x, x, x, ()), scale, bias)
            before = _shapes(run_numpy, pair.original, feeds)
        except Error:
            continue
        runs: list[_Run] = [run_numpy]
        # ONNX Runtime 1.31 does not reduce a tensor without elements: where the original comes out
        # otherwise there, or does not run, the new nodes may, too.
        with contextlib.suppress(Error):
            if _shapes(run_onnxruntime, pair.original, feeds) == before:
                runs.append(run_onnxruntime)
        for run in runs:
            try:
                after: object = _shapes(run, pair.new, feeds)
            except NoKernelError:
                continue
            except Error as error:
                after = _sentence(error)
            if after != before:
                reason = f"no rows: x of shape {x.shape} gives {after}, the original {before}"
                return dataclasses.replace(proof, passed=False, reason=reason)
        proof = dataclasses.replace(proof, cases=tuple(dict.fromkeys((*proof.cases, "no rows"))))
    return proof


def _shapes(run: _Run, model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in run(model, feeds).items()}


def _sentence(error: Error) -> str:
    return str(error).replace(".\n", "; ").replace("\n", "; ")


def _stored_spec(spec: NormSpec) -> NormSpec:
    """Epsilon and the offset as they are stored: float32, except in a float64 norm."""
    if spec.stash_type == DOUBLE:
        return spec
    return dataclasses.replace(
        spec,
        epsilon=float(np.float32(spec.epsilon)),
        scale_offset=float(np.float32(spec.scale_offset)),
    )
