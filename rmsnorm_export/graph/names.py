"""Names that no value and no node of a model has."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_export.graph.order import all_graphs, values_in


class Names:
    """Unique value and node names for one model; existing names are read on first use."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._taken: set[str | None] = set()
        self._last: dict[str, int] = {}

    def __call__(self, wish: str) -> str:
        if not self._taken:
            for graph in all_graphs(self._model):
                self._taken.update(value.name for value in values_in(graph))
                self._taken.update(node.name for node in graph)
        name, count = wish, self._last.get(wish, 1)
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._last[wish] = count
        self._taken.add(name)
        return name
