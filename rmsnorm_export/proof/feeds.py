"""The inputs of a proof: rows at the edges of the types, in sizes that the file allows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import Array, Float64Array, numpy_dtype
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, HALF_TYPES, NormSpec
from rmsnorm_export.proof import bounds
from rmsnorm_export.recognize.consts import Constants, stored_tensor
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.shape_values import static
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.metrics import FINFO

CASES = (
    "random", "tiny", "epsilon", "denormal", "smallest", "huge", "large", "overflow", "zeros",
    "mixed", "outlier", "constant", "negative",
)  # fmt: skip
SUBNORMAL = frozenset({"denormal", "smallest"})

# Free leading sizes: unequal and above 1, so that no wrong broadcast fits by chance.
_FREE = (2, 3)


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Input rows of one run: ``x`` and which case each row (leading axes, flattened) belongs to."""

    x: Array
    residual: Array
    gate: Array
    cases: tuple[str, ...]


def case_names(dtype: int) -> tuple[str, ...]:
    """The cases for X of ``dtype``: no square of a finite float64 fits beyond float64."""
    return tuple(name for name in CASES if not (name == "overflow" and dtype == DOUBLE))


def batches(
    spec: NormSpec, dtype: int, layout: Layout, seed: int, factor: float = 1.0
) -> Iterator[Batch]:
    """Runs that together hold every case at least once.

    Args:
        spec: the norm.
        dtype: ONNX element type of X.
        layout: whose leading sizes make the number of rows in a run.
        seed: of the random numbers.
        factor: that the source multiplies with x, with 1 / rms, or under the root.

    Raises:
        InputError: the sizes leave no row.
    """
    rng = np.random.default_rng(seed)
    names = case_names(dtype)
    rows, n = math.prod(layout.lead), math.prod(layout.row)
    if not rows:
        raise InputError(
            "There is no row to prove the norm on.",
            found=f"leading sizes {list(layout.lead)}",
            fix="declare sizes above 0, or dynamic ones",
        )
    for start in range(0, len(names), rows):
        cases = tuple(names[(start + i) % len(names)] for i in range(rows))
        shape, store = (*layout.lead, *layout.row), numpy_dtype(dtype)
        x, residual = (
            np.stack([_case_row(name, rng, n, spec, dtype, factor) for name in cases])
            for _ in range(2)
        )
        gate = np.clip(2.0 * rng.standard_normal(shape), -4.0, 4.0)
        x, residual, gate = (one.reshape(shape).astype(store) for one in (x, residual, gate))
        yield Batch(x, residual, gate, cases)


def random_weights(spec: NormSpec, n: int, seed: int) -> tuple[Float64Array, Float64Array]:
    """A random scale, its sign mixed, none so small that it vanishes; and a random bias."""
    rng = np.random.default_rng(seed + 1)
    scale = rng.uniform(0.25, 2.0, n) * rng.choice((-1.0, 1.0), n)
    return scale - spec.scale_offset, rng.standard_normal(n)


def spread_weights(
    spec: NormSpec, n: int, dtype: int, seed: int, factor: float = 1.0
) -> Float64Array:
    """A scale of every size that lets the result of type ``dtype``, which ``factor`` is multiplied
    with, be a number.

    No element of a normalised row is above sqrt(n); products with x itself, or with 1 / rms, may
    well overflow or be subnormal.
    """
    rng = np.random.default_rng(seed + 2)
    largest, least = limits(dtype)
    if dtype == DOUBLE:  # float64 is the yardstick: nothing may overflow in it
        largest, least = 2.0**300, 2.0**-300
    top = math.log2(largest / (4 * math.sqrt(n) * max(factor, 1.0)))
    exponents = rng.uniform(math.log2(least), top, n)
    exponents[-1], exponents[0] = math.log2(least), top
    signs = rng.choice((-1.0, 1.0), n)
    return np.asarray(np.exp2(exponents) * signs - spec.scale_offset)


