"""Names that no value and no node of a model has."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_export.graph.order import all_graphs


class Names:
    """Unique value and node names for one model; existing names are read on first use."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._taken: set[str] | None = None
        self._last: dict[str, int] = {}

    def __call__(self, wish: str) -> str:
        if self._taken is None:
            self._taken = _all_names(self._model)
        name, count = wish, self._last.get(wish, 1)
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._last[wish] = count
        self._taken.add(name)
        return name


def _all_names(model: ir.Model) -> set[str]:
    taken: set[str] = set()
    for graph in all_graphs(model):
        taken.update(v.name for v in graph.inputs if v.name)
        taken.update(graph.initializers)
        for node in graph:
            if node.name:
                taken.add(node.name)
            taken.update(v.name for v in node.outputs if v.name)
    return taken
