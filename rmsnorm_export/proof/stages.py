"""A site whose node does more than its norm: all of it, its norm alone, and what is behind it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import FLOAT
from rmsnorm_export.proof import site
from rmsnorm_export.proof.cut import cut
from rmsnorm_export.proof.evaluate import run_numpy
from rmsnorm_export.proof.feeds import Batch, Layout, random_weights
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.session import run_onnxruntime

Evaluate = Callable[[ir.Model, Mapping[str, Array]], Mapping[str, Array]]


@dataclasses.dataclass(frozen=True, slots=True)
class Stages:
    """The parts, and the numbers that all of them get.

    Attributes:
        whole: the site.
        norm: the norm as a node of its own; None where the source has it within other nodes.
        behind: what the source makes of the norm, from ``x0`` and further inputs; None as `norm`.
        ends: names of the outputs of ``whole``.
        weights: scale and bias.
        runs: what computes them.
    """

    whole: site.SitePair
    norm: site.SitePair | None
    behind: ir.Model | None
    ends: tuple[str, ...]
    weights: tuple[Array | None, Array | None]
    runs: tuple[Evaluate, ...]

    def feeds(self, batch: Batch, further: Mapping[str, Array]) -> dict[str, Array]:
        """Of the whole: what every norm has, and further inputs by their role."""
        own = {self.whole.ports[role]: array for role, array in further.items()}
        return self.whole.feeds(batch, *self.weights) | own

    def results(
        self, evaluate: Evaluate, batch: Batch, further: Mapping[str, Array]
    ) -> tuple[list[Array], list[Array]]:
        """What the source makes of the numbers of the new norm, and what the new node gives.

        Args:
            further: inputs by role, in the order in which the source takes them.

        Raises:
            NoKernelError: the runtime has none for a node.
        """
        given = self.feeds(batch, further)
        after = evaluate(self.whole.new, given)
        new = [after[name] for name in self.ends]
        if self.norm is None or self.behind is None:
            before = evaluate(self.whole.original, given)
            return [before[name] for name in self.ends], new
        y = evaluate(self.norm.new, self.norm.feeds(batch, *self.weights))["y0"]
        inputs = {f"x{i}": array for i, array in enumerate((y, *further.values()))}
        return list(evaluate(self.behind, inputs).values()), new


def stages(
    match: Match,
    lowered: Lowered,
    layout: Layout,
    *,
    ends: Sequence[ir.Value],
    further: Sequence[ir.Value],
    types: Types,
    opset_imports: Mapping[str, int],
    functions: Iterable[ir.Function],
    seed: int,
    aliases: Mapping[ir.Value, ir.Value] | None = None,
) -> Stages:
    """Cut a site into its stages.

    Args:
        match, lowered, layout, types, opset_imports, functions, seed: as for ``prove_site``.
        ends: outputs of the site.
        further: what is behind the norm reads these, too.
        aliases: as for ``cut``.

    Raises:
        InputError: one of them cannot be cut out.
    """
    cut_site = functools.partial(
        site.cut_site, types=types, opset_imports=opset_imports, functions=tuple(functions)
    )
    norm = behind = None
    if match.inner is not None and lowered.alone is not None:
        norm = cut_site(match.inner, lowered.alone(), layout)
        behind = cut(ends, [match.inner.output, *further], opset_imports=opset_imports,
                     type_of=types.dtype, aliases=aliases,
                     sizes_of=site.sizes_in(match, layout, types))  # fmt: skip
    replaced = [old for old, _ in lowered.replace]
    scale, bias = (
        None if value is None else site.weight(value, values, layout)
        for value, values in zip(
            (match.scale, match.bias),
            random_weights(match.spec, math.prod(layout.row), seed),
            strict=True,
        )
    )
    return Stages(
        whole=cut_site(match, lowered, layout),
        norm=norm,
        behind=behind,
        ends=tuple(f"y{replaced.index(value)}" for value in ends),
        weights=(scale, bias),
        runs=(run_numpy, *([run_onnxruntime] if match.dtype == FLOAT else [])),
    )
