"""Prove a site whose rotary embedding is in its node: the norm as any other, then all of it.

In float64 the nodes of the source, norm and embedding, and the new node give the formula. With
every rounding in place the embedding of the source, run on the very numbers of the new norm, gives
the bits of the new node. Tables are of random numbers, none of which is another's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import Array, Float64Array, numpy_dtype
from rmsnorm_export.op.reference import reference_float64
from rmsnorm_export.proof.evaluate import run_float64
from rmsnorm_export.proof.feeds import Layout, batches
from rmsnorm_export.proof.stages import stages
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.session import NoKernelError

_MATHEMATICS = 1e-10
"""Relative, as ``proof.judge`` has it, of the two terms of an element."""


def differing_turns(
    match: Match,
    lowered: Lowered,
    layout: Layout,
    *,
    types: Types,
    opset_imports: Mapping[str, int],
    functions: Iterable[ir.Function],
    seed: int,
) -> str:
    """Where the new node gives other numbers than the source; "" where they agree everywhere.

    Args:
        match: with ``rotary``.
        lowered: its new nodes.
        layout: sizes of the inputs.
        types, opset_imports, functions, seed: as for ``prove_site``.

    Raises:
        InputError: one of them cannot be cut out.
    """
    turned = match.rotary
    assert turned is not None
    parts = stages(
        match, lowered, layout, ends=[match.output], further=[turned.cos, turned.sin],
        types=types, opset_imports=opset_imports, functions=functions, seed=seed,
        aliases=dict(turned.aliases),
    )  # fmt: skip
    order = turned.order or tuple(range(len(layout.lead) + 1))
    sizes = tuple((*layout.lead, *layout.row)[axis] for axis in order)
    tables = [
        _table(value, sizes, types, seed + i) for i, value in enumerate((turned.cos, turned.sin))
    ]
    further = dict(zip(("cos", "sin"), tables, strict=True))
    for batch in batches(match.spec, match.dtype, layout.lead, layout.row, seed):
        feeds = parts.feeds(batch, further)
        x = batch.x.transpose(order)
        weights = [None if v is None else v.reshape(layout.row) for v in parts.weights]
        with np.errstate(all="ignore"):
            wanted = reference_float64(match.spec, x, *weights, cos=tables[0], sin=tables[1])
            ones = np.ones_like(tables[0])
            terms = [
                np.abs(np.asarray(reference_float64(match.spec, x, *weights, cos=a, sin=b)))
                for a, b in ((ones, 0 * ones), (0 * ones, ones))
            ]
        for side, model in (("original", parts.whole.original), ("new", parts.whole.new)):
            with np.errstate(all="ignore"):
                found = np.asarray(run_float64(model, feeds).outputs["y0"])
            if place := _apart(found, np.asarray(wanted), sum(terms)):
                return (
                    f"mathematics: the {side} nodes are not this norm with its embedding, {place}"
                )
        for run in parts.runs:
            try:
                (old,), (new,) = parts.results(run, batch, further)
            except NoKernelError:
                continue
            if old.shape != new.shape or not np.array_equal(
                old.astype(np.float64), new.astype(np.float64), equal_nan=True
            ):
                return f"the embedding is rounded otherwise, cases {', '.join(batch.cases)}"
    return ""


def _table(value: ir.Value, sizes: tuple[int, ...], types: Types, seed: int) -> Array:
    """A table that fits rows of these sizes.

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


def _apart(found: Array, wanted: Array, size: Float64Array) -> str:
    """Where two results differ, in words; "" where they do not."""
    if found.shape != wanted.shape:
        return f"shape {found.shape} instead of {wanted.shape}"
    finite = np.isfinite(wanted) & np.isfinite(size)
    with np.errstate(all="ignore"):
        off = finite & ~(np.abs(found - wanted) <= _MATHEMATICS * size)
    if not off.any():
        return ""
    return f"{found[off].flat[0]:.9g} instead of {wanted[off].flat[0]:.9g}"