def _leading_sizes(count: int, rows: int) -> tuple[int, ...]:
    """``count`` sizes of product >= ``rows`` (nothing for 0 axes)."""
    if count == 0:
        return ()
    sizes = [*(1,) * max(0, count - 1 - len(_FREE)), *_FREE[: count - 1]]
    return (*sizes, -(-rows // math.prod(sizes)))


def _case_row(
    name: str, rng: np.random.Generator, n: int, spec: NormSpec, dtype: int, factor: float
) -> Float64Array:
    """One row of a case, before it is stored in the type of X."""
    normal = rng.standard_normal(n)
    # Sizes between half and all of an amplitude: sums of squares are known within a factor of 4.
    sized = rng.uniform(0.5, 1.0, n) * rng.choice((-1.0, 1.0), n)
    largest = limits(dtype)[0] / max(factor, 1.0)
    stash_largest, stash_normal = limits(spec.stash_type)
    # The sum of n squares stays a factor of 4 below the largest number; so does a residual sum.
    survives = math.sqrt(stash_largest / n) / 4
    if factor < 1.0:  # and the factor's square over their mean above the smallest
        survives = min(survives, factor / math.sqrt(stash_normal) / 4)
    # Where X can hold such numbers; half types have none whose float32 squares are subnormal.
    near = max(math.sqrt(stash_normal), 4 * limits(dtype)[1])
    at_epsilon = max(bounds.where_epsilon_counts(spec, n), 64 * math.sqrt(stash_normal))
    rows: dict[str, Float64Array | float] = {
        "random": normal,
        "tiny": 1e-4 * normal,
        "epsilon": max(at_epsilon, 64 * bounds.smallest(dtype)) * normal,
        "denormal": near / 64 * sized,
        "smallest": near * 1.4 * sized,
        "huge": min(survives, largest / 8) * sized,
        # Near the most that a source computed in a half type survives.
        "large": math.sqrt(6e4 / n) / 4 * sized if dtype in HALF_TYPES else 1e3 * normal,
        # The square leaves the stash type, where X can hold such numbers.
        "overflow": min(1e5 * math.sqrt(stash_largest), largest / 8) * sized,
        "zeros": 0.0,
        "mixed": normal * 10.0 ** rng.uniform(-3, 2, n),
        "outlier": np.where(np.arange(n) == rng.integers(n), 1e3, normal),
        "constant": float(rng.uniform(0.5, 4.0)),
        "negative": -np.abs(normal),
    }
    row = np.broadcast_to(np.asarray(rows[name], np.float64), (n,))
    return _in_steps(row, n, spec, dtype) if name in bounds.EXACT_SUMS else row


def _in_steps(row: Float64Array, n: int, spec: NormSpec, dtype: int) -> Float64Array:
    """Integers times a power of two near ``row``, the sum of whose squares S holds in any order."""
    if spec.stash_type in HALF_TYPES:
        return row
    digits = 53 if spec.stash_type == DOUBLE else 24
    own = {FLOAT16: 11, BFLOAT16: 8, FLOAT: 24}.get(dtype, 53)
    most = min(math.isqrt(2**digits // n), 2**own)
    if spec.kind == "SkipRMSNorm":  # x and its residual are added
        most //= 2
    largest = float(np.abs(row).max(initial=0.0))
    if largest == 0:
        return row
    step = 2.0 ** math.ceil(math.log2(largest / max(most, 1)))
    step = max(step, bounds.smallest(dtype))
    return np.rint(row / step) * step


def limits(dtype: int) -> tuple[float, float]:
    """The largest number of a type and its smallest normal one."""
    info = FINFO[numpy_dtype(dtype)]
    return float(info.max), float(info.smallest_normal)


# Largest x where the source fixes the leading sizes: 32 MB in float64.
_MAX_ELEMENTS = 2**22

# Elements of the rows that are run at once: 8 MB in float64.
_AT_ONCE = 2**20

# Longest row that is tried at all; no norm of a model comes near.
_MAX_ROW = 2**18


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the inputs of one attempt.

    Attributes:
        lead: leading sizes of x.
        row: sizes of the normalised axes.
        dynamic: leading axes whose size the source does not fix, which may be 0.
    """

    lead: tuple[int, ...]
    row: tuple[int, ...]
    dynamic: tuple[int, ...]

    def shape(self, spec: NormSpec) -> tuple[int, ...]:
        """That of x, with the row where it is in the model."""
        if spec.last_axis == -1:
            return (*self.lead, *self.row)
        place = len(self.lead) + 1 + spec.last_axis
        return (*self.lead[:place], *self.row, *self.lead[place:])


def layouts(match: Match, lowered: Lowered, types: Types) -> Iterator[Layout]:
    """What to try, the likeliest first: free leading sizes, then those that the file declares or
    that constant shapes of Reshape nodes ask for.

    Raises:
        InputError: the rows are too long, or have no elements.
    """
    axes = -match.spec.trailing().axis
    declared = _declared(match, types)
    place = match.spec.last_axis
    if declared is not None and place != -1:
        declared = (*declared[:place], *declared[place + 1 :], declared[place])
    shapes = tuple(_constant_shapes((*match.nodes, *lowered.nodes)))
    declared = declared or (None,) * (match.rank or max(3, axes + 1))
    rank = len(declared)
    row = _row_sizes(match, lowered, declared[len(declared) - axes :], shapes)
    n = math.prod(row)
    if not 0 < n <= _MAX_ROW:
        raise InputError(
            "The rows are too long to try." if n else "The rows are empty: nothing to compare.",
            found=f"{n} elements, 1 to {_MAX_ROW} are tried",
            fix="keep the original nodes",
        )
    rows = len(case_names(match.dtype))
    # Long rows are run a few at a time.
    stated = declared[: rank - axes]
    # Nodes that repeat an axis, or cut it, rely on a size of 1 where that is declared.
    varied = sum(size != 1 for size in stated)
    sizes = iter(_leading_sizes(varied, rows if rows * n <= _AT_ONCE else 1))
    free = tuple(1 if size == 1 else next(sizes) for size in stated)
    leads = [free]
    if any(size is not None for size in stated):
        leads.append(tuple(b if a is None else a for a, b in zip(stated, free, strict=False)))
    leads += [lead for shape in shapes if (lead := _lead(shape, n, rank - axes)) is not None]
    dynamic = tuple(axis for axis, size in enumerate(stated) if size is None)
    for lead in dict.fromkeys(leads):
        if lead is free or math.prod(lead) * n <= _MAX_ELEMENTS:
            yield Layout(lead, row, dynamic)


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """Return the shape of a value, None where the file does not say all of it."""
    tensor = stored_tensor(value) if value.const_value is None else value.const_value
    return static(value.shape if value.shape is not None or tensor is None else tensor.shape)


def _declared(match: Match, types: Types) -> tuple[int | None, ...] | None:
    shape = types.shape(match.x)
    if shape is None or (match.rank is not None and len(shape) != match.rank):
        return None
    return tuple(size if isinstance(size, int) else None for size in shape)


def _row_sizes(
    match: Match,
    lowered: Lowered,
    declared: tuple[int | None, ...],
    shapes: tuple[tuple[int, ...], ...],
) -> tuple[int, ...]:
    """Sizes of the normalised axes.

    Declared by x, or by a weight; known to lowering, which made a weight or a Reshape of it; from
    n; or small where none is given.
    """
    spec, axes, n = match.spec, -match.spec.trailing().axis, match.n
    stated = tuple(size for size in declared if size is not None)
    if len(stated) == len(declared) == axes:
        return stated
    scale = None if match.gain else match.scale
    weights = [value for value in (scale, match.bias) if value is not None]
    stored = [shape for value in weights if (shape := static_shape(value)) is not None]
    if n is None and stored:
        n = math.prod(stored[0])
    if n is None:
        n = max(8, 4 * spec.group_size, spec.partial_size + 3 if spec.partial_size else 0)
        return _completed(declared, axes, n, 2)
    new = (*lowered.initializers, *(value for node in lowered.nodes for value in node.outputs))
    hints = [*stored, *map(static_shape, new), *shapes]
    for hint in hints:
        if hint is not None and len(hint) >= axes > 1 and math.prod(hint[-axes:]) == n:
            return hint[-axes:]
    product = math.prod(filter(None, stated)) if len(declared) == axes else 1
    return _completed(declared, axes, n if n % product else n // product, 1)


def _completed(
    declared: tuple[int | None, ...], axes: int, size: int, other: int
) -> tuple[int, ...]:
    """Sizes of the normalised axes: ``size`` for the last that is not declared, ``other`` for the
    rest. One that is declared stays: an axis of 1 behind the row is not tried with more."""
    if len(declared) != axes or None not in declared:
        return (*(other,) * (axes - 1), size)
    last = max(axis for axis, stated in enumerate(declared) if stated is None)
    sizes = [other if stated is None else stated for stated in declared]
    return (*sizes[:last], size, *sizes[last + 1 :])


def _lead(shape: tuple[int, ...], n: int, count: int) -> tuple[int, ...] | None:
    """Leading sizes of x, ``count`` of them, that fit a Reshape to ``shape``."""
    rows, rest = divmod(math.prod(shape), n)
    if rest or not rows or not count:
        return None
    if len(shape) >= count and math.prod(shape[:count]) == rows:
        return shape[:count]
    return (*(1,) * (count - 1), rows)


def _constant_shapes(nodes: Iterable[ir.Node]) -> Iterator[tuple[int, ...]]:
    """Constant shapes, all sizes given, to which ``nodes`` reshape."""
    constants = Constants()
    for node in nodes:
        if node.op_type == "Reshape" and len(node.inputs) > 1:
            sizes = constants.ints(node.inputs[1]) or ()
            if sizes and all(size > 0 for size in sizes):
                yield sizes
