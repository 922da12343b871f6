"""Shared by the targets: the nodes of one site under construction, types and shapes of values.

Every new norm node carries three metadata properties: the nodes that it replaces, the numerics
class of the rewrite, and the spelling of the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.op.numerics import NUMERICS_ORDER, Numerics
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16
from rmsnorm_export.recognize.match import Decline, Match

REPLACES = "rmsnorm_export.replaces"
NUMERICS = "rmsnorm_export.numerics"
SPELLING = "rmsnorm_export.spelling"

Names = Callable[[str], str]
"""Takes a wish, returns a name that no value and no node of the graph has."""

Dims = tuple[int | str | None, ...] | None
Shapes = Callable[[ir.Value], Dims]
"""Dimensions of a value as ints, symbols or None; None when not even the rank is known."""

_LOSSLESS = frozenset(
    {(FLOAT16, FLOAT), (BFLOAT16, FLOAT), (FLOAT16, DOUBLE), (BFLOAT16, DOUBLE), (FLOAT, DOUBLE)}
)
_SAME_TYPE = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand"})
_SAME_TYPE_ANY_INPUT = frozenset({"Add", "Sub", "Mul", "Div"})
# Weights are a node or three away from their initializer; longer chains are not worth a walk.
_MAX_WALK = 8


def declared_shape(value: ir.Value) -> Dims:
    """The shape that the file gives for ``value``."""
    shape = value.shape if value.shape is not None else getattr(value.const_value, "shape", None)
    if shape is None:
        return None
    return tuple(d if isinstance(d, int) else getattr(d, "value", None) for d in shape)


def element_type(value: ir.Value) -> int | None:
    """Element type of ``value``, looked for a few nodes back where the file does not say it."""
    seen: ir.Value | None = value
    for _ in range(_MAX_WALK):
        if seen is None:
            return None
        if seen.dtype is not None:
            return int(seen.dtype)
        if seen.const_value is not None:
            return int(seen.const_value.dtype)
        node = seen.producer()
        if node is None or node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "Cast":
            to = node.attributes.get("to")
            return None if to is None or to.is_ref() else to.as_int()
        if node.op_type in _SAME_TYPE_ANY_INPUT:
            typed = (v for v in node.inputs if v is not None and v.dtype is not None)
            seen = next(typed, node.inputs[0])
        elif node.op_type in _SAME_TYPE:
            seen = node.inputs[0]
        else:
            return None
    return None


def without_widening(value: ir.Value, wanted: int) -> ir.Value | None:
    """The value of type ``wanted`` whose elements ``value`` has, or None.

    Looks through Identity and through Casts that lose nothing: an f16 weight that the source casts
    to f32 is used as it is stored.
    """
    seen: ir.Value | None = value
    for _ in range(_MAX_WALK):
        if seen is None:
            return None
        own = element_type(seen)
        if own == wanted:
            return seen
        node = seen.producer()
        if node is None or node.domain not in ("", "ai.onnx"):
            return None
        source = node.inputs[0] if node.inputs else None
        if node.op_type == "Cast" and source is not None:
            if (element_type(source), own) not in _LOSSLESS:
                return None
        elif node.op_type != "Identity":
            return None
        seen = source
    return None


def as_float32(number: float) -> float:
    """``number`` as a float attribute stores it."""
    return float(np.float32(number))


def allowed(numerics: Numerics, limit: Numerics) -> bool:
    """Whether a rewrite of class ``numerics`` is allowed when ``limit`` is the loosest class."""
    return NUMERICS_ORDER.index(numerics) <= NUMERICS_ORDER.index(limit)


def decline(match: Match, reason: str, message: str, *, found: str, hint: str) -> Decline:
    """A refusal of the whole match, at the node that produces its output."""
    node = match.output.producer() or match.nodes[-1]
    return Decline(node, reason, message, found, hint, match.scope)


def node_label(node: ir.Node) -> str:
    """Name of a node, or its operator type when it has none."""
    return node.name or node.op_type


def text(dims: Dims) -> str:
    """A shape for a message."""
    if dims is None:
        return "unknown shape"
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"


FORMERLY = "rmsnorm_export.name"
"""While a file of another target is taken apart: the name of the node that its parts made up."""

_OWN_ENDING = re.compile(r"(/(Skip|Gated)?RMSNorm(_\d+)?)+$")


def stem(match: Match) -> str:
    """What the names of a site's nodes begin with: the module it came from, or its last node."""
    last = match.nodes[-1] if match.nodes else None
    name = match.module
    if name is None and last is not None:
        name = last.metadata_props.get(FORMERLY) or last.name
    return _OWN_ENDING.sub("", name or match.output.name or "norm") or "norm"


