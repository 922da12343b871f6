"""Prove a site whose node does more than its norm: the norm as any other, then what follows it.

*Quantizers.* Eight bits would hide most of what a norm can get wrong, so the norm is proved with
its own output. The quantizer of the source is then run on the very numbers of the new norm, and has
to give those of the new node, but where the class says otherwise.

*Rotary embeddings.* In float64 the nodes of the source, norm and embedding, and the new node give
the formula. With every rounding in place the embedding of the source, run on the very numbers of
the new norm, gives the bits of the new node. Tables are of random numbers, none another's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError, NotRunError
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import Array, Float64Array, numpy_dtype
from rmsnorm_export.op.reference import reference_float64
from rmsnorm_export.op.spec import FLOAT
from rmsnorm_export.proof.cut import cut
from rmsnorm_export.proof.evaluate import run_float64, run_numpy
from rmsnorm_export.proof.feeds import Batch, Layout, batches, random_weights
from rmsnorm_export.proof.judge import MATHEMATICS
from rmsnorm_export.proof.site import Proving, cut_site, sizes_in
from rmsnorm_export.recognize.match import Match, Quantized
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.session import NoKernelError, run_onnxruntime

_SCALES = (0.02, 1e-3, 4.0)
"""Scales of a quantized output: ordinary, all saturated, most of it 0."""


class _Stages:
    """All of a site, its norm alone, and the nodes of the source that follow the norm.

    Args:
        match, lowered, layout, proving: as for ``differing_quantization``.

    Raises:
        InputError: one of them cannot be cut out.
    """

    def __init__(self, match: Match, lowered: Lowered, layout: Layout, proving: Proving) -> None:
        scales = None if match.quantized is None else match.quantized.scales
        ends = [value for value in (match.output, scales) if value is not None]
        # What the nodes after the norm read besides it, in the order of the operator's inputs.
        further = [v for v in (match.cos, match.sin, match.code_scale) if v is not None]
        aliases = () if match.rotary is None else match.rotary.aliases
        self.whole, self._norm = cut_site(match, lowered, layout, proving), None
        if match.inner is not None and lowered.alone is not None:
            self._norm = cut_site(match.inner, lowered.alone(), layout, proving)
            self._rest = cut(
                ends, [match.inner.output, *further], opset_imports=proving.opset_imports,
                type_of=proving.types.dtype, aliases=dict(aliases),
                sizes_of=sizes_in(match, layout, proving.types),
            )  # fmt: skip
        replaced = [old for old, _ in lowered.replace]
        self._ends = [f"y{replaced.index(value)}" for value in ends]
        random = random_weights(match.spec, math.prod(layout.row), proving.seed)
        self.weights = self.whole.weights(*random)
        self.runs: list[Callable[[ir.Model, Mapping[str, Array]], Mapping[str, Array]]]
        self.runs = [run_numpy, *([run_onnxruntime] if match.dtype == FLOAT else [])]

    def feeds(self, batch: Batch, further: Mapping[str, Array]) -> dict[str, Array]:
        """Return inputs of the whole: what every norm has, and further ones by their role."""
        own = {self.whole.ports[role]: array for role, array in further.items()}
        return self.whole.feeds(batch, *self.weights) | own

    def results(
        self, batch: Batch, further: Mapping[str, Array], skipped: type[Exception]
    ) -> Iterator[tuple[list[Array], list[Array]]]:
        """Yield the results of the source on the numbers of the new norm, and of the new node.

        Args:
            batch: rows.
            further: inputs by role, in the order in which the source takes them.
            skipped: the error of a runtime that cannot run it, which is left.
        """
        feeds = self.feeds(batch, further)
        for run in self.runs:
            try:
                after = run(self.whole.new, feeds)
                if self._norm is None:
                    before = run(self.whole.original, feeds)
                    old = [before[name] for name in self._ends]
                else:
                    y = run(self._norm.new, self._norm.feeds(batch, *self.weights))["y0"]
                    inputs = {f"x{i}": a for i, a in enumerate((y, *further.values()))}
                    old = list(run(self._rest, inputs).values())
            except skipped:
                continue
            yield old, [after[name] for name in self._ends]


def differing_quantization(match: Match, lowered: Lowered, layout: Layout, proving: Proving) -> str:
    """Return where the new node quantizes otherwise than the source; "" where it does not.

    Args:
        match: with ``quantized``.
        lowered: its new nodes.
        layout: sizes of the inputs.
        proving: the common part of the model's proofs.

    Raises:
        InputError: one of them cannot be cut out.
    """
    quantized = match.quantized
    assert quantized is not None
    parts = _Stages(match, lowered, layout, proving)
    scales = _scales_to_try(quantized, proving.types)
    for batch in batches(match.spec, match.dtype, layout, proving.seed):
        for further in scales:
            for old, new in parts.results(batch, further, NotRunError):
                if place := _differences(match, quantized, old, new):
                    return f"quantized output: {place}, case {batch.cases}"
    return ""


def _scales_to_try(quantized: Quantized, types: Types) -> list[dict[str, Array]]:
    """Return scales to try, in their type and shape; none where rows have their own."""
    if quantized.scale is None:
        return [{}]
    dtype = numpy_dtype(int(types.dtype(quantized.scale) or FLOAT))
    shape = (1,) * len(types.shape(quantized.scale) or ())
    return [{"code_scale": np.full(shape, number, dtype)} for number in _SCALES]


def _differences(match: Match, quantized: Quantized, old: list[Array], new: list[Array]) -> str:
    """Return the difference in words, or ""."""
    before, after = (_ordered(codes[0]) for codes in (old, new))
    if before.shape != after.shape or old[0].dtype != new[0].dtype:
        return f"{old[0].dtype} {before.shape} and {new[0].dtype} {after.shape}"
    judged = np.ones(before.shape, bool)
    if quantized.scales is not None:
        rows = old[1]
        # Where the source divides by 0, by its bound, or by no number, the class says so.
        usual = np.isfinite(rows) & (rows > quantized.least)
        if old[1].shape != new[1].shape or np.any((old[1] != new[1]) & usual):
            return "the scales of the rows differ"
        judged &= np.broadcast_to(usual, before.shape)
    furthest = (np.abs(before - after) * judged).max(initial=0)
    most = 1 if match.edges and quantized.scales is None else 0
    return f"{furthest} steps apart, {most} allowed" if furthest > most else ""


def _ordered(codes: Array) -> Array:
    """Return quantized numbers as integers in their order; every NaN is one."""
    if codes.dtype == np.int8:
        return codes.astype(np.int64)
    bits = codes.view(np.uint8).astype(np.int64)
    number = np.where(bits & 0x80, -(bits & 0x7F), bits & 0x7F)
    return np.where(np.isnan(codes.astype(np.float32)), 1 << 10, number)


def differing_rotation(match: Match, lowered: Lowered, layout: Layout, proving: Proving) -> str:
    """Return where the new node gives other numbers than the source; "" where they agree.

    Arguments and errors as ``differing_quantization``; ``match`` has ``rotary``.
    """
    rotary = match.rotary
    assert rotary is not None
    parts = _Stages(match, lowered, layout, proving)
    order = rotary.order or tuple(range(len(layout.lead) + 1))
    sizes = tuple((*layout.lead, *layout.row)[axis] for axis in order)
    cos = _table(rotary.cos, sizes, proving.types, proving.seed)
    sin = _table(rotary.sin, sizes, proving.types, proving.seed + 1)
    weights = [None if v is None else v.reshape(layout.row) for v in parts.weights]
    ones, further = np.ones_like(cos), {"cos": cos, "sin": sin}
    for batch in batches(match.spec, match.dtype, layout, proving.seed):
        x = batch.x.transpose(order)

        def formula(cos: Array, sin: Array, x: Array = x) -> Float64Array:
            return np.asarray(reference_float64(match.spec, x, *weights, cos=cos, sin=sin))

        with np.errstate(all="ignore"):
            expected = formula(cos, sin)
            size = np.abs(formula(ones, 0 * ones)) + np.abs(formula(0 * ones, ones))
            feeds = parts.feeds(batch, further)
            for side in ("original", "new"):
                model = getattr(parts.whole, side)
                if place := _apart(run_float64(model, feeds).outputs["y0"], expected, size):
                    norm = "this norm with its embedding"
                    return f"mathematics: the {side} nodes are not {norm}, {place}"
        for old, new in parts.results(batch, further, NoKernelError):
            before, after = old[0].astype(np.float64), new[0].astype(np.float64)
            if old[0].shape != new[0].shape or not np.array_equal(before, after, equal_nan=True):
                return f"the embedding is rounded otherwise, cases {', '.join(batch.cases)}"
    return ""


def _table(value: ir.Value, sizes: tuple[int, ...], types: Types, seed: int) -> Array:
    """Return a table that fits rows of these sizes.

    Raises:
        InputError: its shape or type is not known.
    """
    dims, dtype = types.shape(value), types.dtype(value)
    if dims is None or dtype is None or not isinstance(dims[-1], int):
        raise InputError(
            "The tables of the rotary embedding are of unknown shape or type.",
            found=f"{value.name!r} of {dtype}, shape {dims}",
            fix="store shapes in the model (value_info), e.g. by onnx.shape_inference",
        )
    leading = zip(dims[:-1], sizes[len(sizes) - len(dims) : -1], strict=True)
    shape = (*(1 if size == 1 else own for size, own in leading), dims[-1])
    numbers = np.random.default_rng(seed).uniform(-1.0, 1.0, shape)
    return numbers.astype(numpy_dtype(int(dtype)))


def _apart(output: Array, expected: Array, size: Float64Array) -> str:
    """Return where two results differ, in words; "" where they do not."""
    if output.shape != expected.shape:
        return f"shape {output.shape} instead of {expected.shape}"
    finite = np.isfinite(expected) & np.isfinite(size)
    off = finite & ~(np.abs(output - expected) <= MATHEMATICS * size)
    if not off.any():
        return ""
    return f"{output[off].flat[0]:.9g} instead of {expected[off].flat[0]:.9g}"
