"""Which function bodies a model needs: as few as possible, one per operator name.

TensorRT's parser finds a model-local function by its name alone (domain and overload are not
looked at) and wants as many inputs on the node as the function has. So the sites of a model share
one body per operator wherever one body can serve them all; a site then passes what is neutral to it
(a scale of ones, a bias of zeros, a scale_offset of 0).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain, count
from typing import Any

from rmsnorm_export.op.dtypes import round_to, type_name
from rmsnorm_export.op.native import operator_name
from rmsnorm_export.op.spec import DOUBLE, FLOAT, HALF_TYPES, QUANTIZE, NormSpec, Quantize

CASTLIKE_OPSET = 15
"""First opset with CastLike; below it a body with casts is for one type of X only."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BodyKey(NormSpec):
    """Everything that shapes a function body: the norm but for the numbers that a node says.

    Attributes:
        has_scale, has_bias: formal inputs; a bias implies a scale, for inputs are positional.
        casts: X may be of another type than the stash type.
        has_offset: the attribute ``scale_offset`` is added to the scale.
        scale_cast, bias_cast: may be of another type than the one in which the product is computed.
        dtype: element type of X, where the body must name it (casts below opset 15).
        literal_epsilon, literal_offset: where a float32 attribute cannot hold them.
        quantize: how the output is quantized (``op.spec.QUANTIZE``); None: it is not.
        table_dtype: element type of cos and sin, where it is not that of X.
        half_table: cos and sin have one element for each pair.
        single: the row is one number, or the scale that a site without one passes: ONNX Runtime
            removes a Mul with that.
        expands: a ``unit_length`` is expanded to the row before it divides, as PyTorch writes it:
            ONNX Runtime rounds it on a CPU where two operators in a row have half kernels.
    """

    epsilon: float = 0.0  # that of the node counts
    has_scale: bool = True
    has_bias: bool = False
    casts: bool = False
    has_offset: bool = False
    scale_cast: bool = False
    bias_cast: bool = False
    dtype: int | None = None
    literal_epsilon: float | None = None
    literal_offset: float | None = None
    quantize: Quantize | None = None
    table_dtype: int | None = None
    half_table: bool = False
    single: bool = False
    expands: bool = False

    @property
    def rounds(self) -> bool:
        """``x * (1 / rms)`` and ``x / rms`` are different numbers: there is a half type."""
        return self.casts or self.stash_type in HALF_TYPES

    @property
    def any_order(self) -> bool:
        """Scaling before or after the cast is the same: no cast, or nothing to scale."""
        gated_after = self.kind == "GatedRMSNorm" and not self.gate_first
        return not self.casts or not (self.has_scale or gated_after or self.round_rstd)


def body_key(
    spec: NormSpec,
    *,
    dtype: int,
    scale_dtype: int | None,
    bias_dtype: int | None,
    opset: int,
    table_dtype: int | None = None,
    **own: Any,
) -> BodyKey:
    """The smallest body for one site.

    Args:
        spec: the norm.
        dtype: ONNX element type of X.
        scale_dtype, bias_dtype: element types, None where the site has no such operand.
        opset: version of the default ONNX domain in the model.
        table_dtype: element type of cos and sin, None where the site has none.
        **own: of ``BodyKey``: what the norm does not say.
    """
    spec = spec.canonical(dtype)
    casts = dtype != spec.stash_type
    table = table_dtype if table_dtype != dtype else None
    product_type, scale_type = spec.product_type(dtype), spec.scale_type(dtype)
    key = BodyKey(
        **{name: getattr(spec, name) for name in (*_FIXED, *_ORDER)},
        association=spec.association if scale_dtype is not None else 0,
        literal_epsilon=_literal(spec.epsilon, spec.stash_type),
        literal_offset=_literal(spec.scale_offset, scale_type),
        has_scale=scale_dtype is not None or bias_dtype is not None,
        has_bias=bias_dtype is not None,
        casts=casts,
        has_offset=spec.scale_offset != 0,
        scale_cast=scale_dtype not in (None, scale_type),
        bias_cast=bias_dtype not in (None, product_type),
        dtype=dtype if (casts or table) and opset < CASTLIKE_OPSET else None,
        table_dtype=table,
        **own,
    )
    return dataclasses.replace(key, scale_before_cast=False) if key.any_order else key


