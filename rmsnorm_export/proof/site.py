"""The two small models of one site, original and new, and the arrays that fit them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.proof.cut import SizesOf, cut
from rmsnorm_export.proof.feeds import Batch, Layout, static_shape
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.shape_values import bounded
from rmsnorm_export.recognize.types import Types

_ROLES = ("x", "scale", "bias", "residual", "gate", "code_scale", "cos", "sin")
_OWN_TYPE = ("code_scale", "cos", "sin")


@dataclasses.dataclass(frozen=True, slots=True)
class SitePair:
    """What replaces and what is replaced, with the same inputs and outputs.

    Attributes:
        match: the site.
        original: nodes of the source, from x, scale, bias, residual and gate to the last value.
        new: the lowered nodes, from the same inputs.
        ports: role -> name of the graph input in both models.
        outputs: for every output ``y<i>``: ``y``, ``sum`` or ``other``.
    """

    match: Match
    original: ir.Model
    new: ir.Model
    ports: Mapping[str, str]
    outputs: tuple[str, ...]

    def feeds(self, batch: Batch, scale: Array | None, bias: Array | None) -> dict[str, Array]:
        """Arrays of what every norm has, by name of the graph input."""
        place = self.match.spec.last_axis
        x, residual, gate = (
            np.ascontiguousarray(np.moveaxis(array, -1, place))
            for array in (batch.x, batch.residual, batch.gate)
        )
        arrays = {"x": x, "scale": scale, "bias": bias, "residual": residual, "gate": gate}
        feeds: dict[str, Array] = {}
        for role, name in self.ports.items():
            array = arrays.get(role)
            if array is not None:
                feeds.setdefault(name, array)
        return feeds


def cut_site(
    match: Match,
    lowered: Lowered,
    layout: Layout,
    *,
    types: Types,
    opset_imports: Mapping[str, int],
    functions: Iterable[ir.Function] = (),
) -> SitePair:
    """Cut the original and the new nodes of a site.

    Where they do not follow from the site's inputs alone, shapes that depend on other values are
    those that these values have with the sizes of ``layout``.

    Raises:
        InputError: one of them needs a value that is none of the site's inputs (see ``cut``).
    """
    arguments = (match, lowered, layout, types, opset_imports, tuple(functions))
    try:
        return _cut_site(*arguments, sizes_of=lambda _: None)
    except InputError:
        return _cut_site(*arguments, sizes_of=sizes_in(match, layout, types))


def sizes_in(match: Match, layout: Layout, types: Types) -> SizesOf:
    """The sizes of any value where x has those of ``layout``, None for those not known."""
    pairs = zip(types.shape(match.x) or (), layout.shape(match.spec), strict=False)
    sizes: dict[int | str | None, int] = {dim: size for dim, size in pairs if isinstance(dim, str)}
    for dim, size in list(sizes.items()):
        found = bounded(dim)
        if found is not None and size < found[0]:
            sizes.setdefault(found[1], size)

    def sizes_of(value: ir.Value) -> list[int | None] | None:
        dims = types.shape(value)
        return None if dims is None else [d if isinstance(d, int) else sizes.get(d) for d in dims]

    return sizes_of


def _cut_site(
    match: Match,
    lowered: Lowered,
    layout: Layout,
    types: Types,
    opset_imports: Mapping[str, int],
    functions: Iterable[ir.Function],
    sizes_of: SizesOf,
) -> SitePair:
    roles = _operands(match)
    _refuse_inner(match, roles)
    inputs = list(dict.fromkeys(roles.values()))
    names = {value: f"x{index}" for index, value in enumerate(inputs)}
    given = {
        value: weight_dtype(value, layout) if role in ("scale", "bias") else match.dtype
        for role, value in reversed(roles.items())
        if role not in _OWN_TYPE
    }
    old = [pair[0] for pair in lowered.replace]
    new = [pair[1] for pair in lowered.replace]
    for value, replacement in lowered.replace:
        if value is match.sum or (value is match.output and match.quantized is None):
            given[value] = given[replacement] = match.dtype

    def type_of(value: ir.Value) -> int | None:
        return given[value] if value in given else types.dtype(value)

    imports = _imports_of(match, opset_imports)
    imports.setdefault("", max(13, lowered.min_opset))
    return SitePair(
        match=match,
        original=cut(
            old,
            inputs,
            opset_imports=imports,
            functions=functions,
            type_of=type_of,
            sizes_of=sizes_of,
            aliases={
                **{v: match.x for v in match.aliases if types.dtype(v) in (None, match.dtype)},
                **dict(() if match.rotary is None else match.rotary.aliases),
            },
        ),
        new=cut(
            new,
            inputs,
            opset_imports=_merge_imports(imports, lowered),
            functions=[*lowered.functions, *functions],
            type_of=type_of,
            sizes_of=sizes_of,
            constants=lowered.initializers,
        ),
        ports={role: names[value] for role, value in roles.items()},
        outputs=tuple(
            "y" if value is match.output else "sum" if value is match.sum else "other"
            for value in old
        ),
    )


def _operands(match: Match) -> dict[str, ir.Value]:
    return {role: value for role in _ROLES if (value := getattr(match, role)) is not None}


def _refuse_inner(match: Match, operands: Mapping[str, ir.Value]) -> None:
    """
    Raises:
        InputError: an operand, such as a gate, is a value on the way to 1/rms.
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
                " be chosen apart from x.",
                found=f"the {role} {value.name!r}",
                fix="keep the original nodes, or omit the proof",
            )


def weight_shape(value: ir.Value, row: tuple[int, ...]) -> tuple[int, ...]:
    """The declared shape of a scale or bias, or else that of the normalised axes."""
    known = static_shape(value)
    return known if known is not None and math.prod(known) == math.prod(row) else row


def weight(value: ir.Value, values: Array, layout: Layout) -> Array:
    """``values`` in the type and shape of a scale or bias.

    Raises:
        InputError: another number of elements.
    """
    shape = weight_shape(value, layout.row)
    if values.size != math.prod(shape):
        raise InputError(
            "A scale or bias does not fit the row.",
            found=f"{values.size} values for {value.name!r} of shape {shape}",
            fix="give one value per element of the row",
        )
    return values.reshape(shape).astype(numpy_dtype(weight_dtype(value, layout)))


def weight_dtype(value: ir.Value, layout: Layout) -> int:
    """Declared element type of a scale or bias, or else the one being tried."""
    return layout.weights if value.dtype is None else int(value.dtype)


def _imports_of(match: Match, opset_imports: Mapping[str, int]) -> dict[str, int]:
    """Operator sets of the function that holds the site, of the model where it is in none."""
    producer = match.output.producer()
    graph = producer.graph if producer is not None else None
    own = dict(graph.opset_imports) if graph is not None else {}
    merged = {**opset_imports, **own}
    if "ai.onnx" in merged:
        merged[""] = merged.pop("ai.onnx")
    return merged


def _merge_imports(imports: Mapping[str, int], lowered: Lowered) -> dict[str, int]:
    """Operator sets of the new model: those of the source, raised to what the new nodes need."""
    merged = dict(imports)
    needed = [("", lowered.min_opset), *((node.domain, 1) for node in lowered.nodes)]
    for function in lowered.functions:
        needed += [(function.domain, 1), *function.opset_imports.items()]
    for domain, version in needed:
        merged[domain] = max(merged.get(domain, 1), version)
    return merged
