"""The two small models of one site, original and new, and the arrays that fit them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.lower.lowered import Lowered
from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.op.spec import FLOAT
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.verify.cut import cut
from rmsnorm_export.verify.feeds import Batch, case_names, leading_sizes

_ROLES = ("x", "scale", "bias", "residual", "gate")

# Largest x that a proof makes when the source fixes the leading sizes: 32 MB in float64.
_MAX_ELEMENTS = 2**22

# Longest row that is tried at all; no norm of a model comes near.
_MAX_ROW = 2**24


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Sizes and types of the inputs of one attempt.

    Attributes:
        lead: leading sizes of x.
        row: sizes of the normalised axes.
        weights: ONNX element type of scale and bias where the source does not say.
    """

    lead: tuple[int, ...]
    row: tuple[int, ...]
    weights: int


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
        """Arrays by name of the graph input."""
        arrays = {
            "x": batch.x,
            "scale": scale,
            "bias": bias,
            "residual": batch.residual,
            "gate": batch.gate,
        }
        found: dict[str, Array] = {}
        for role, name in self.ports.items():
            array = arrays[role]
            if array is not None:
                found.setdefault(name, array)
        return found


def cut_site(
    match: Match,
    lowered: Lowered,
    layout: Layout,
    *,
    opset_imports: Mapping[str, int],
    functions: Iterable[ir.Function] = (),
) -> SitePair:
    """Cut the original and the new nodes of a site.

    Raises:
        InputError: one of them needs a value that is none of the site's inputs (see ``cut``).
    """
    roles = {role: value for role in _ROLES if (value := getattr(match, role)) is not None}
    inputs = list(dict.fromkeys(roles.values()))
    names = {value: f"x{index}" for index, value in enumerate(inputs)}
    types = {
        value: _element_type(match, role, value, layout) for role, value in reversed(roles.items())
    }
    old = [pair[0] for pair in lowered.replace]
    new = [pair[1] for pair in lowered.replace]
    for value, replacement in lowered.replace:
        if value is match.output or value is match.sum:
            types[value] = types[replacement] = match.dtype
    imports = _imports_of(match, opset_imports)
    imports.setdefault("", max(13, lowered.min_opset))
    new_imports = _merge_imports(imports, lowered)
    return SitePair(
        match=match,
        original=cut(old, inputs, opset_imports=imports, functions=functions, types=types),
        new=cut(
            new,
            inputs,
            opset_imports=new_imports,
            functions=[*lowered.functions, *functions],
            types=types,
            constants=lowered.initializers,
        ),
        ports={role: names[value] for role, value in roles.items()},
        outputs=tuple(
            "y" if value is match.output else "sum" if value is match.sum else "other"
            for value in old
        ),
    )


def layouts(match: Match, lowered: Lowered) -> Iterator[Layout]:
    """Sizes to try: free ones first, then those that the file declares; types likewise.

    Reshapes of the source may hold constant sizes, which only the declared shape fits.

    Raises:
        InputError: the rows are too long.
    """
    spec, rows = match.spec, len(case_names(match.dtype))
    axes = -spec.axis
    declared = _declared(match)
    rank = match.rank or (len(declared) if declared is not None else max(3, axes + 1))
    if declared is None:
        declared = (None,) * rank
    row = _row_sizes(match, lowered, declared[len(declared) - axes :])
    n = math.prod(row)
    if n > _MAX_ROW:
        raise InputError(
            "the rows are too long to try", found=f"{n} elements", fix="keep the original nodes"
        )
    # Long rows are run a few at a time.
    leads = [leading_sizes(rank - axes, rows if rows * n <= _MAX_ELEMENTS else 1)]
    fixed = tuple(
        free if size is None else size
        for size, free in zip(declared[: rank - axes], leads[0], strict=False)
    )
    if any(size is not None for size in declared[: rank - axes]) and fixed not in leads:
        leads.append(fixed)
    for lead in leads:
        if math.prod(lead) * math.prod(row) > _MAX_ELEMENTS and lead is not leads[0]:
            continue
        for weights in dict.fromkeys((match.dtype, FLOAT)):
            yield Layout(lead, row, weights)
            if all(v is None or v.dtype is not None for v in (match.scale, match.bias)):
                break


def weight_shape(value: ir.Value, row: tuple[int, ...]) -> tuple[int, ...]:
    """The declared shape of a scale or bias, or else that of the normalised axes."""
    known = _static_shape(value)
    return known if known is not None and math.prod(known) == math.prod(row) else row


def weight(value: ir.Value, values: Array, layout: Layout) -> Array:
    """``values`` in the type and shape of a scale or bias.

    Raises:
        InputError: another number of elements.
    """
    shape = weight_shape(value, layout.row)
    if values.size != math.prod(shape):
        raise InputError(
            "a weight does not fit the row",
            found=f"{values.size} values for {value.name!r} of shape {shape}",
            fix="give one value per element of the row",
        )
    return values.reshape(shape).astype(numpy_dtype(weight_dtype(value, layout)))


def weight_dtype(value: ir.Value, layout: Layout) -> int:
    """Declared element type of a scale or bias, or else the one being tried."""
    return layout.weights if value.dtype is None else int(value.dtype)


def _element_type(match: Match, role: str, value: ir.Value, layout: Layout) -> int:
    if role in ("scale", "bias"):
        return weight_dtype(value, layout)
    return match.dtype


def _declared(match: Match) -> tuple[int | None, ...] | None:
    shape = match.x.shape
    if shape is None or (match.rank is not None and len(shape) != match.rank):
        return None
    return tuple(size if isinstance(size, int) else None for size in shape)


def _static_shape(value: ir.Value) -> tuple[int, ...] | None:
    if value.shape is not None:
        sizes = tuple(value.shape)
    elif (tensor := _constant(value)) is not None:
        sizes = tuple(tensor.shape.numpy())
    else:
        return None
    known = tuple(size for size in sizes if isinstance(size, int))
    return known if len(known) == len(sizes) else None


def _constant(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of a Constant node."""
    node = value.producer()
    if value.const_value is not None or node is None or node.op_type != "Constant":
        return value.const_value
    attribute = node.attributes.get("value")
    return None if attribute is None or attribute.is_ref() else attribute.as_tensor()


def _row_sizes(match: Match, lowered: Lowered, declared: tuple[int | None, ...]) -> tuple[int, ...]:
    """Sizes of the normalised axes: declared by x or a weight (one that the rewrite made has the
    sizes that lowering knew), from n, or small where the file does not say."""
    spec, axes = match.spec, -match.spec.axis
    if len(declared) == axes and all(size is not None for size in declared):
        return tuple(size for size in declared if size is not None)
    n = match.n
    made = [value for node in lowered.nodes if node.op_type == "Constant" for value in node.outputs]
    for value in (match.scale, match.bias, *lowered.initializers, *made):
        known = None if value is None else _static_shape(value)
        if known is None:
            continue
        if value in (match.scale, match.bias):
            n = n or math.prod(known)
        if len(known) >= axes > 1 and math.prod(known) == n:
            return known[-axes:]
    if n is None:
        n = max(8, 4 * spec.group_size, spec.partial_size + 3 if spec.partial_size else 0)
        return (*(2,) * (axes - 1), n) if axes > 1 else (n,)
    return (*(1,) * (axes - 1), n)


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
    wanted = [("", lowered.min_opset), *((node.domain, 1) for node in lowered.nodes)]
    for function in lowered.functions:
        wanted += [(function.domain, 1), *function.opset_imports.items()]
    for domain, version in wanted:
        merged[domain] = max(merged.get(domain, 1), version)
    return merged
