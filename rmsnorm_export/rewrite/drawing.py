"""The drawings of a report: the nodes of a site before and after its rewrite, as plain values.

Equal sites share one ``Drawing``, with the names and shapes of the first: a comparison omits them.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class DrawnValue:
    """A tensor between two nodes.

    Attributes:
        name: in the model.
        dtype: element type, e.g. ``float16``; "" when unknown.
        shape: e.g. ``[batch, 16, 64]``; "" when not even the rank is known.
        role: ``x``, ``scale``, ``bias``, ``residual``, ``gate``, ``cos`` or ``sin`` for an input of
            the site, ``y``, ``sum`` or ``other`` for an output, "" for any other.
        constant: value of a small constant, e.g. ``1e-06``; "" for any other.
    """

    name: str = dataclasses.field(compare=False)
    dtype: str
    shape: str = dataclasses.field(compare=False)
    role: str = ""
    constant: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node of the site.

    Attributes:
        op: operator type.
        name: of the node.
        attributes: name and value of those that say something.
        inputs, outputs: positions in ``Subgraph.values``; -1: left out.
    """

    op: str
    name: str = dataclasses.field(compare=False)
    attributes: tuple[tuple[str, str], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Subgraph:
    """Some nodes in graph order, and the tensors that they take and give."""

    values: tuple[DrawnValue, ...]
    nodes: tuple[DrawnNode, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Drawing:
    """One rewrite.

    Attributes:
        site: name of the site whose names and shapes are shown.
        before: the nodes of the source.
        after: the nodes in their place; None where nothing was changed.
    """

    site: str
    before: Subgraph
    after: Subgraph | None
