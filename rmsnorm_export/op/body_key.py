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

from rmsnorm_export.op.dtypes import round_to, type_name
from rmsnorm_export.op.native import operator_name
from rmsnorm_export.op.operands import check_offset
from rmsnorm_export.op.spec import (
    DOUBLE,
    FLOAT,
    HALF_TYPES,
    QUANTIZE,
    Activation,
    Kind,
    NormSpec,
    Quantize,
)

CASTLIKE_OPSET = 15
"""First opset with CastLike; below it a body with casts is for one type of X only."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BodyKey:
    """Everything that shapes a function body.

    Attributes:
        kind: operator.
        has_scale, has_bias: formal inputs; a bias implies a scale, for inputs are positional.
        casts: X may be of another type than the stash type.
        stash_type, scale_before_cast, round_rstd, epsilon_outside, epsilon_clamp, partial_size,
            group_size, axis, last_axis, activation, gate_first, association, rotary_dim,
            rotary_interleaved: as in ``NormSpec``.
        has_offset: the attribute ``scale_offset`` is added to the scale.
        scale_cast, bias_cast: may be of another type than the one in which the product is computed.
        dtype: element type of X, where the body must name it (casts below opset 15).
        epsilon, scale_offset: literal values, where a float32 attribute cannot hold them.
        quantize: the output is codes, made so (``op.spec.QUANTIZE``); None: the norm.
        table_dtype: element type of cos and sin, where it is not that of X.
        half_table: cos and sin have one element for each pair.
    """

    kind: Kind = "RMSNorm"
    has_scale: bool = True
    has_bias: bool = False
    casts: bool = False
    stash_type: int = FLOAT
    scale_before_cast: bool = False
    round_rstd: bool = False
    has_offset: bool = False
    epsilon_outside: bool = False
    partial_size: int = 0
    group_size: int = 0
    axis: int = -1
    scale_cast: bool = False
    bias_cast: bool = False
    dtype: int | None = None
    epsilon: float | None = None
    scale_offset: float | None = None
    activation: Activation = "silu"
    gate_first: bool = False
    association: int = 0
    epsilon_clamp: bool = False
    last_axis: int = -1
    quantize: Quantize | None = None
    rotary_dim: int = 0
    rotary_interleaved: bool = False
    table_dtype: int | None = None
    half_table: bool = False

    @property
    def rounds(self) -> bool:
        """``x * (1 / rms)`` and ``x / rms`` are different numbers: there is a half type."""
        return self.casts or self.stash_type in HALF_TYPES

    @property
    def any_order(self) -> bool:
        """Scaling before or after the cast is the same: no cast, or nothing to scale."""
        gated_after = self.kind == "GatedRMSNorm" and not self.gate_first
        return not self.casts or not (self.has_scale or gated_after or self.round_rstd)

    def product_type(self, dtype: int) -> int:
        """Element type of the product with the scale, for X of ``dtype``.

        A scale of ones or a bias of zeros that a site passes only because its body asks for one
        has this type: the body may take it without a cast.
        """
        return self.stash_type if self.scale_before_cast else dtype


def body_key(
    spec: NormSpec,
    *,
    dtype: int,
    scale_dtype: int | None,
    bias_dtype: int | None,
    opset: int,
    quantize: Quantize | None = None,
    table_dtype: int | None = None,
    half_table: bool = False,
) -> BodyKey:
    """The smallest body for one site.

    Args:
        spec: the norm.
        dtype: ONNX element type of X.
        scale_dtype, bias_dtype: element types, None where the site has no such operand.
        opset: version of the default ONNX domain in the model.
        quantize, half_table: as in ``BodyKey``.
        table_dtype: element type of cos and sin, None where the site has none.

    Raises:
        UsageError: ``scale_offset`` without a scale.
    """
    check_offset(spec, scale_dtype)
    spec = spec.canonical(dtype)
    casts = dtype != spec.stash_type
    table = table_dtype if table_dtype != dtype else None
    product_type = spec.stash_type if spec.scale_before_cast else dtype
    # What a float32 attribute can hold is read from the node, and does not tell bodies apart.
    same = {
        **{name: getattr(spec, name) for name in (*_FIXED, *_ORDER)},
        "epsilon": _literal(spec.epsilon, spec.stash_type),
        "scale_offset": _literal(spec.scale_offset, product_type),
        "association": spec.association if scale_dtype is not None else 0,
    }
    key = BodyKey(
        **same,
        has_scale=scale_dtype is not None or bias_dtype is not None,
        has_bias=bias_dtype is not None,
        casts=casts,
        has_offset=spec.scale_offset != 0,
        scale_cast=scale_dtype not in (None, product_type),
        bias_cast=bias_dtype not in (None, product_type),
        dtype=dtype if (casts or table) and opset < CASTLIKE_OPSET else None,
        quantize=quantize,
        table_dtype=table,
        half_table=half_table,
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
    site then passes ones or zeros (of ``product_type``), which change nothing.
    """
    if any(getattr(a, name) != getattr(b, name) for name in (*_FIXED, *_TABLES, QUANTIZE)):
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
    that no float32 attribute can); the others say after it
    in what they differ, e.g. ``RMSNorm_scale_before_cast``. The outcome does not depend on the
    order of the sites, except that a tie goes to the earlier one. ``reserved`` names are not used.
    """
    counts = Counter(keys)
    groups: list[list[BodyKey]] = []
    shared: list[BodyKey] = []
    # Keys of fixed rounding order first: those of any order then join the largest group they can.
    for key in sorted(counts, key=lambda key: (key.any_order, -counts[key])):
        sizes = [sum(counts[member] for member in group) for group in groups]
        for index in sorted(range(len(groups)), key=lambda index: -sizes[index]):
            joined = unify(shared[index], key)
            if joined is not None:
                groups[index].append(key)
                shared[index] = joined
                break
        else:
            groups.append([key])
            shared.append(key)
    sizes = [sum(counts[member] for member in group) for group in groups]
    first = [min(keys.index(member) for member in group) for group in groups]
    names: dict[str, BodyKey] = {}
    result: dict[BodyKey, tuple[str, BodyKey]] = {}
    for index in sorted(range(len(groups)), key=lambda index: (-sizes[index], first[index])):
        body = shared[index]
        name = _name(body, names, reserved)
        names[name] = body
        result.update((member, (name, body)) for member in groups[index])
    return [result[key] for key in keys]


_JOINED = ("has_scale", "has_bias", "casts", "has_offset", "scale_cast", "bias_cast")
_ORDER = ("scale_before_cast", "round_rstd")
_TABLES = ("table_dtype", "half_table")
_FIXED = tuple(f.name for f in dataclasses.fields(NormSpec) if f.name not in _ORDER)


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
    literal = body.epsilon is not None or body.scale_offset is not None
    plain = not (literal or body.epsilon_clamp or body.last_axis != -1)
    if plain and base not in names and base not in reserved:
        return base
    main = names.get(base, BodyKey(kind=body.kind, quantize=body.quantize))
    words = [
        word
        for field, word in _words(body)
        if getattr(body, field) != getattr(main, field) and word
    ]
    name = "_".join([base, *words])
    wishes = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(wish for wish in wishes if wish not in names and wish not in reserved)


def _words(body: BodyKey) -> list[tuple[str, str]]:
    """A word for the value of each field that can keep two bodies apart.

    No word has a size in it, so that a library of kernels can list the names; bodies that differ in
    a size alone are numbered.
    """
    order = "before" if body.scale_before_cast else "after"
    axes = "several_axes" if body.axis < -1 else "last_axis"
    return [
        ("stash_type", f"stash_{type_name(body.stash_type)}"),
        ("dtype", f"of_{type_name(body.dtype or body.stash_type)}"),
        ("scale_before_cast", f"scale_{order}_cast"),
        ("round_rstd", "round_rstd" if body.round_rstd else "rstd_not_rounded"),
        ("epsilon_outside", "epsilon_outside" if body.epsilon_outside else "epsilon_inside"),
        ("epsilon_clamp", "epsilon_clamp"),
        ("partial_size", "partial" if body.partial_size else "whole"),
        ("group_size", "grouped" if body.group_size else "ungrouped"),
        ("last_axis", "channels"),
        ("axis", axes if body.last_axis == -1 else ""),
        ("activation", body.activation),
        ("association", f"association_{body.association}"),
        ("gate_first", "gate_first" if body.gate_first else "gate_last"),
        ("rotary_dim", "rotary_part" if body.rotary_dim else "rotary_whole"),
        ("rotary_interleaved", "interleaved" if body.rotary_interleaved else "halves"),
        ("half_table", "half_table" if body.half_table else "full_table"),
        (
            "table_dtype",
            f"table_{type_name(body.table_dtype)}" if body.table_dtype else "table_as_x",
        ),
        ("epsilon", "epsilon_literal" if body.epsilon is not None else "epsilon_attribute"),
        ("scale_offset", "offset_literal" if body.scale_offset is not None else "offset_attribute"),
    ]
