"""Every CPU row of the table against the installed ONNX Runtime, and every row that is absent."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from onnx import helper
from source_graphs import tensor, ulps

from rmsnorm_export.errors import VerificationError
from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.op.native import RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.op.reference import reference_exact, reference_float64
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, HALF_TYPES, NormSpec
from rmsnorm_export.runtime.support import CPU, CUDA, TABLE, Support, everywhere, support
from tests.recognize.text_models import run

TYPES = (FLOAT, FLOAT16, DOUBLE, BFLOAT16)
OPERATORS = (RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED)
CPU_ROWS = [row for row in TABLE if row.provider == CPU]
N = 123
EPSILON = 2.0**-10


def _id(row: Support) -> str:
    return f"{row.operator}-{row.x_type}-{row.scale_type}"


every_row = pytest.mark.parametrize("row", CPU_ROWS, ids=_id)
one_type_rows = pytest.mark.parametrize(
    "row", [row for row in CPU_ROWS if row.x_type == row.scale_type], ids=_id
)


def _compute(
    row: Support,
    x: Array,
    scale: Array,
    *,
    skip: Array | None = None,
    opset: int | None = None,
    **attributes: Any,
) -> list[Array]:
    """Run one node between Casts at the edge of the graph."""
    edge = DOUBLE if DOUBLE in (row.x_type, row.scale_type) else FLOAT
    # Rounded here: ONNX Runtime drops a Cast to f16 when it inserts the opposite one behind it.
    feed = {"xi": x.astype(numpy_dtype(row.x_type)).astype(numpy_dtype(edge))}
    nodes = [helper.make_node("Cast", ["xi"], ["x"], to=row.x_type)]
    names, outputs, domain = ["x", "g"], ["y"], ""
    if row.operator == SKIP_SIMPLIFIED:
        domain = "com.microsoft"
        skip = np.zeros_like(x) if skip is None else skip
        feed["si"] = skip.astype(numpy_dtype(row.x_type)).astype(numpy_dtype(edge))
        nodes.append(helper.make_node("Cast", ["si"], ["s"], to=row.x_type))
        names, outputs = ["x", "s", "g"], ["y", "", "", "sum"]
    attributes |= {"domain": domain, "epsilon": EPSILON}
    nodes.append(helper.make_node(row.operator, names, outputs, **attributes))
    results = [name for name in outputs if name]
    nodes += [helper.make_node("Cast", [name], [f"{name}o"], to=edge) for name in results]
    value = helper.make_tensor_value_info
    inputs = [value(name, edge, list(array.shape)) for name, array in feed.items()]
    ends = [value(f"{name}o", edge, None) for name in results]
    graph = helper.make_graph(nodes, "g", inputs, ends, [tensor("g", scale, row.scale_type)])
    versions = {"": opset or max(row.min_opset, 23), "com.microsoft": 1}
    imports = [helper.make_opsetid(*version) for version in versions.items()]
    return run(helper.make_model(graph, opset_imports=imports, ir_version=10), feed)


def _data(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def _loads(row: Support, **options: Any) -> bool:
    try:
        _compute(row, _data((2, 3, 7)), _data((7,), 1), **options)
    except VerificationError:
        return False
    return True


@pytest.mark.parametrize("types", itertools.product(TYPES, TYPES))
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_table_has_exactly_the_types_that_run(operator: str, types: tuple[int, int]) -> None:
    # With the form that is right for the operator, whatever the table says of the types.
    like = next(row for row in CPU_ROWS if row.operator == operator)
    row = dataclasses.replace(like, x_type=types[0], scale_type=types[1], min_opset=23)
    assert _loads(row) == (support(operator, CPU, *types) is not None)


def _close(row: Support, y: Array, x: Array, scale: Array, axis: int = -1) -> None:
    """The numbers are those of the norm, rounded as the row says."""
    spec = NormSpec(epsilon=EPSILON, axis=axis, stash_type=_stash(row))
    typed, g = x.astype(numpy_dtype(row.x_type)), scale.astype(numpy_dtype(row.scale_type))
    if row.x_type in HALF_TYPES and row.scale_type == row.x_type:
        spec = dataclasses.replace(spec, scale_before_cast=True)
        expected = reference_exact(spec, typed, np.broadcast_to(g, x.shape[spec.axis :]))
        off = ulps(y, expected.astype(np.float32), row.x_type)
        # f32 sums in another order flip a rounding now and then, and then by one.
        assert off.max() <= 1
        assert (off > 0).mean() < 0.005
    else:
        expected = reference_float64(spec, typed, np.broadcast_to(g, x.shape[spec.axis :]))
        bits = 53 if row.x_type == row.scale_type == DOUBLE else 24
        # A sequential sum of n squares: n / 2 roundings in the root; 4 for the rest. The f16
        # output of a mixed row has one rounding more.
        bound = (x.shape[-1] / 2 + 4) * 2.0**-bits
        bound += 2.0**-11 if row.scale_type == FLOAT16 else 0
        np.testing.assert_allclose(y, expected, rtol=bound, atol=2.0**-24)


def _stash(row: Support) -> int:
    return DOUBLE if row.x_type == DOUBLE else FLOAT


@every_row
def test_numbers(row: Support) -> None:
    x, scale = _data((4, 5, N)) * 3, _data((N,), 1)
    _close(row, _compute(row, x, scale)[0], x, scale)


@every_row
def test_stash_type_changes_no_number(row: Support) -> None:
    x, scale = _data((2, 3, 7)) * 1000, _data((7,), 1)
    if row.operator == SKIP_SIMPLIFIED:
        assert not _loads(row, stash_type=FLOAT)
        return
    results = [_compute(row, x, scale, stash_type=stash)[0] for stash in TYPES]
    for y in results:
        np.testing.assert_array_equal(y, results[0])
        assert np.abs(y).max() > 0.1  # squares of 1000 overflow f16


@one_type_rows
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_ranks(row: Support, rank: int) -> None:
    x, scale = _data((2, 3, 1, 2, 7)[-rank:]), _data((7,), 1)
    if row.ranks and rank not in row.ranks:
        with pytest.raises(VerificationError, match="3 or 2 dimensions"):
            _compute(row, x, scale)
        return
    _close(row, _compute(row, x, scale)[0], x, scale)


@one_type_rows
@pytest.mark.parametrize("shape", [(7,), (1, 1, 7), (1,), (), (3, 7)])
def test_scale_shapes(row: Support, shape: tuple[int, ...]) -> None:
    x, scale = _data((2, 3, 7)), _data(shape, 1)
    if row.operator == SKIP_SIMPLIFIED and shape != (7,):
        with pytest.raises(VerificationError, match=r"(?i)gamma"):
            _compute(row, x, scale)
        return
    y = _compute(row, x, scale)[0]
    dtype = numpy_dtype(row.x_type)
    spec = NormSpec(epsilon=EPSILON, stash_type=_stash(row), scale_before_cast=True)
    plain = reference_float64(spec, x.astype(dtype))
    expected = plain * scale.astype(dtype).astype(np.float64)
    relative = {FLOAT: 2.0**-20, DOUBLE: 2.0**-48, FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7}
    np.testing.assert_allclose(y, expected, rtol=relative[row.x_type], atol=2.0**-24)


@one_type_rows
def test_a_scale_of_higher_rank_than_x_is_refused(row: Support) -> None:
    with pytest.raises(VerificationError, match=r"(?i)rank|gamma"):
        _compute(row, _data((3, 7)), _data((1, 1, 7), 1))


@one_type_rows
@pytest.mark.parametrize("axis", [-1, -2, 1, 2])
def test_axes(row: Support, axis: int) -> None:
    if row.operator == SKIP_SIMPLIFIED:
        with pytest.raises(VerificationError, match="axis"):
            _compute(row, _data((2, 3, 7)), _data((7,), 1), axis=axis)
        return
    x = _data((2, 3, 7))
    negative = axis if axis < 0 else axis - 3
    scale = _data(x.shape[negative:], 1)
    _close(row, _compute(row, x, scale, axis=axis)[0], x, scale, negative)


@every_row
def test_the_smallest_row(row: Support) -> None:
    x = _data((2, 3, row.min_row))
    y = _compute(row, x, _data((row.min_row,), 1))[0]
    assert np.isfinite(y).all()


@every_row
@pytest.mark.parametrize("opset", [12, 13, 16, 17, 18, 21, 22, 23, 24])
def test_opsets(row: Support, opset: int) -> None:
    assert _loads(row, opset=opset) == (opset >= row.min_opset)


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_the_residual_operator_normalises_the_unrounded_sum(dtype: int) -> None:
    row = support(SKIP_SIMPLIFIED, CPU, dtype)
    assert row is not None
    x, skip, scale = _data((8, 16, 768)), _data((8, 16, 768), 1) * 2, _data((768,), 2)
    y, total = _compute(row, x, scale, skip=skip)
    half = numpy_dtype(dtype)
    unrounded = x.astype(half).astype(np.float32) + skip.astype(half).astype(np.float32)
    rounded = unrounded.astype(half).astype(np.float32)
    np.testing.assert_array_equal(total, rounded)
    off = {}
    for name, rows in (("unrounded", unrounded), ("rounded", rounded)):
        mean = np.mean(rows.astype(np.float64) ** 2, axis=-1, keepdims=True)
        g = scale.astype(half).astype(np.float64)
        expected = (rows / np.sqrt(mean + EPSILON) * g).astype(np.float32)
        off[name] = ulps(y, expected, dtype)
    assert (off["unrounded"] > 0).mean() < 0.005
    assert 0.15 < (off["rounded"] > 0).mean() < 0.3


def test_everywhere_needs_both_providers() -> None:
    assert everywhere(RMS_NORMALIZATION, BFLOAT16) == ()
    assert everywhere(SKIP_SIMPLIFIED, DOUBLE) == ()
    assert [row.provider for row in everywhere(SIMPLIFIED, BFLOAT16)] == [CPU, CUDA]
