"""What a run found and did: frozen dataclasses of plain values, ready for text, JSON and HTML."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rmsnorm_export.report.drawing import Drawing

SCHEMA_VERSION = 1
"""Version of the JSON form of every result; raised when a field changes its meaning or goes."""

Numerics = Literal["exact", "reordered", "upcast"]
Target = Literal["portable", "onnx", "ort"]

NUMERICS_ORDER: tuple[Numerics, ...] = ("exact", "reordered", "upcast")


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """One site, original nodes against new nodes.

    Attributes:
        passed: every bound held.
        reason: the bound that failed, or "" .
        cases: names of the inputs that were run (random, tiny, huge, zeros, ...).
        max_ulp: largest distance of new from original, in units in the last place of the output
            type.
        mismatch: fraction of elements that differ at all.
        max_abs: largest absolute difference.
        error_before: largest error of the original against float64, in ulp of the output type.
        error_after: the same for the new nodes.
        bound_ulp: the largest ``max_ulp`` that the site's numerics class allows.
        runtime: what computed both, e.g. ``onnxruntime 1.31.1 (CPU)`` or ``numpy``.
        ulp_histogram: pairs (bucket, elements) of the distance of new from original, all runs
            together; the buckets are those of ``ErrorMetrics``.
    """

    passed: bool
    reason: str
    cases: tuple[str, ...]
    max_ulp: float
    mismatch: float
    max_abs: float
    error_before: float
    error_after: float
    bound_ulp: float
    runtime: str
    ulp_histogram: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """One RMSNorm that is (or already was) one node.

    Attributes:
        name: name of the new node.
        op: operator type of the new node.
        nodes: names of the nodes that it replaces (op types where a node has no name).
        spelling: op types of those nodes in order, e.g. ``Pow ReduceMean Add Sqrt Div Mul``.
        numerics: class of the rewrite (see the README).
        dtype: element type of the input, e.g. ``float16``.
        n: elements in a row; None when the file does not say.
        epsilon: as the source has it.
        scope: ``main`` or the function or subgraph that holds the site.
        attributes: attributes other than epsilon that differ from the ordinary LLaMA norm.
        notes: what the user may want to know about this site.
        proof: outcome of the proof, if one was asked for.
        module: path of the PyTorch module it came from, where the exporter wrote it down.
        drawing: position in ``Report.drawings``, where drawings were asked for.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    spelling: str
    numerics: Numerics
    dtype: str
    n: int | None
    epsilon: float
    scope: str
    attributes: dict[str, int | float | str]
    notes: tuple[str, ...] = ()
    proof: Proof | None = None
    module: str | None = None
    drawing: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A value that looked like an RMSNorm and was left as it was.

    Attributes:
        node: name of the node at which it stopped being one (op type if it has no name).
        op: operator type of that node.
        reason: a short stable identifier, e.g. ``epsilon-not-constant``.
        message: the reason as a sentence.
        found: what was found there.
        hint: what would have to be different, or what to do.
        scope: ``main`` or the function or subgraph.
        kind: ``norm``: an RMSNorm that was not fused, or one as far as the file tells;
            ``look-alike``: it computes something else.
    """

    node: str
    op: str
    reason: str
    message: str
    found: str
    hint: str
    scope: str
    kind: Literal["norm", "look-alike"] = "norm"


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Outcome of ``inspect`` or ``optimize`` on one model.

    Attributes:
        source: path of the model, or a description of where it came from.
        target: the target asked for; None for ``inspect`` without one.
        numerics: loosest class allowed.
        fused: sites that became (``inspect``: would become) one node.
        kept: norms that already were one node in the target's form.
        refused: look-alikes and norms that the target cannot express, with the reason.
        opset_before, opset_after: version of the default ONNX domain.
        nodes_before, nodes_after: nodes in the model, subgraphs and functions included, but not the
            bodies of this package's own operators.
        functions: own operators that the result defines by a function (target ``portable``).
        drawings: the different rewrites as graphs, where they were asked for.
        notes: what was done to the model as a whole (opset raised, weights policy, ...).
        seconds: wall-clock time of recognising and rewriting.
    """

    source: str
    target: Target | None
    numerics: Numerics
    fused: tuple[Site, ...]
    kept: tuple[Site, ...]
    refused: tuple[Refusal, ...]
    opset_before: int
    opset_after: int
    nodes_before: int
    nodes_after: int
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    functions: int = 0
    drawings: tuple[Drawing, ...] = ()
