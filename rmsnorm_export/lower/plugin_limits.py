"""What the TensorRT plugin computes, of what the operator can say.

A node whose ``plugin_namespace`` is that of the plugin is the plugin's, once it is registered: when
the plugin then refuses it, the build of the engine fails, and the function body in the file is not
tried. So only a node that the plugin takes names it; TensorRT runs the others from their bodies.
plugins/kernels/rmsnorm.cu (``refusal``) and plugins/tensorrt/node.h are the other half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import DOUBLE, FLOAT, Kind, NormSpec
from rmsnorm_export.recognize.shape_rules import Dims

MAX_ROW = 1 << 20
"""Elements of a row (``kMaxRow``)."""

_CREATORS = (
    "_scale_before_cast", "_scale_after_cast", "_round_rstd", "_rstd_not_rounded",
    "_epsilon_outside", "_epsilon_inside", "_stash_float32", "_stash_float16", "_stash_bfloat16",
    "_whole", "_ungrouped", "_last_axis",
)  # fmt: skip
_GATED_CREATORS = ("_silu", "_sigmoid", "_gate_first", "_gate_last")


def creator_names(kind: Kind) -> frozenset[str]:
    """Operators that the plugin library computes as ``kind`` (plugins/tensorrt/creators.cpp).

    ``assign_bodies`` names a second body after what tells it from the first. The plugin reads that
    from the attributes, and has a creator for each such name without a size in it.
    """
    suffixes = ("", *_CREATORS, *(_GATED_CREATORS if kind == "GatedRMSNorm" else ()))
    return frozenset(kind + suffix for suffix in suffixes)


def plugin_refuses(
    name: str,
    spec: NormSpec,
    *,
    dtype: int,
    n: int | None,
    weights: Sequence[tuple[str, int, Dims]],
) -> str:
    """Why the plugin does not take a node, as far as the file tells; "" when it does.

    Args:
        name: the node's operator.
        spec: the norm.
        dtype: element type of X.
        n: elements of a row, None when unknown.
        weights: name, element type and shape of the scale and the bias that the node has.
    """
    if name not in creator_names(spec.kind):
        return "it has no creator of that name"
    if DOUBLE in (dtype, spec.stash_type):
        return "it does not compute in float64"
    if spec.stash_type not in (FLOAT, dtype):
        return f"it does not compute {type_name(dtype)} rows in {type_name(spec.stash_type)}"
    if n is not None and n > MAX_ROW:
        return f"it takes rows of {MAX_ROW} elements at most"
    for label, weight, shape in weights:
        if weight not in (dtype, FLOAT):
            return f"it takes no {type_name(weight)} {label} for {type_name(dtype)} rows"
        sizes = [size for size in shape or () if isinstance(size, int)]
        if shape is None or len(sizes) < len(shape):
            continue
        elements = math.prod(sizes)
        if elements != n and (n is not None or elements == 1):
            return f"it wants a {label} of one element for each of the row"
    return ""
