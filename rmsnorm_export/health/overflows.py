"""Where values of a run stop being numbers of their type, and the constants that they come from."""

from __future__ import annotations

import math
from collections.abc import Collection

import onnx_ir as ir

from rmsnorm_export.health.ranges import Ranges
from rmsnorm_export.health.result import BEYOND
from rmsnorm_export.health.sites import Sites, nodes_in
from rmsnorm_export.op.spec import FLOAT16

Kept = Collection[ir.Node]


class Overflows:
    """The values of a model that float16 does not hold.

    A mask is made of a constant that float16 does not hold either: its infinities do no harm, until
    one is multiplied with 0, or all of a softmax is masked.

    Args:
        sites: of the model.
        wide: the ranges in float32.

    Attributes:
        nodes: in order.
        constants: each value that is infinite because a constant or an input is -> that one.
        beyond: values that are no numbers of float16 though they are finite, masks apart.
    """

    def __init__(self, sites: Sites, wide: Ranges) -> None:
        self._types, self._wide = sites.types, wide
        self.nodes = tuple(nodes_in(sites.graph))
        given = {*sites.graph.inputs, *(value for value in wide if value.is_initializer())}
        self.constants = {value: value for value in given if self._is_large(value)}
        for node in self.nodes:
            large = [value for value in node.outputs if self._is_large(value)]
            read = [self.constants[v] for v in node.inputs if v in self.constants]
            is_filled = node.op_type == "ConstantOfShape"  # of a size that is computed
            if large and (is_filled or sites.stored.issuperset(node.outputs)):
                read = read or large
            if read:
                self.constants.update(dict.fromkeys(large, read[0]))
        self.beyond = {value for _, value in self.bad(wide) if math.isfinite(wide[value])}

    def _is_large(self, value: ir.Value) -> bool:
        size = self._wide.get(value, 0.0)
        return size >= BEYOND or math.isnan(size)

    def bad(self, ranges: Ranges, kept: Kept = ()) -> list[tuple[ir.Node, ir.Value]]:
        """Return the values that are NaN, or that their type does not hold, and what makes them.

        Args:
            ranges: of the run.
            kept: nodes that were computed in float32.
        """
        outputs = ((node, value) for node in self.nodes for value in node.outputs)
        return [pair for pair in outputs if self._is_bad(pair[1], ranges.get(pair[1], 0.0), kept)]

    def _is_bad(self, value: ir.Value, size: float, kept: Kept) -> bool:
        if math.isnan(size):
            return True
        end = math.inf if value.producer() in kept else BEYOND
        if size < end or math.isinf(self._wide.get(value, 0.0)):
            return False  # an infinity in float32, too, is meant
        masked = value in self.constants and not value.is_graph_output()
        return self._types.dtype(value) == FLOAT16 and not masked

    def constant_of(self, node: ir.Node) -> ir.Value | None:
        """Return the constant, or the input, of whose infinity a node makes something odd."""
        return next((self.constants[v] for v in node.inputs if v in self.constants), None)
