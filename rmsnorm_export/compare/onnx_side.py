"""What a side that is an ONNX model is, whatever runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rmsnorm_export.graph.source import Sourced
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.inputs import Declared, graph_inputs, index_limits


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OnnxSide:
    """The part of ``Side`` that the model itself tells.

    Attributes:
        source: the model as the caller gave it.
    """

    source: Sourced

    @property
    def description(self) -> str:
        return self.source.description

    @property
    def graph(self) -> ir.Model | None:
        return self.source.model

    def declared(self) -> Mapping[str, Declared] | None:
        return graph_inputs(self.source.model)

    def shapes(self) -> Mapping[str, Sequence[int]]:
        return {}

    def limits(self, declared: Mapping[str, Declared]) -> Mapping[str, int]:
        del declared
        return index_limits(self.source.model)

    def example(self) -> Mapping[str, Array] | None:
        return None
