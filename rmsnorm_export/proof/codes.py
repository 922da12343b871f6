"""Prove a site that gives codes of its norm: the norm as any other, then the codes by themselves.

Eight bits would hide most of what a norm can get wrong, so the norm is proved with its own output.
What makes codes of it is then run on the very numbers of the new norm, and the codes have to be
those of the new node: the same, but where the class says otherwise (``_differences``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import NotRunError
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.op.spec import FLOAT
from rmsnorm_export.proof.feeds import Layout, batches
from rmsnorm_export.proof.stages import stages
from rmsnorm_export.recognize.match import Match, Quantized
from rmsnorm_export.recognize.types import Types

_SCALES = (0.02, 1e-3, 4.0)
"""Of codes: ordinary, all saturated, most of them 0."""


def differing_codes(
    match: Match,
    lowered: Lowered,
    layout: Layout,
    *,
    types: Types,
    opset_imports: Mapping[str, int],
    functions: Iterable[ir.Function],
    seed: int,
) -> str:
    """Where the codes of the new node are not those of the source; "" where they are everywhere.

    Args:
        match: with ``quantized``.
        lowered: its new nodes.
        layout: sizes of the inputs.
        types, opset_imports, functions, seed: as for ``prove_site``.

    Raises:
        InputError: one of them cannot be cut out.
    """
    made = match.quantized
    assert made is not None
    parts = stages(
        match, lowered, layout,
        ends=[v for v in (match.output, made.scales) if v is not None],
        further=[v for v in (made.scale,) if v is not None],
        types=types, opset_imports=opset_imports, functions=functions, seed=seed,
    )  # fmt: skip
    for batch in batches(match.spec, match.dtype, layout.lead, layout.row, seed):
        for step in _steps(made, types):
            for run in parts.runs:
                try:
                    old, new = parts.results(
                        run, batch, {} if step is None else {"code_scale": step}
                    )
                except NotRunError:
                    continue
                for place in _differences(match, made, old, new):
                    return f"codes: {place}, case {batch.cases}"
    return ""


def _steps(made: Quantized, types: Types) -> Iterator[Array | None]:
    """Scales of codes to be tried, in their type and shape; None where rows have their own."""
    if made.scale is None:
        yield None
        return
    dtype = numpy_dtype(int(types.dtype(made.scale) or FLOAT))
    shape = (1,) * len(types.shape(made.scale) or ())
    for number in _SCALES:
        yield np.full(shape, number, dtype)


def _differences(
    match: Match, made: Quantized, old: list[Array], new: list[Array]
) -> Iterator[str]:
    """What is not as it should be, in words."""
    before, after = (_ordered(codes[0]) for codes in (old, new))
    if before.shape != after.shape or old[0].dtype != new[0].dtype:
        yield f"{old[0].dtype} {before.shape} and {new[0].dtype} {after.shape}"
        return
    judged = np.ones(before.shape, bool)
    if made.scales is not None:
        rows = old[1]
        # Where the source divides by 0, by its bound, or by no number, the class says so.
        usual = np.isfinite(rows) & (rows > made.least)
        if old[1].shape != new[1].shape or np.any((old[1] != new[1]) & usual):
            yield "the scales of the rows differ"
        judged &= np.broadcast_to(usual, before.shape)
    far = np.abs(before - after) * judged
    most = 1 if match.edges and made.scales is None else 0
    if far.max(initial=0) > most:
        yield f"{far.max()} steps apart, {most} allowed"


def _ordered(codes: Array) -> Array:
    """Codes as integers in the order of their numbers; every NaN is one."""
    if codes.dtype == np.int8:
        return codes.astype(np.int64)
    bits = codes.view(np.uint8).astype(np.int64)
    number = np.where(bits & 0x80, -(bits & 0x7F), bits & 0x7F)
    return np.where(np.isnan(codes.astype(np.float32)), 1 << 10, number)
