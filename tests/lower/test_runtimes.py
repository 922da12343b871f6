"""Every CPU row of the table against the installed ONNX Runtime, and every row that is absent."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import helper
from source_graphs import NUMPY, Array, run, tensor, ulps

from rmsnorm_export.errors import VerificationError
from rmsnorm_export.op.native import RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.op.reference import reference_exact, reference_float64
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, HALF_TYPES, NormSpec
from rmsnorm_export.runtime.support import CPU, CUDA, TABLE, Support, everywhere, support

TYPES = (FLOAT, FLOAT16, DOUBLE, BFLOAT16)
OPERATORS = (RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED)
CPU_ROWS = [row for row in TABLE if row.provider == CPU]
SCALES = {
    "trailing": (7,),
    "leading-ones": (1, 1, 7),
    "one": (1,),
    "scalar": (),
    "over-rows": (3, 7),
}
N = 123
EPSILON = 2.0**-10


def _id(row: Support) -> str:
    return f"{row.operator}-{row.x_type}-{row.scale_type}"


every_row = pytest.mark.parametrize("row", CPU_ROWS, ids=_id)
one_type_rows = pytest.mark.parametrize(
    "row", [row for row in CPU_ROWS if row.x_type == row.scale_type], ids=_id
)


def _blank(operator: str, x_type: int, scale_type: int) -> Support:
    """A row with the form that is right for the operator, whatever the table says of the types."""
    like = next(row for row in CPU_ROWS if row.operator == operator)
    return dataclasses.replace(like, x_type=x_type, scale_type=scale_type, min_opset=23)


def _compute(
    row: Support,
    x: Array,
    scale: Array,
    *,
    skip: Array | None = None,
    axis: int | None = None,
    opset: int | None = None,
    **attributes: Any,
) -> list[Array]:
    """Run one node between Casts at the edge of the graph."""
    edge = DOUBLE if DOUBLE in (row.x_type, row.scale_type) else FLOAT
    # Rounded here: ONNX Runtime drops a Cast to f16 when it inserts the opposite one behind it.
    feed = {"xi": x.astype(NUMPY[row.x_type]).astype(NUMPY[edge])}
    nodes = [helper.make_node("Cast", ["xi"], ["x"], to=row.x_type)]
    names, outputs = ["x", "g"], ["y"]
    if row.operator == SKIP_SIMPLIFIED:
        skip = np.zeros_like(x) if skip is None else skip
        feed["si"] = skip.astype(NUMPY[row.x_type]).astype(NUMPY[edge])
        nodes.append(helper.make_node("Cast", ["si"], ["s"], to=row.x_type))
        names, outputs = ["x", "s", "g"], ["y", "", "", "sum"]
    if axis is not None:
        attributes["axis"] = axis
    attributes |= {"domain": row.domain, "epsilon": EPSILON}
    nodes.append(helper.make_node(row.operator, names, outputs, **attributes))
    results = [name for name in outputs if name]
    nodes += [helper.make_node("Cast", [name], [f"{name}o"], to=edge) for name in results]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, edge, list(v.shape)) for name, v in feed.items()],
        [helper.make_tensor_value_info(f"{name}o", edge, None) for name in results],
        [tensor("g", scale, row.scale_type)],
    )
    imports = [helper.make_opsetid("", opset if opset is not None else max(row.min_opset, 23))]
    imports.append(helper.make_opsetid("com.microsoft", 1))
    return run(helper.make_model(graph, opset_imports=imports, ir_version=10), feed)


def _data(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def _loads(row: Support, **options: Any) -> bool:
    try:
        _compute(row, _data((2, 3, 7)), _data((7,), 1), **options)
    except VerificationError:
        return False
    return True


@pytest.mark.parametrize(
    ("operator", "x_type", "scale_type"), list(itertools.product(OPERATORS, TYPES, TYPES))
)
def test_the_table_has_exactly_the_types_that_run(
    operator: str, x_type: int, scale_type: int
) -> None:
    row = support(operator, CPU, x_type, scale_type)
    assert _loads(_blank(operator, x_type, scale_type)) == (row is not None)


def _close(row: Support, y: Array, x: Array, scale: Array, spec: NormSpec) -> None:
    """The numbers are those of the norm, rounded as the row says."""
    typed, g = x.astype(NUMPY[row.x_type]), scale.astype(NUMPY[row.scale_type])
    if row.x_type in HALF_TYPES and row.scale_type == row.x_type:
        spec = dataclasses.replace(spec, scale_before_cast=row.scale_before_cast)
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


@every_row
def test_numbers(row: Support) -> None:
    x, scale = _data((4, 5, N)) * 3, _data((N,), 1)
    y = _compute(row, x, scale)[0]
    _close(row, y, x, scale, NormSpec(epsilon=EPSILON, stash_type=_computed(row)))


def _computed(row: Support) -> int:
    return DOUBLE if row.x_type == DOUBLE else FLOAT


@every_row
def test_stash_type_changes_no_number(row: Support) -> None:
    x, scale = _data((2, 3, 7)) * 1000, _data((7,), 1)
    assert not row.stash_honoured
    results = [_compute(row, x, scale, stash_type=s)[0] for s in row.stash_types]
    if not results:
        assert row.operator == SKIP_SIMPLIFIED
        assert not _loads(row, stash_type=FLOAT)
    for y in results:
        np.testing.assert_array_equal(y, results[0])
        assert np.abs(y).max() > 0.1  # squares of 1000 overflow f16


def _places(row: Support) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int | None, bool]]:
    """Shapes of x and of the scale, the axis, and whether the table says that the row runs."""
    x = (2, 3, 7)
    yield (2, 3, row.min_row), (row.min_row,), None, True
    yield (3, 7), (1, 1, 7), None, False
    for rank in range(1, 6):
        yield (2, 3, 1, 2, 7)[-rank:], (7,), None, not row.ranks or rank in row.ranks
    for name, scale in SCALES.items():
        yield x, scale, None, name in row.scale_shapes
    for axis in (-1, -2, 1, 2):
        yield x, x[axis:], axis, row.axes != "last"


@one_type_rows
def test_shapes_and_axes(row: Support) -> None:
    relative = {FLOAT: 2.0**-20, DOUBLE: 2.0**-48, FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7}
    for shape, scale_shape, axis, runs in _places(row):
        x, scale = _data(shape), _data(scale_shape, 1)
        if not runs:
            with pytest.raises(VerificationError) as caught:
                _compute(row, x, scale, axis=axis)
            assert re.search("(?i)rank|gamma|axis|3 or 2 dimensions", caught.value.found)
            continue
        last = -1 if axis is None else axis - len(shape) * (axis > 0)
        spec = NormSpec(epsilon=EPSILON, stash_type=_computed(row), axis=last)
        typed, g = (v.astype(NUMPY[row.x_type]) for v in (x, scale))
        expected = reference_float64(spec, typed) * g.astype(np.float64)
        y = _compute(row, x, scale, axis=axis)[0]
        np.testing.assert_allclose(y, expected, rtol=relative[row.x_type], atol=2.0**-24)


@every_row
@pytest.mark.parametrize("opset", [12, 13, 16, 17, 18, 21, 22, 23, 24])
def test_opsets(row: Support, opset: int) -> None:
    assert _loads(row, opset=opset) == (opset >= row.min_opset)


@pytest.mark.parametrize("row", [r for r in CPU_ROWS if r.half_sum != "none"], ids=_id)
def test_the_residual_operator_normalises_the_unrounded_sum(row: Support) -> None:
    x, skip, scale = _data((8, 16, 768)), _data((8, 16, 768), 1) * 2, _data((768,), 2)
    y, total = _compute(row, x, scale, skip=skip)
    dtype = NUMPY[row.x_type]
    unrounded = x.astype(dtype).astype(np.float32) + skip.astype(dtype).astype(np.float32)
    rounded = unrounded.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(total, rounded)
    off = {}
    for name, rows in (("unrounded", unrounded), ("rounded", rounded)):
        mean = np.mean(rows.astype(np.float64) ** 2, axis=-1, keepdims=True)
        g = scale.astype(dtype).astype(np.float64)
        expected = (rows / np.sqrt(mean + EPSILON) * g).astype(np.float32)
        off[name] = ulps(y, expected, row.x_type)
    assert row.half_sum == "unrounded"
    assert (off["unrounded"] > 0).mean() < 0.005
    assert 0.15 < (off["rounded"] > 0).mean() < 0.3


def test_everywhere_needs_both_providers() -> None:
    assert everywhere(RMS_NORMALIZATION, BFLOAT16) == ()
    assert everywhere(SKIP_SIMPLIFIED, DOUBLE) == ()
    assert [row.provider for row in everywhere(SIMPLIFIED, BFLOAT16)] == [CPU, CUDA]
