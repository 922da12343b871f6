"""The two small models of one site, original and new, and the arrays that fit them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.proof.cut import SizesOf, cut, sizes_by
from rmsnorm_export.proof.feeds import Batch, Layout, case_names, static_shape
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.shape_values import bounded
from rmsnorm_export.recognize.types import Types

_ROLES = ("x", "scale", "bias", "residual", "gate", "code_scale", "cos", "sin")

_MAX_SCALE = 1 << 24
"""Elements of a scale that a proof may read: 64 MiB in f32, far above any row length."""

FREE_ELEMENTS = 1 << 19
"""Elements of rows that are proved whatever a file holds: some 2 s of work."""


@dataclasses.dataclass(slots=True, eq=False)
class Proving:
    """The common part of the proofs of one model.

    A few bytes declare rows of any length, and each is run on every case: their work is bounded by
    what the file stores. The layers of a model store weights as long as their rows.

    Attributes:
        types: element types and shapes of the source.
        opset_imports: of the graph or function that holds the sites, before the rewrite.
        functions: model-local functions that the original nodes may call.
        seed: of the random inputs.
        kernels: a library of custom operators for ONNX Runtime, which has those of this package.
        elements: of rows that may still be run.
        forms: the runs of a form, and its proof, see `prove_site`.
    """

    types: Types
    opset_imports: Mapping[str, int]
    functions: Sequence[ir.Function] = ()
    seed: int = 0
    kernels: str | None = None
    elements: int = FREE_ELEMENTS
    forms: dict[str, tuple[Any, Proof]] = dataclasses.field(default_factory=dict)

    def take(self, layout: Layout, dtype: int) -> None:
        """Count the rows that a layout runs, in elements of a row that every case runs once.

        Raises:
            InputError: the sites before it have used up the budget.
        """
        rounds = max(1, math.prod(layout.lead) // len(case_names(dtype)))
        elements = math.prod(layout.row) * rounds
        if elements > self.elements:
            raise InputError(
                "The proofs of this model would compute more than its size allows.",
                found=f"{elements} elements, {self.elements} are left",
                fix="prove a model with fewer sites, or verify the models as a whole",
            )
        self.elements -= elements


@dataclasses.dataclass(frozen=True, slots=True)
class SitePair:
    """The old nodes and the new ones, with the same inputs and outputs.

    Attributes:
        match: the site.
        layout: sizes of its inputs.
        original: nodes of the source, from x, scale, bias, residual and gate to the last value.
        new: the lowered nodes, from the same inputs.
        ports: role -> name of the graph input in both models.
        outputs: for every output ``y<i>``: ``y`` or ``sum``, where it is a norm alone.
    """

    match: Match
    layout: Layout
    original: ir.Model
    new: ir.Model
    ports: Mapping[str, str]
    outputs: tuple[str, ...]

    def weights(self, scale: Array, bias: Array) -> tuple[Array | None, Array | None]:
        """Return numbers in the types and shapes of scale and bias; None where there is none.

        Raises:
            InputError: another number of elements.
        """
        return self._fitted("scale", scale), self._fitted("bias", bias)

    def _fitted(self, role: Literal["scale", "bias"], numbers: Array) -> Array | None:
        value: ir.Value | None = getattr(self.match, role)
        if value is None:
            return None
        shape = weight_shape(value, self.layout.row, self.match)
        if numbers.size != math.prod(shape):
            raise InputError(
                "A scale or bias does not fit the row.",
                found=f"{numbers.size} values for {value.name!r} of shape {shape}",
                fix="give one value per element of the row",
            )
        dtypes = {own.name: own.dtype for own in self.original.graph.inputs}
        dtype = dtypes[self.ports[role]] or self.match.dtype
        return numbers.reshape(shape).astype(numpy_dtype(dtype))

    def feeds(self, batch: Batch, scale: Array | None, bias: Array | None) -> dict[str, Array]:
        """Return arrays of what every norm has, by name of the graph input."""
        arrays = {"scale": scale, "bias": bias}
        for role in ("x", "residual", "gate"):
            moved = np.moveaxis(getattr(batch, role), -1, self.match.spec.last_axis)
            arrays[role] = np.ascontiguousarray(moved)
        feeds: dict[str, Array] = {}
        for role, name in self.ports.items():
            array = arrays.get(role)
            if array is not None:
                feeds.setdefault(name, array)
        return feeds


def cut_site(match: Match, lowered: Lowered, layout: Layout, proving: Proving) -> SitePair:
    """Cut the original and the new nodes of a site.

    Where they do not follow from the site's inputs alone, shapes that depend on other values are
    those that these values have with the sizes of ``layout``.

    Raises:
        InputError: one of them needs a value that is none of the site's inputs (see ``cut``).
    """
    try:
        return _cut_site(match, lowered, layout, proving, lambda _: None)
    except InputError:
        return _cut_site(match, lowered, layout, proving, sizes_in(match, layout, proving.types))


def sizes_in(match: Match, layout: Layout, types: Types) -> SizesOf:
    """Return the sizes of any value where x has those of ``layout``, None for unknown ones."""
    pairs = zip(types.shape(match.x) or (), layout.shape(match.spec), strict=False)
    sizes = {dim: size for dim, size in pairs if isinstance(dim, str)}
    for dim, size in list(sizes.items()):
        bound = bounded(dim)
        if bound is not None and size < bound[0]:
            sizes.setdefault(bound[1], size)
    return sizes_by(types, sizes)


def _cut_site(
    match: Match, lowered: Lowered, layout: Layout, proving: Proving, sizes_of: SizesOf
) -> SitePair:
    types, roles = proving.types, _operands(match)
    _refuse_inner(match, roles)
    inputs = list(dict.fromkeys(roles.values()))
    dtypes = {value: types.dtype(value) or match.dtype for value in inputs}
    old, new = [pair[0] for pair in lowered.replace], [pair[1] for pair in lowered.replace]
    for value, replacement in lowered.replace:
        if value is match.sum or (value is match.output and match.quantized is None):
            dtypes[value] = dtypes[replacement] = match.dtype

    def type_of(value: ir.Value) -> int | None:
        return dtypes[value] if value in dtypes else types.dtype(value)

    aliases = {v: match.x for v in match.aliases if types.dtype(v) in (None, match.dtype)}
    aliases |= dict(() if match.rotary is None else match.rotary.aliases)
    before, after = _imports(match, lowered, proving.opset_imports)
    return SitePair(
        match=match,
        layout=layout,
        original=cut(
            old, inputs, opset_imports=before, functions=proving.functions, type_of=type_of,
            sizes_of=sizes_of, aliases=aliases,
        ),
        new=cut(
            new, inputs, opset_imports=after, type_of=type_of, sizes_of=sizes_of,
            functions=[*lowered.functions, *proving.functions], constants=lowered.initializers,
        ),
        ports={role: f"x{inputs.index(value)}" for role, value in roles.items()},
        outputs=tuple("sum" if value is match.sum else "y" for value in old),
    )  # fmt: skip


def _operands(match: Match) -> dict[str, ir.Value]:
    return {role: value for role in _ROLES if (value := getattr(match, role)) is not None}


def _refuse_inner(match: Match, operands: Mapping[str, ir.Value]) -> None:
    """Refuse operands, such as a gate, that are values on the way to 1/rms.

    Raises:
        InputError: there is one.
    """
    core = match
    while core.inner is not None:
        core = core.inner
    own = {*_operands(core).values(), *core.aliases}
    read = {value for node in core.nodes for value in node.inputs} - own
    for role, value in operands.items():
        if value in read:
            raise InputError(
                "An operand of the norm is also a value on the way to its root, so that it cannot"
                " be chosen independently of x.",
                found=f"the {role} {value.name!r}",
                fix="keep the original nodes, or omit the proof",
            )


def weight_shape(value: ir.Value, row: tuple[int, ...], match: Match) -> tuple[int, ...]:
    """Return the declared shape of a scale or bias, or else that of the normalised axes.

    A gain of any shape is proved as one number per feature: it is multiplied with as it is.
    """
    if match.gain:
        return (*row, *(1,) * (-1 - match.spec.last_axis))
    declared = static_shape(value)
    return declared if declared is not None and math.prod(declared) == math.prod(row) else row


def _imports(
    match: Match, lowered: Lowered, opset_imports: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return operator sets of the source, those of its function first, and of the new nodes."""
    producer = match.output.producer()
    graph = producer.graph if producer is not None else None
    before = {**opset_imports, **(graph.opset_imports if graph is not None else {})}
    before.setdefault("", max(13, lowered.min_opset))
    after = dict(before)
    needed = [("", lowered.min_opset), *((node.domain, 1) for node in lowered.nodes)]
    for function in lowered.functions:
        needed += [(function.domain, 1), *function.opset_imports.items()]
    for domain, version in needed:
        after[domain] = max(after.get(domain, 1), version)
    return before, after


def stored_weight(value: ir.Value | None) -> Array | None:
    """Return the real scale or bias of a norm: the only weights that are ever read."""
    tensor = None if value is None else value.const_value
    if tensor is None or tensor.size > _MAX_SCALE:
        return None
    try:
        return np.asarray(tensor.numpy())
    except (OSError, ValueError):
        return None
