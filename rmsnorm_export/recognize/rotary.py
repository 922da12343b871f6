"""The rotary embedding behind a norm, followed element by element.

Whatever is made of the norm is described by what each element of its last axes is: at most two
terms, each an element of the row, with a sign, times an entry of a table or nothing. One transfer
function an operator says how that changes, so that every spelling composes: halves, pairs and their
reshapes, tables for elements or for pairs, a part that passes. The last value of the norm's type
that has n elements, is a rotation and stands alone is the embedding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from rmsnorm_export.op.spec import FLOAT, HALF_TYPES
from rmsnorm_export.recognize.consts import standard
from rmsnorm_export.recognize.context import Context, widens
from rmsnorm_export.recognize.match import Match, Rotary
from rmsnorm_export.recognize.radial import same_dims
from rmsnorm_export.recognize.refusal import Refusal, refuse
from rmsnorm_export.recognize.shape_rules import Dims, axes_of
from rmsnorm_export.recognize.shape_values import static

Ints: TypeAlias = npt.NDArray[np.int64]

_MOST_VALUES = 64
"""Values between the norm and its embedding; a spelling has about ten."""

_MOST_ELEMENTS = 1 << 14
"""Of a row: no head is as long."""

_NONE = -1

_SIGN, _ELEMENT, _TABLE, _ENTRY = range(4)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """The elements of a value.

    Attributes:
        lead: of each axis in front of the row, the axis of the norm that it is.
        terms: [4, 2, ...]: sign (0: no such term), element of the row, table, entry of the table,
            of two terms, for the axes that the row has become.
        sources: the values that it was made of.
    """

    lead: tuple[int, ...]
    terms: Ints
    sources: tuple[ir.Value, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.terms.shape[2:]

    @property
    def plain(self) -> bool:
        """Elements of the row and nothing else."""
        return bool((self.terms[_TABLE] == _NONE).all())

    @property
    def products(self) -> bool:
        """There is a product that is no sum yet: to round it now is to round it twice."""
        return bool(((self.terms[_TABLE, 0] != _NONE) & (self.terms[_SIGN, 1] == 0)).any())

    def with_terms(self, terms: Ints, *sources: ir.Value) -> _Row:
        return dataclasses.replace(self, terms=terms, sources=sources)


def rotary(ctx: Context, match: Match) -> Match | Refusal | None:
    """``match`` with its rotary embedding, or why that stays what it is; None: there is none."""
    spec, n, y = match.spec, match.n, match.output
    whole = spec.axis == -1 and spec.last_axis == -1 and not spec.partial_size
    if spec.kind != "RMSNorm" or not whole or spec.group_size or match.rank is None:
        return None
    if n is None or not 2 <= n <= _MOST_ELEMENTS or match.quantized is not None:
        return None
    return _Follow(ctx, match, n).embedding(y)


class _Follow:
    """The values that are made of one norm."""

    def __init__(self, ctx: Context, match: Match, n: int) -> None:
        self._ctx, self._match, self._n = ctx, match, n
        self._rows: dict[ir.Value, _Row] = {}
        self._tables: list[tuple[ir.Value, tuple[int, ...]]] = []
        self._factors: dict[ir.Value, int] = {}
        self._unknown: ir.Node | None = None

    def embedding(self, y: ir.Value) -> Match | Refusal | None:
        terms = np.zeros((4, 2, self._n), np.int64)
        terms[_SIGN, 0], terms[_ELEMENT, 0], terms[_TABLE] = 1, np.arange(self._n), _NONE
        self._rows[y] = _Row(tuple(range((self._match.rank or 1) - 1)), terms, ())
        queue, embeddings = [y], list[Match]()
        for value in queue:
            for node in self._ctx.read_by(value):
                for output, row in self._described(node):
                    if output in self._rows or row.terms.size > 8 * _MOST_ELEMENTS:
                        continue
                    self._rows[output] = row
                    queue.append(output)
                    if (whole := self._complete(output, row)) is not None:
                        embeddings.append(whole)
            if len(queue) > _MOST_VALUES:
                break
        # Behind the embedding there may be a part of no elements that passes.
        outcomes = [self._taken(whole) for whole in reversed(embeddings)]
        first = outcomes[0] if outcomes else None
        return next((o for o in outcomes if isinstance(o, Match)), first)

    def _described(self, node: ir.Node) -> Iterable[tuple[ir.Value, _Row]]:
        """The outputs of ``node`` that are known now."""
        op = standard(node)
        source = self._ctx.earlier.get(node.outputs[0]) if "Cast" not in op else None
        if source is not None and (same := self._rows.get(source)) is not None:
            return [(node.outputs[0], dataclasses.replace(same, sources=(source,)))]
        first = node.inputs[0] if node.inputs else None
        row = self._row(first)
        rows: _Row | list[_Row] | None = None
        if op in _OF_SEVERAL:
            rows = _OF_SEVERAL[op](self, node)
        elif op in _OF_ONE and first is not None and row is not None:
            rows = _OF_ONE[op](self, node, first, row)
        if rows is None:
            return ()
        rows = rows if isinstance(rows, list) else [rows]
        return zip(node.outputs, rows, strict=False)

    # Transfer functions: None where the output is not described.

    def negated(self, _node: ir.Node, value: ir.Value, row: _Row) -> _Row:
        terms = row.terms.copy()
        terms[_SIGN] *= -1
        return row.with_terms(terms, value)

    def cast(self, node: ir.Node, value: ir.Value, row: _Row) -> _Row | None:
        to, own = self._ctx.types.dtype(node.outputs[0]), self._ctx.types.dtype(value)
        # The one rounding of a sum is to the type of the norm, in which the row itself fits.
        fits = to is not None and (widens(own, to) or to == self._match.dtype)
        return row.with_terms(row.terms, value) if fits and not row.products else None

    def product(self, node: ir.Node) -> _Row | None:
        for value, table in (node.inputs, node.inputs[::-1]):
            row = self._row(value)
            if row is None or value is None or table is None or table in self._rows:
                continue
            number = self._ctx.constants.array(table)
            if number is not None and number.size == 1 and number.ndim <= 1:
                minus = float(number.reshape(())) == -1.0
                return self.negated(node, value, row) if minus else None
            if not row.plain or len(row.sizes) != 1:
                return None
            if not self._fits(value, row, table, node):
                return None
            factor, terms = table, row.terms.copy()
            maker = self._ctx.maker(table, "Neg")
            if maker is not None and maker.inputs[0] is not None:
                table = maker.inputs[0]
                terms[_SIGN] *= -1
            terms[_TABLE, 0] = number_of = self._table(table, row.lead)
            self._factors |= {factor: number_of, table: number_of}
            terms[_ENTRY, 0] = np.arange(row.sizes[0])
            return row.with_terms(terms, value)
        return None

    def _fits(self, value: ir.Value, row: _Row, table: ir.Value, node: ir.Node) -> bool:
        """The product with ``table`` has the shape of ``value``, or may have it: what is not known
        keeps the embedding where it is."""
        types, rank = self._ctx.types, len(row.lead) + 1
        own, other = types.shape(value), types.shape(table)
        if other is None or not 0 < len(other) <= rank or other[-1] != row.sizes[0]:
            return False
        if own is None:
            own = (None,) * rank
        result = node.outputs[0].shape
        for place in range(-len(other), -1):
            size = other[place]
            written = None if result is None or len(result) != rank else result[place]
            declared = written.value if isinstance(written, ir.SymbolicDim) else written
            if size == 1 or (own[place] is not None and own[place] in (size, declared)):
                continue
            if isinstance(size, int) and isinstance(own[place], int):
                return False
            self._unknown = self._unknown or node
        return True

    def _table(self, table: ir.Value, lead: tuple[int, ...]) -> int:
        for place, (other, at) in enumerate(self._tables):
            if at == lead and self._ctx.same(other, table):
                return place
        self._tables.append((table, lead))
        return len(self._tables) - 1

    def sum(self, node: ir.Node) -> _Row | None:
        values = node.inputs
        rows = [row for value in values if (row := self._row(value)) is not None]
        if len(rows) != 2 or len(values) != 2:
            return None
        left, right = rows
        if left.lead != right.lead or left.sizes != right.sizes:
            return None
        single = [
            (r.terms[_SIGN, 1] == 0).all() and (r.terms[_TABLE, 0] != _NONE).all() for r in rows
        ]
        if not all(single):
            return None
        terms = left.terms.copy()
        terms[:, 1] = right.terms[:, 0]
        if standard(node) == "Sub":
            terms[_SIGN, 1] *= -1
        return left.with_terms(terms, *(v for v in values if v is not None))

    def joined(self, node: ir.Node) -> _Row | None:
        rows = [self._row(value) for value in node.inputs]
        first = rows[0]
        if first is None:
            return None
        axis = self._inner(first, node.attributes.get_int("axis", 0))
        parts = [r.terms for r in rows if r is not None and r.lead == first.lead]
        if axis is None or len(parts) < len(rows):
            return None
        try:
            terms = np.concatenate(parts, axis=2 + axis)
        except ValueError:
            return None
        return first.with_terms(terms, *(v for v in node.inputs if v is not None))

    def split(self, node: ir.Node, value: ir.Value, row: _Row) -> list[_Row] | None:
        axis = self._inner(row, node.attributes.get_int("axis", 0))
        if axis is None:
            return None
        shapes = [self._ctx.types.shape(output) for output in node.outputs]
        sizes = static(dims and dims[len(row.lead) + axis] for dims in shapes)
        if sizes is None or sum(sizes) != row.sizes[axis]:
            return None
        parts = np.split(row.terms, np.cumsum(sizes)[:-1], axis=2 + axis)
        return [row.with_terms(part, value) for part in parts]

    def slice(self, node: ir.Node, value: ir.Value, row: _Row) -> _Row | None:
        held = [self._ctx.types.integers(v) for v in node.inputs[1:] if v is not None]
        if len(held) < 2 or len(held) < len(node.inputs) - 1 or None in held:
            return None
        starts, ends, *more = [h for h in held if h is not None]
        axes = more[0] if more else tuple(range(len(starts)))
        steps = more[1] if len(more) > 1 else (1,) * len(axes)
        terms = row.terms
        if not len(starts) == len(ends) == len(axes) == len(steps):
            return None
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            inner = self._inner(row, axis)
            if inner is None or step < 1:
                return None
            place = (*[slice(None)] * (2 + inner), slice(start, end, step))
            terms = terms[place]
        return row.with_terms(terms, value)

    def gather(self, node: ir.Node, value: ir.Value, row: _Row) -> _Row | None:
        indices = self._ctx.constants.array(node.inputs[1])
        axis = self._inner(row, node.attributes.get_int("axis", 0))
        if axis is None or indices is None or indices.ndim > 1:
            return None
        if (np.abs(indices + 0.5) > row.sizes[axis]).any():
            return None
        return row.with_terms(np.take(row.terms, indices.astype(np.int64), axis=2 + axis), value)

    def transposed(self, node: ir.Node, value: ir.Value, row: _Row) -> _Row | None:
        if not row.plain:
            return None
        lead, rank = len(row.lead), len(row.lead) + len(row.sizes)
        order = tuple(node.attributes.get_ints("perm", range(rank)[::-1]))
        if sorted(order) != list(range(rank)) or max(order[:lead], default=-1) >= lead:
            return None
        inner = [2 + axis - lead for axis in order[lead:]]
        turned = row.with_terms(row.terms.transpose(0, 1, *inner), value)
        return dataclasses.replace(turned, lead=tuple(row.lead[axis] for axis in order[:lead]))

    def reshaped(self, node: ir.Node, value: ir.Value, row: _Row) -> _Row | None:
        before, after = (self._ctx.types.shape(v) for v in (value, node.outputs[0]))
        lead = len(row.lead)
        if standard(node) == "Unsqueeze":
            axes = axes_of(node, self._ctx.constants)
            rank = lead + len(row.sizes) + len(axes or ())
            places = [axis % rank for axis in axes or ()]
            if not places or min(places) < lead:
                return None
            sizes: Dims = tuple(np.expand_dims(row.terms[0, 0], [p - lead for p in places]).shape)
        elif before is None or after is None or not same_dims(before[:lead], after[:lead]):
            return None
        else:
            sizes = after[lead:]
        known = static(sizes)
        if not known or np.prod(known) != np.prod(row.sizes):
            return None
        return row.with_terms(row.terms.reshape(4, 2, *known), value)

    def _row(self, value: ir.Value | None) -> _Row | None:
        return None if value is None else self._rows.get(value)

    @staticmethod
    def _inner(row: _Row, axis: int) -> int | None:
        """The place of ``axis`` among those that the row has become."""
        inner = axis + len(row.sizes) if axis < 0 else axis - len(row.lead)
        return inner if 0 <= inner < len(row.sizes) else None

    # Whether a value is the embedding, and stands alone.

    def _complete(self, value: ir.Value, row: _Row) -> Match | None:
        if row.sizes != (self._n,) or self._ctx.types.dtype(value) != self._match.dtype:
            return None
        sign, element, table, _entry = row.terms
        size = int((sign[1] != 0).sum())
        if size == 0 or size % 2 or not (sign[1, :size] != 0).all():
            return None
        rest, index = np.arange(size, self._n), np.arange(size)
        if not (
            (element[0, size:] == rest) & (sign[0, size:] == 1) & (table[0, size:] == _NONE)
        ).all():
            return None
        # The term of the element itself first.
        own = (element[0, :size] != index).astype(np.int64)
        terms = row.terms[:, :, :size]
        (cos_sign, same, cos, cos_entry), (sin_sign, other, sin, sin_entry) = (
            np.take_along_axis(terms, np.broadcast_to(pick, (4, 1, size)), 1)[:, 0]
            for pick in (own, 1 - own)
        )
        halves = (index + size // 2) % size
        interleaved = not (other == halves).all()
        negative = index % 2 == 0 if interleaved else index < size // 2
        right = (same == index) & (other == (index ^ 1 if interleaved else halves))
        right &= (cos_sign == 1) & (sin_sign == np.where(negative, -1, 1))
        right &= (cos == cos[0]) & (sin == sin[0]) & (cos_entry == sin_entry)
        if not right.all():
            return None
        pair = index // 2 if interleaved else index % (size // 2)
        half = bool((cos_entry == pair).all()) and size > 1 and self._width(cos[0]) == size // 2
        full = bool((cos_entry == index).all()) and self._width(cos[0]) == size
        (cos_table, lead), (sin_table, _) = (self._tables[int(t[0])] for t in (cos, sin))
        dtype, wide = self._match.dtype, self._ctx.types.dtype(cos_table)
        if wide != dtype and (dtype not in HALF_TYPES or wide != FLOAT):
            return None
        if not (half or full) or lead != row.lead or self._tables[int(sin[0])][1] != row.lead:
            return None
        order = (*row.lead, len(row.lead)) if list(row.lead) != sorted(row.lead) else ()
        aliases = [
            (value, table)
            for number, table in ((int(cos[0]), cos_table), (int(sin[0]), sin_table))
            for value, at in self._factors.items()
            if at == number and value is not table and self._ctx.same(value, table)
        ]
        tables = Rotary(cos_table, sin_table, not full, order, tuple(aliases))
        spec = dataclasses.replace(
            self._match.spec,
            kind="RotaryRMSNorm",
            rotary_dim=0 if size == self._n else size,
            rotary_interleaved=interleaved,
        )
        return dataclasses.replace(self._match, spec=spec, output=value, rotary=tables)

    def _width(self, table: np.int64) -> int | None:
        dims = self._ctx.types.shape(self._tables[int(table)][0])
        return dims[-1] if dims and isinstance(dims[-1], int) else None

    def _taken(self, embedding: Match) -> Match | Refusal:
        """The embedding, if nothing but it reads the norm and what is made of it on the way."""
        inside: dict[ir.Value, None] = {}
        stack = [embedding.output]
        while stack:
            value = stack.pop()
            if value not in inside:
                inside[value] = None
                stack.extend(self._rows[value].sources)
        nodes = {node for value in inside if (node := value.producer()) is not None}
        start = self._match.output.producer()
        last = embedding.output.producer()
        assert last is not None
        nodes.discard(start)
        if start is None or any(node.graph is not start.graph for node in nodes):
            where, hint = self._match.scope, "keep both in one graph"
            return self._kept(last, "it is in another graph than the norm", where, hint)
        for value in inside:
            if value is embedding.output:
                continue
            others = [n for n in self._ctx.read_by(value) if not self._inside(n, nodes, start)]
            if others or value.is_graph_output():
                names = [f"{n.op_type} {n.name!r}" for n in others] or ["an output of the graph"]
                hint = "the norm is one node without it"
                readers = ", ".join(sorted(names)[:4])
                return self._kept(last, "others read what it is made of, too", readers, hint)
        if (node := self._unknown) is not None:
            hint = "store shapes in the model (value_info)"
            inputs = ", ".join(self._ctx.describe(v) for v in node.inputs)
            return self._kept(node, "its tables are not known to fit the rows", inputs, hint)
        return embedding

    def _inside(self, node: ir.Node, nodes: set[ir.Node], start: ir.Node) -> bool:
        """``node`` goes with the embedding: a part of it, or what its parts alone read, as a size
        is, and not as a table."""
        if node in nodes or node is start:
            return True
        stack, seen = [node], {node}
        while stack:
            current = stack.pop()
            for output in current.outputs:
                if output.is_graph_output() or output in self._factors:
                    return False
                for reader in self._ctx.read_by(output):
                    if reader in nodes or reader in seen:
                        continue
                    seen.add(reader)
                    if len(seen) > _MOST_VALUES or reader.graph is not start.graph:
                        return False
                    stack.append(reader)
        # What reads a size and is read by nobody is dead.
        return all(output.uses() for other in seen for output in other.outputs)

    def _kept(self, node: ir.Node, why: str, found: str, hint: str) -> Refusal:
        message = f"the rotary embedding of the norm is not folded: {why}"
        return refuse(node, "rotary-kept", message, found, hint, self._match.scope)


_OF_ONE: dict[str, Callable[[_Follow, ir.Node, ir.Value, _Row], _Row | list[_Row] | None]] = {
    "Neg": _Follow.negated,
    "Cast": _Follow.cast,
    "CastLike": _Follow.cast,
    "Split": _Follow.split,
    "Slice": _Follow.slice,
    "Gather": _Follow.gather,
    "Transpose": _Follow.transposed,
    **dict.fromkeys(("Reshape", "Unsqueeze", "Squeeze", "Flatten"), _Follow.reshaped),
}
_OF_SEVERAL: dict[str, Callable[[_Follow, ir.Node], _Row | None]] = {
    "Mul": _Follow.product,
    **dict.fromkeys(("Add", "Sub", "Sum"), _Follow.sum),
    "Concat": _Follow.joined,
}
"""Operator -> what its outputs are."""
