"""Prove one site: the original nodes against the new ones, on inputs at the edges of the types.

Three statements, each on every case:

1. *Mathematics.* With every float widened to float64, the original nodes compute the site's
   ``NormSpec``, and so do the new ones.
2. *Distance.* In the declared types, new and original differ by at most what the site's numerics
   class allows (``bounds``), NaN and infinities included.
3. *Accuracy.* Against float64 the new nodes err no more than the original, or than the rounding
   steps of the spec explain.

ONNX Runtime runs the nodes one by one; the new ones of other than half types also after its own
optimizations, which remove and fuse nodes. Half types are run in NumPy, too, with every declared
rounding: its CPU provider keeps float32 between operators that have no half kernel and so says
nothing about the rounding order. Where a library of kernels is given, the new nodes run there as
well, against the original in NumPy if its type is a half one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import BackendMissingError, Error
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import Array, Float64Array, numpy_dtype
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.reference import activated, mean_square, reference_float64
from rmsnorm_export.op.spec import DOMAIN, HALF_TYPES
from rmsnorm_export.proof import site
from rmsnorm_export.proof.composite import differing_quantization, differing_rotation
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
from rmsnorm_export.proof.result import NOT_COMPARED, Proof
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.runtime import session

_Arrays: TypeAlias = Mapping[str, Array]
_Run: TypeAlias = Callable[[ir.Model, _Arrays], _Arrays]
_Attempt: TypeAlias = Callable[[Match, Lowered, site.Proving, Layout], Proof]

_SPREAD = "weight of every size"
_KEPT_PROOFS = 256
_proofs: OrderedDict[tuple[object, ...], Proof] = OrderedDict()


def prove_site(match: Match, lowered: Lowered, proving: site.Proving) -> Proof:
    """Run the nodes that a rewrite replaces against the nodes that replace them.

    Nothing of the source is changed, and of its weights the scale alone is read. Sites of one form,
    equal but for the numbers of their scale, as the layers of a model are, share the runs with
    scales that are drawn; each is run with its own scale, too.

    Args:
        match: the site; its nodes still in place.
        lowered: the new nodes, with the class that the rewrite has to keep.
        proving: the common part of the model's proofs.

    Returns:
        The proof; where the site cannot be cut out or run it has not passed, nor ``compared``.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, or does not take the kernels.
    """
    if match.quantized is None and match.rotary is None:
        return _likeliest(_prove_norm, match, lowered, proving)
    proof = Proof(passed=True, cases=case_names(match.dtype), runtime=session.runtime_name())
    if match.inner is not None and lowered.alone is not None:
        proof = prove_site(match.inner, lowered.alone(), proving)
    differing = differing_quantization if match.quantized is not None else differing_rotation

    def prove_whole(match: Match, lowered: Lowered, proving: site.Proving, layout: Layout) -> Proof:
        proving.take(layout, match.dtype)
        reason = differing(match, lowered, layout, proving)
        return dataclasses.replace(proof, passed=not reason, reason=reason)

    return _likeliest(prove_whole, match, lowered, proving) if proof.passed else proof


def _likeliest(attempt: _Attempt, match: Match, lowered: Lowered, proving: site.Proving) -> Proof:
    """Return the proof with the first layout that can be run; one that has not compared if none."""
    tried: tuple[Layout, ...] = ()
    reason = ""
    try:
        tried = tuple(layouts(match, lowered, proving.types))
    except Error as error:
        reason = _sentence(error)
    for layout in tried:
        try:
            return attempt(match, lowered, proving, layout)
        except BackendMissingError:
            raise
        except Error as error:
            # The first layout is the likelier one: its error says more.
            reason = reason or _sentence(error)
    reason = reason or "no sizes to try"
    return dataclasses.replace(NOT_COMPARED, reason=reason, runtime=session.runtime_name())


def _prove_norm(match: Match, lowered: Lowered, proving: site.Proving, layout: Layout) -> Proof:
    pair, stored = site.cut_site(match, lowered, layout, proving), site.stored_weight(match.scale)
    numerics = lowered.on_cpu or lowered.numerics
    form = _form_of(pair, proving, numerics)
    own = () if stored is None else (str(stored.dtype), stored.shape, _digest(stored.tobytes()))
    key = (form, own)
    if key not in _proofs:
        proving.take(layout, match.dtype)
        if form not in proving.forms:
            runs = _FormRuns(pair, numerics, proving)
            proving.forms[form] = runs, _without_rows(runs.judge.proof(), pair, lowered, proving)
        runs, proof = proving.forms[form]
        _proofs[key] = dataclasses.replace(runs.with_stored(stored, proof), form=form)
        while len(_proofs) > _KEPT_PROOFS:
            _proofs.popitem(last=False)
    return _proofs[key]


def _form_of(pair: site.SitePair, proving: site.Proving, numerics: Numerics) -> str:
    """Return a digest of all that a proof depends on but the numbers of the stored scale."""
    match, layout = pair.match, pair.layout
    shapes = [
        None if value is None else site.weight_shape(value, layout.row, match)
        for value in (match.scale, match.bias)
    ]
    contents = [
        _digest(ir.serde.serialize_model(model).SerializeToString(deterministic=True))
        for model in (pair.original, pair.new)
    ]
    own = (*contents, *shapes, *pair.ports.items(), layout, match.spec, match.dtype, numerics)
    return _digest(repr((*own, proving.seed, proving.kernels)).encode())[:16]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _FormRuns:
    """All cases of the sites of one form, with one layout."""

    def __init__(self, pair: site.SitePair, numerics: Numerics, proving: site.Proving) -> None:
        self.pair, self.layout, self.seed = pair, pair.layout, proving.seed
        self.spec = pair.match.spec.trailing()
        n = math.prod(pair.layout.row)
        self.judge = Judge(pair.match, self.spec, n, numerics)
        # Of nodes that are not the operator there are none.
        own = any(node.domain == DOMAIN for node in pair.new.graph)
        self.kernels = proving.kernels if own else None
        match = pair.match
        weights = {"random weight": random_weights(match.spec, n, self.seed)[0]}
        if match.scale is not None:
            weights[_SPREAD] = spread_weights(match.spec, n, match.dtype, self.seed, match.factor)
        self._run(self.judge, weights)

    def with_stored(self, scale: Array | None, proof: Proof) -> Proof:
        """Return a proof, that of the form, with the scale of a site, too."""
        if scale is None or self.pair.match.gain or not proof.passed:
            return proof
        judge = self.judge.copy()
        self._run(judge, {"stored weight": scale.astype(np.float64)})
        return dataclasses.replace(judge.proof(), cases=proof.cases)

    def _run(self, judge: Judge, weights: _Arrays) -> None:
        pair, place = self.pair, self.pair.match.spec.last_axis

        def in_rows(arrays: _Arrays, index: int) -> Array:
            """Return an output with its rows on the last axis, where the reference has them."""
            output = arrays[f"y{index}"]
            return output if output.ndim < -place else np.moveaxis(output, place, -1)

        for feeds, rows in self._inputs(weights):
            for side, model in (("original", pair.original), ("new", pair.new)):
                result = run_float64(model, feeds)
                for index, role in enumerate(pair.outputs):
                    output = in_rows(result.outputs, index)
                    judge.mathematics(rows, side, role, output, result.constants)
            for label, before, after in self._runs(feeds):
                for index, role in enumerate(pair.outputs):
                    old, new = in_rows(before, index), in_rows(after, index)
                    judge.distance(rows, role, old, new, label)

    def _inputs(self, weights: _Arrays) -> Iterator[tuple[_Arrays, Rows]]:
        """Yield the inputs of every run with these scales, and the formula's results."""
        match, row = self.pair.match, self.layout.row
        addend = random_weights(match.spec, math.prod(row), self.seed)[1]
        for label, weight in weights.items():
            scale, bias = self.pair.weights(weight, addend)
            if match.bias is match.scale:  # one value is fed one array
                bias = scale
            spread = None
            if scale is not None and label == _SPREAD:
                spread = (scale.astype(np.float64) + match.spec.scale_offset).reshape(row)
                spread = spread * match.factor
            for batch in batches(match.spec, match.dtype, self.layout, self.seed, match.factor):
                expected, mean_square = self._expected(batch, scale, bias)
                rows = Rows(
                    cases=batch.cases,
                    expected=expected,
                    mean_square=mean_square,
                    bias=None if bias is None else bias.astype(np.float64).reshape(row),
                    label=f" with a {label}" if match.scale is not None else "",
                    spread=spread,
                )
                yield self.pair.feeds(batch, scale, bias), rows

    def _expected(
        self, batch: Batch, scale: Array | None, bias: Array | None
    ) -> tuple[dict[str, Float64Array], Float64Array]:
        """The formula in float64, by role of the output; and the mean square of every row."""
        spec, match, row = self.spec, self.pair.match, self.layout.row
        residual = gate = None
        if spec.kind == "SkipRMSNorm":
            residual = batch.x if match.residual is match.x else batch.residual
        if spec.kind == "GatedRMSNorm":
            gate = batch.x if match.gate is match.x else batch.gate
        with np.errstate(all="ignore"):
            if match.factor != 1.0:
                scale = (np.ones(row) if scale is None else scale.astype(np.float64)) * match.factor
            weights = (None if value is None else value.reshape(row) for value in (scale, bias))
            result = reference_float64(spec, batch.x, *weights, residual=residual, gate=gate)
            y, total = result if isinstance(result, tuple) else (result, batch.x)
            outputs = {"y": y, "sum": total} if isinstance(result, tuple) else {"y": y}
            squared = total.astype(np.float64)
            if spec.gate_first and gate is not None:
                squared *= activated(spec, gate.astype(np.float64))
            flat = squared.reshape(len(batch.cases), -1)
            groups = flat.reshape(len(flat), -1, spec.group_size or flat.shape[1])
            return outputs, np.asarray(mean_square(spec, groups).min(axis=(1, 2)))

    def _runs(self, feeds: _Arrays) -> Iterator[tuple[str, _Arrays, _Arrays]]:
        """(what computed it, outputs of the original, outputs of the new nodes)."""
        original, new, runtime = self.pair.original, self.pair.new, session.runtime_name()
        before: _Arrays | None = None
        after: _Arrays | None = None
        with contextlib.suppress(session.NoKernelError):
            after = session.run_onnxruntime(new, feeds)
            before = session.run_onnxruntime(original, feeds)
        half = self.pair.match.dtype in HALF_TYPES
        # Where the row itself is computed in half, ONNX Runtime keeps some results in float32 and
        # some not, so that two spellings differ by all that a half square loses.
        blurred = half and self.spec.stash_type in HALF_TYPES
        if before is not None and after is not None and not blurred:
            yield runtime, before, after
        reference = before
        if before is None or half:
            reference = run_numpy(original, feeds)
            yield "numpy", reference, run_numpy(new, feeds)
            if before is None and after is not None and not blurred:
                yield f"{runtime} against numpy", reference, after
        if after is not None and reference is not None and not half:
            optimized = session.run_onnxruntime(_in_shape(new, feeds), feeds, optimize=True)
            yield f"{runtime}, optimized", reference, optimized
        if self.kernels is not None and reference is not None:
            computed = session.run_onnxruntime(new, feeds, kernels=self.kernels)
            where = session.place_of_kernels(self.kernels)[1]
            yield f"the kernels in {runtime}{where}", reference, computed