def for_any_type(key: BodyKey, opset: int) -> BodyKey:
    """The body for float32 rows as one that takes other types, too; others as they are.

    What converts a model to float16 converts its nodes and leaves functions alone: with casts that
    do nothing in float32 the body computes a float16 row in float32. ONNX Runtime 1.17 to 1.31 fuse
    it in float32 all the same, and from 1.23 on after the conversion. Below opset 15 a body with
    casts names one type, so there it has none.
    """
    if key.casts or key.stash_type != FLOAT or opset < CASTLIKE_OPSET:
        return key
    return dataclasses.replace(key, casts=True)


def unify(a: BodyKey, b: BodyKey) -> BodyKey | None:
    """The body that serves the sites of both, or None when there is none.

    The result may ask for operands that a site does not have (``has_scale``, ``has_bias``); the
    site then passes ones (of ``scale_type``) or zeros (of ``product_type``), which change nothing.
    The body may have no cast of them.
    """
    if any(getattr(a, name) != getattr(b, name) for name in (*_FIXED, *_BODY)):
        return None
    if (a.dtype is not None or b.dtype is not None) and _named_type(a) != _named_type(b):
        return None
    if a.rounds and b.rounds and a.round_rstd != b.round_rstd:
        return None
    if a.any_order and b.any_order:
        order = a if a.rounds else b
    elif a.any_order:
        order = b
    elif b.any_order or (a.scale_before_cast, a.round_rstd) == (b.scale_before_cast, b.round_rstd):
        order = a
    else:
        return None
    return dataclasses.replace(
        a,
        **{name: getattr(a, name) or getattr(b, name) for name in _JOINED},
        dtype=a.dtype if a.dtype is not None else b.dtype,
        scale_before_cast=order.scale_before_cast,
        round_rstd=order.round_rstd,
    )


def assign_bodies(
    keys: Sequence[BodyKey], reserved: Collection[str] = ()
) -> list[tuple[str, BodyKey]]:
    """For each site's key the name of its function and the body that it shares.

    Of each operator, the body with most sites has the operator's own name (unless it holds a number
    that no float32 attribute can); the others say after it how they differ, e.g.
    ``RMSNorm_scale_before_cast``. The outcome does not depend on the order of the sites, except
    that a tie goes to a body that the plugin may have, which is not ``single``, and then to the
    earlier one. ``reserved`` names are not used.
    """
    counts = Counter(keys)
    groups: list[_Group] = []
    # Keys of fixed rounding order first: those of any order then join the largest group they can.
    for key in sorted(counts, key=lambda key: (key.any_order, -counts[key])):
        for group in sorted(groups, key=lambda group: -group.sites):
            joined = unify(group.body, key)
            if joined is not None:
                group.body = joined
                break
        else:
            groups.append(group := _Group(key))
        group.members.append(key)
        group.sites += counts[key]
    names: dict[str, BodyKey] = {}
    result: dict[BodyKey, tuple[str, BodyKey]] = {}

    def place(group: _Group) -> tuple[int, bool, int]:
        return -group.sites, group.body.single, min(map(keys.index, group.members))

    for group in sorted(groups, key=place):
        name = _name(group.body, names, reserved)
        names[name] = group.body
        result.update(dict.fromkeys(group.members, (name, group.body)))
    return [result[key] for key in keys]


@dataclasses.dataclass(slots=True)
class _Group:
    """The keys that share a body, and how many sites have them."""

    body: BodyKey
    members: list[BodyKey] = dataclasses.field(default_factory=list)
    sites: int = 0


