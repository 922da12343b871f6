"""The nodes that the TensorRT plugin takes, as far as a file tells.

A node whose ``plugin_namespace`` is that of the plugin is the plugin's, once it is registered: when
the plugin then refuses it, the build of the engine fails, and the function body in the file is not
tried. So only a node that the plugin takes names it; TensorRT runs the others from their bodies.
Names and limits are those of ``plugins/kernels/plugin_limits.h``, with which it is compiled.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path

from rmsnorm_export.op import spec as op
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.recognize.shape_rules import Dims
from rmsnorm_export.recognize.shape_values import static
from rmsnorm_export.system.reading import read_file

_TABLE = Path(__file__).parents[1].joinpath("tensorrt/plugin/_sources/kernels/plugin_limits.h")


@functools.cache
def creator_names() -> frozenset[str]:
    """Return the operators that the plugin's library computes.

    ``assign_bodies`` names a second body after what tells it from the first. The plugin reads that
    from the attributes, and has a creator for each such name without a size in it.
    """
    rows = re.findall(r'\{"([\w ]+)",[^"]*((?:"[\w ]+"\s*)+)\}', _table())
    return frozenset(
        operator + suffix
        for operators, suffixes in rows
        for operator in operators.split()
        for suffix in ("", *re.findall(r"_\w+", suffixes))
    )


@functools.cache
def _table() -> str:
    return read_file(_TABLE).decode()


@functools.cache
def limit(name: str) -> int:
    """Return a number of the table."""
    return int(re.findall(rf"\b{name} = (\d+);", _table())[0])


def plugin_refuses(
    name: str,
    spec: op.NormSpec,
    *,
    dtype: int,
    n: int | None,
    weights: Sequence[tuple[str, int, Dims]],
    tables: tuple[Dims, Dims] | None = None,
) -> str:
    """Return why the plugin does not take a node, as far as the file tells; "" when it does.

    Args:
        name: the node's operator.
        spec: the norm.
        dtype: element type of X.
        n: elements of a row, None when unknown.
        weights: name, element type and shape of the scale and the bias that the node has.
        tables: shapes of X and of cos, where it has one.
    """
    length, most, unknown = n or 0, limit("kMaxRow"), spec.beyond(op.IN_KERNELS)
    reasons = {
        f"it does not know the attribute {unknown}": unknown,
        "it does not compute in float64": op.DOUBLE in (dtype, spec.stash_type),
        "it has no creator of that name": name not in creator_names(),
        f"it does not compute {type_name(dtype)} rows in {type_name(spec.stash_type)}": (
            spec.stash_type not in (op.FLOAT, dtype)
        ),
        f"it takes rows of {most} elements at most": length > most,
        "it rotates rows of an even number of elements": tables is not None and length % 2,
        "its cos and sin repeat along at most two runs of axes": (
            tables is not None and _runs_of_axes(*tables) > limit("kMaxRuns")
        ),
    }
    for label, weight, shape in weights:
        sizes = static(shape)
        elements = n if sizes is None else math.prod(sizes)
        wrong = elements != n and (n is not None or elements == 1)
        reasons |= {
            f"it takes no {type_name(weight)} {label} for {type_name(dtype)} rows": (
                weight not in (dtype, op.FLOAT)
            ),
            f"it wants a {label} of one element for each of the row": wrong,
        }
    return next((reason for reason, is_so in reasons.items() if is_so), "")


def _runs_of_axes(x: Dims, table: Dims) -> int:
    """Return the runs of leading axes along which a table has rows of its own, or repeats."""
    if x is None or table is None:
        return 0
    padded = (*(1,) * (len(x) - len(table)), *table)
    own = [b != 1 for a, b in zip(x[:-1], padded[:-1], strict=True) if a != 1]
    return sum(a != b for a, b in itertools.pairwise([None, *own]))