def _in_shape(model: ir.Model, feeds: _Arrays) -> ir.Model:
    """Return a copy that declares the shapes of its inputs, without which less is optimized."""
    copy = model.clone()
    for value in copy.graph.inputs:
        value.shape = ir.Shape(feeds[value.name or ""].shape)
    return copy


def _without_rows(
    proof: Proof, pair: site.SitePair, lowered: Lowered, proving: site.Proving
) -> Proof:
    """Return a proof that holds with x of no rows, too, where the original takes that."""
    layout = pair.layout
    if not proof.passed:
        return proof
    axes = [{axis} for axis in layout.dynamic]
    for zeros in [*axes, *([set(layout.dynamic)] if len(axes) > 1 else ())]:
        lead = tuple(0 if axis in zeros else size for axis, size in enumerate(layout.lead))
        empty = dataclasses.replace(layout, lead=lead)
        try:
            pair = site.cut_site(pair.match, lowered, empty, proving)
            x, ones = np.zeros((*lead, *layout.row)), np.ones(math.prod(layout.row))
            x = x.astype(numpy_dtype(pair.match.dtype))
            feeds = pair.feeds(Batch(x, x, x, ()), *pair.weights(ones, ones))
            before = _shapes(run_numpy, pair.original, feeds)
        except Error:
            continue
        runs: list[_Run] = [run_numpy]
        # ONNX Runtime 1.31 does not reduce a tensor without elements: where the original comes out
        # otherwise there, or does not run, the new nodes may, too.
        with contextlib.suppress(Error):
            if _shapes(session.run_onnxruntime, pair.original, feeds) == before:
                runs.append(session.run_onnxruntime)
        for run in runs:
            try:
                after: object = _shapes(run, pair.new, feeds)
            except session.NoKernelError:
                continue
            except Error as error:
                after = _sentence(error)
            if after != before:
                reason = f"no rows: x of shape {x.shape} gives {after}, the original {before}"
                return dataclasses.replace(proof, passed=False, reason=reason)
        proof = dataclasses.replace(proof, cases=tuple(dict.fromkeys((*proof.cases, "no rows"))))
    return proof


def _shapes(run: _Run, model: ir.Model, feeds: _Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in run(model, feeds).items()}


def _sentence(error: Error) -> str:
    return str(error).replace(".\n", "; ").replace("\n", "; ")
