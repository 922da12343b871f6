"""Prove a site whose rotary embedding is in its node: the norm as any other, then all of it.

In float64 the nodes of the source, norm and embedding, and the new node give the formula. With
every rounding in place the embedding of the source, run on the very numbers of the new norm, gives
the bits of the new node. Tables are of random numbers, none of which is another's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import Array, Float64Array, numpy_dtype
from rmsnorm_export.op.reference import reference_float64
from rmsnorm_export.op.spec import FLOAT
from rmsnorm_export.proof import site
from rmsnorm_export.proof.cut import cut
from rmsnorm_export.proof.evaluate import run_float64, run_numpy
from rmsnorm_export.proof.feeds import Layout, batches, random_weights
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.session import NoKernelError, run_onnxruntime

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
    turned, inner = match.rotary, match.inner
    assert turned is not None
    pair = site.cut_site(match, lowered, layout, types=types, opset_imports=opset_imports,
                         functions=functions)  # fmt: skip
    norm = source = None
    if inner is not None and lowered.alone is not None:
        norm = site.cut_site(inner, lowered.alone(), layout, types=types,
                             opset_imports=opset_imports, functions=functions)  # fmt: skip
        starts = [inner.output, turned.cos, turned.sin]
        source = cut([match.output], starts, opset_imports=opset_imports, type_of=types.dtype,
                     aliases=dict(turned.aliases),
                     sizes_of=site.sizes_in(match, layout, types))  # fmt: skip
    scale, bias = (
        None if value is None else site.weight(value, values, layout)
        for value, values in zip(
            (match.scale, match.bias),
            random_weights(match.spec, math.prod(layout.row), seed),
            strict=True,
        )
    )
    order = turned.order or tuple(range(len(layout.lead) + 1))
    sizes = tuple((*layout.lead, *layout.row)[axis] for axis in order)
    tables = [
        _table(value, sizes, types, seed + i) for i, value in enumerate((turned.cos, turned.sin))
    ]
    runs = [run_numpy, *([run_onnxruntime] if match.dtype == FLOAT else [])]
    for batch in batches(match.spec, match.dtype, layout.lead, layout.row, seed):
        feeds = pair.feeds(batch, scale, bias, tables)
        x = batch.x.transpose(order)
        weights = [None if v is None else v.reshape(layout.row) for v in (scale, bias)]
        with np.errstate(all="ignore"):
            wanted = reference_float64(match.spec, x, *weights, cos=tables[0], sin=tables[1])
            ones = np.ones_like(tables[0])
            parts = [
                np.abs(np.asarray(reference_float64(match.spec, x, *weights, cos=a, sin=b)))
                for a, b in ((ones, 0 * ones), (0 * ones, ones))
            ]
        for side, model in (("original", pair.original), ("new", pair.new)):
            with np.errstate(all="ignore"):
                found = np.asarray(run_float64(model, feeds).outputs["y0"])
            if place := _apart(found, np.asarray(wanted), sum(parts)):
                return (
                    f"mathematics: the {side} nodes are not this norm with its embedding, {place}"
                )
        for run in runs:
            try:
                new = run(pair.new, feeds)["y0"]
                if norm is None or source is None:
                    old = run(pair.original, feeds)["y0"]
                else:
                    given = {f"x{i + 1}": table for i, table in enumerate(tables)}
                    y = run(norm.new, norm.feeds(batch, scale, bias))["y0"]
                    old = run(source, {"x0": y, **given})["y0"]
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