def provenance(match: Match, numerics: Numerics) -> dict[str, str]:
    """What is written on a norm node: the nodes of the source that it replaces, and how.

    Nodes that come from an earlier run know what that run replaced.
    """
    last = match.nodes[-1].metadata_props if match.nodes else {}
    return {
        REPLACES: last.get(REPLACES) or ", ".join(node_label(node) for node in match.nodes),
        NUMERICS: numerics,
        SPELLING: last.get(SPELLING) or match.spelling,
    }


class Site:
    """The new nodes of one site, in topological order.

    Args:
        match: what they replace.
        numerics: class of the rewrite.
        names: gives unique names.
    """

    def __init__(self, match: Match, numerics: Numerics, names: Names) -> None:
        self.match = match
        self.numerics: Numerics = numerics
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self._names = names
        self._stem = f"{stem(match)}/RMSNorm"

    def norm(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        attributes: Mapping[str, int | float],
        outputs: Sequence[ir.Value | None],
        *,
        domain: str = "",
        version: int | None = None,
    ) -> None:
        """Append the norm node; None in ``outputs`` is an output that is not asked for."""
        self.nodes.append(
            ir.node(
                op_type,
                list(inputs),
                dict(attributes),
                domain=domain,
                version=version,
                outputs=[ir.Value(name="") if v is None else v for v in outputs],
                name=self._names(self._stem),
                metadata_props=provenance(self.match, self.numerics),
            )
        )

    def like(self, value: ir.Value, dtype: int, suffix: str) -> ir.Value:
        """A new value with the shape of ``value`` and element type ``dtype``."""
        dims = declared_shape(value)
        shape = None if dims is None else ir.Shape(dims)
        return ir.Value(
            name=self._names(f"{self._stem}_{suffix}"),
            shape=shape,
            type=ir.TensorType(ir.DataType(dtype)),
        )

    def cast(self, value: ir.Value, dtype: int, suffix: str) -> ir.Value:
        """``value`` cast to ``dtype``; itself when it is known to have that type."""
        if element_type(value) == dtype:
            return value
        result = self.like(value, dtype, suffix)
        self._helper("Cast", [value], result, suffix, {"to": dtype})
        return result

    def multiply(self, left: ir.Value, right: ir.Value, result: ir.Value) -> None:
        """Append ``result = left * right``."""
        self._helper("Mul", [left, right], result, "scale", {})

    def cast_into(self, value: ir.Value, dtype: int, result: ir.Value, suffix: str) -> None:
        """Append ``result = Cast(value)``."""
        self._helper("Cast", [value], result, suffix, {"to": dtype})

    def ones(self, dims: Sequence[int], dtype: int) -> ir.Value:
        """A new initializer of ones: the scale of a norm that has none."""
        name = self._names(f"{self._stem}_ones")
        data = np.ones(tuple(dims), dtype=numpy_dtype(dtype))
        return self._initializer(ir.Tensor(data, dtype=ir.DataType(dtype), name=name), name)

    def reshape(self, value: ir.Value, dims: Sequence[int]) -> ir.Value:
        """``value`` with the dimensions ``dims`` (one may be -1)."""
        name = self._names(f"{self._stem}_scale_shape")
        wanted = self._initializer(ir.tensor(np.array(dims, dtype=np.int64), name=name), name)
        dtype = element_type(value)
        result = ir.Value(
            name=self._names(f"{self._stem}_scale"),
            shape=ir.Shape([None if d < 0 else d for d in dims]),
            type=None if dtype is None else ir.TensorType(ir.DataType(dtype)),
        )
        self._helper("Reshape", [value, wanted], result, "scale_reshape", {})
        return result

    def _initializer(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        value = ir.Value(
            name=name,
            shape=ir.Shape(list(tensor.shape.numpy())),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.initializers.append(value)
        return value

    def _helper(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        result: ir.Value,
        suffix: str,
        attributes: Mapping[str, int],
    ) -> None:
        name = self._names(f"{self._stem}_{suffix}")
        self.nodes.append(
            ir.node(op_type, list(inputs), dict(attributes), outputs=[result], name=name)
        )