_JOINED = ("has_scale", "has_bias", "casts", "has_offset", "scale_cast", "bias_cast")
_ORDER = ("scale_before_cast", "round_rstd")
_IN_NODE = ("epsilon", "scale_offset")
"""Numbers that a node says: a float32 attribute does not tell bodies apart."""
_FIXED = tuple(
    field.name
    for field in dataclasses.fields(NormSpec)
    if field.name not in (*_ORDER, *_IN_NODE, "association")
)
_BODY = (
    "association", "literal_epsilon", "literal_offset", "table_dtype", "half_table", "single",
    "expands", QUANTIZE,
)  # fmt: skip


def _named_type(key: BodyKey) -> int | None:
    """The type of X where the key determines it."""
    return key.dtype if key.casts else key.stash_type


def _literal(value: float, used_in: int) -> float | None:
    return value if used_in == DOUBLE and float(round_to(value, FLOAT)) != value else None


def _name(body: BodyKey, names: dict[str, BodyKey], reserved: Collection[str]) -> str:
    """The operator's name, or that and what distinguishes the body from the operator's first."""
    base = operator_name(body.kind, body.quantize)
    # A kernel registered for the operator reads numbers from float32 attributes: a body with a
    # number that those cannot hold has a name that no kernel has. One with an attribute that an
    # older library of kernels does not look at has a name that such a library does not have.
    usual = BodyKey(kind=body.kind)
    plain = all(getattr(body, name) == getattr(usual, name) for name in _IN_A_NAME)
    if plain and base not in names and base not in reserved:
        return base
    main = names.get(base, BodyKey(kind=body.kind, quantize=body.quantize))
    words = [
        _word(body, field)
        for field in _WORDS
        if getattr(body, field) != getattr(main, field)
        and (field != "axis" or body.last_axis == -1)
    ]
    name = "_".join([base, *words])
    wishes = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(wish for wish in wishes if wish not in names and wish not in reserved)


def _word(body: BodyKey, field: str) -> str:
    value = getattr(body, field)
    if field == "dtype":
        value = value or body.stash_type
    word, other = _WORDS[field]
    chosen = word if value != getattr(BodyKey(), field) else other
    return chosen.format(type_name(value) if field.endswith("type") and value else value)


_FIELD_WORDS = {
    "stash_type": ("stash_{}", "stash_{}"),
    "dtype": ("of_{}", ""),
    "scale_before_cast": ("scale_before_cast", "scale_after_cast"),
    "round_rstd": ("round_rstd", "rstd_not_rounded"),
    "epsilon_outside": ("epsilon_outside", "epsilon_inside"),
    "epsilon_clamp": ("epsilon_clamp", "epsilon_clamp"),
    "partial_size": ("partial", "whole"),
    "group_size": ("grouped", "ungrouped"),
    "last_axis": ("channels", "channels"),
    "axis": ("several_axes", "last_axis"),
    "activation": ("{}", "{}"),
    "association": ("association_{}", "association_{}"),
    "gate_first": ("gate_first", "gate_last"),
    "rotary_dim": ("rotary_part", "rotary_whole"),
    "rotary_interleaved": ("interleaved", "halves"),
    "half_table": ("half_table", "full_table"),
    "expands": ("expanded", "not_expanded"),
    "table_dtype": ("table_{}", "table_as_x"),
    "literal_epsilon": ("epsilon_literal", "epsilon_attribute"),
    "literal_offset": ("offset_literal", "offset_attribute"),
}
"""A word for a field that keeps two bodies apart: where it is not at its default, and where it is.

No word has a size in it, so that a library of kernels can list the names; bodies that differ in a
size alone are numbered. Names that were written stay; an attribute that is new needs no row.
"""

LATER_WORDS = {
    name: (name, f"default_{name}") for name in _FIXED if name not in ("kind", *_FIELD_WORDS)
}
_WORDS = {**_FIELD_WORDS, **LATER_WORDS}
_IN_A_NAME = ("literal_epsilon", "literal_offset", "epsilon_clamp", "last_axis", *LATER_WORDS)
