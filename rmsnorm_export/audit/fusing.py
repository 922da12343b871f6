"""A norm that was found by what it computes, as a match with the numbers of the file, proved.

What was measured says which constants are epsilon, factor and gain; they are taken from there. A
proof of the new node decides, and operators that may branch where it does not look are refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.audit.analytic import Branches
from rmsnorm_export.audit.behaviour import Behaviour
from rmsnorm_export.audit.parts import Layout, Region, arrays_of, model_of, row_of, run
from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.lower.lower import LowerContext
from rmsnorm_export.lower.scales import lower_all
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import DOUBLE, FLOAT, HALF_TYPES, NormSpec
from rmsnorm_export.proof.evaluate import run_float64, run_numpy
from rmsnorm_export.proof.prove import prove_site
from rmsnorm_export.proof.site import Proving
from rmsnorm_export.recognize.between import nodes_between
from rmsnorm_export.recognize.consts import is_ordinary, standard
from rmsnorm_export.recognize.context import FLOATS
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, source_name
from rmsnorm_export.recognize.types import Types

_NEAR = 1e-6
"""Of a number that was measured: what constants that were rounded to float32 put it off."""
_WHAT = ("nodes that recognition does not follow",)


@dataclasses.dataclass(frozen=True, slots=True)
class Fusing:
    """Makes matches of norms of one model.

    Args:
        model: not changed.
        types: of its values.
    """

    model: ir.Model
    types: Types

    def match(self, region: Region, norm: Behaviour, layout: Layout, scope: str) -> Match | str:
        """Return the match of a norm in the strictest class that is proved, or why there is none.

        Args:
            region: its nodes.
            norm: what they compute.
            layout: sizes with which they do.
            scope: of the match.
        """
        try:
            core = self._core(region, norm, layout, scope)
            why = core if isinstance(core, str) else ""
            for numerics, match in () if isinstance(core, str) else self._classes(core):
                why = self._unproved(match, numerics)
                if not why:
                    return match
        except Exception as error:  # of any part of any file: it stays as it is
            why = str(error).replace("\n", "; ")
        return why

    def _core(self, region: Region, norm: Behaviour, layout: Layout, scope: str) -> Match | str:
        """Return the match without a class."""
        if norm.but:
            return norm.but
        (first, last), dtype = norm.axes, self.types.dtype(region.x)
        sizes = row_of(layout.shape, norm.axes)
        if row_of(self.types.shape(region.x), norm.axes) != sizes:
            return "its rows have no fixed size that is small enough"
        if last not in (first, -1):
            return "the operator takes one axis, or all from one on"
        if dtype is None or self.types.dtype(region.y) != dtype:
            return "its input and its output are of different or unknown types"
        if any(node.graph is not region.nodes[-1].graph for node in region.nodes):
            return "its nodes are in different graphs"
        makers = reversed(nodes_between(region.constants, ()))
        if (node := next(filter(self._is_undefined, makers), None)) is not None:
            return f"runtimes differ over {node.op_type} {source_name(node)!r} of integers"
        values = self._constants(region, layout)
        branches = Branches(region, values, self.types, norm.place, layout.shape)
        if (node := branches.first()) is not None:
            return f"{node.op_type} {source_name(node)!r} may do otherwise where no proof looks"
        n = math.prod(norm.gain.shape[first : last + 1 or None])
        fixed = (a for v, a in values.items() if v not in region.given and a.size)
        numbers = [abs(float(a.flat[0])) for a in fixed if (a == a.flat[0]).all()]
        if not self._is_right(region, layout):
            return f"in {dtype.name} it is none of ordinary rows"
        if not norm.keeps_zeros:
            return "it does not leave zeros as they are"
        epsilon = _made(norm.epsilon, numbers, n) if norm.epsilon else 0.0
        gain = self._gain(norm, values, numbers, n)
        if epsilon is None or gain is None:
            return f"no constant gives its {'gain' if gain is None else 'epsilon'}"
        scale, factor = gain
        if scale is None and norm.length:
            return "rows of length one without a scale are no RMSNorm"
        if not is_ordinary(factor, dtype):
            return f"with its factor {factor:.3g} ordinary rows are no numbers in {dtype.name}"
        spec = NormSpec(
            epsilon=epsilon if dtype == DOUBLE else float(np.float32(epsilon)),
            epsilon_outside=norm.place == "behind", epsilon_clamp=norm.place == "floor",
            axis=first, last_axis=last, stash_type=int(dtype),
            group_size=norm.n if norm.groups > 1 else 0,
            partial_size=0 if norm.groups else norm.n,
        )  # fmt: skip
        return Match(
            spec=spec, x=region.x, output=region.y, dtype=int(dtype), scale=scale,
            offset_scale=scale, n=n, rank=len(layout.shape), nodes=region.nodes, factor=factor,
            gain=scale is not None and values[scale].size != n, scope=scope, aliases=region.twins,
        )  # fmt: skip

    def _model(
        self, region: Region, layout: Layout, outputs: Sequence[ir.Value] = ()
    ) -> tuple[ir.Model, list[Array]]:
        """Return a region as a model, with its inputs: rows in no extreme, and what it is given."""
        imports, functions = self.model.opset_imports, tuple(self.model.functions.values())
        model = model_of(region, layout, self.types, imports, functions, outputs)
        x = np.random.default_rng(0).standard_normal(layout.shape)
        return model, [x, *arrays_of(region, layout, self.types)]

    def _is_undefined(self, node: ir.Node) -> bool:
        """Return whether integers are divided, which may be by zero, or raised to a power."""
        dtype = self.types.dtype(node.outputs[0])
        return standard(node) in ("Div", "Pow") and dtype is not None and dtype.is_integer()

    def _constants(self, region: Region, layout: Layout) -> dict[ir.Value, Array]:
        """Return the numbers of the constants that the nodes of a region read."""
        floats = [v for v in region.constants if self.types.dtype(v) in FLOATS]
        if not floats:
            return {}
        model, (x, *parameters) = self._model(region, layout, floats)
        return dict(zip(floats, run(model, parameters, x), strict=True))

    def _is_right(self, region: Region, layout: Layout) -> bool:
        """Return whether half of the digits of ordinary rows are right in the types of a region."""
        model, arrays = self._model(region, layout)
        feeds = {}
        for i, value in enumerate((region.x, *region.parameters)):
            feeds[f"x{i}"] = arrays[i].astype(numpy_dtype(self.types.dtype(value) or FLOAT))
        y, exact = run_numpy(model, feeds)["y0"], run_float64(model, feeds).outputs["y0"]
        half = math.sqrt(np.spacing(np.ones((), y.dtype)))
        return np.allclose(y.astype(np.float64), exact, rtol=half, atol=0)

    def _gain(
        self, norm: Behaviour, values: Mapping[ir.Value, Array], numbers: Sequence[float], n: int
    ) -> tuple[ir.Value | None, float] | None:
        """Return the scale and the factor that make the gain."""
        gain = norm.gain
        if np.ptp(gain) <= _NEAR * np.abs(gain).max():
            factor = _made(float(gain.flat[0]), numbers, n)
            return None if factor is None else (None, factor)
        for value, array in values.items():
            shapes = itertools.zip_longest(array.shape[::-1], gain.shape[::-1], fillvalue=1)
            fits = all(size in (1, other) for size, other in shapes)
            if not fits or array.size == 1 or not array.any():
                continue
            scale = np.broadcast_to(array, gain.shape)
            ratio = float(np.vdot(scale, gain) / np.vdot(scale, scale))
            if (np.abs(gain - ratio * scale) <= _NEAR * np.abs(gain)).all():
                factor = _made(ratio, numbers, n)
                return None if factor is None else (value, factor)
        return None

    def _classes(self, core: Match) -> Iterator[tuple[Numerics, Match]]:
        """Give a match in the classes that it may have, the strictest first."""
        if core.dtype not in HALF_TYPES:
            yield "reordered", dataclasses.replace(core, edges=_WHAT)
        elif any(self.types.dtype(value) == FLOAT for n in core.nodes for value in n.outputs):
            for before in (False, True):
                spec = dataclasses.replace(core.spec, stash_type=FLOAT, scale_before_cast=before)
                core = dataclasses.replace(core, spec=spec)
                yield "reordered", dataclasses.replace(core, edges=_WHAT)
        yield "upcast", dataclasses.replace(core, narrow=_WHAT)

    def _unproved(self, match: Match, numerics: Numerics) -> str:
        """Return why it is not proved that a match is the norm in this class; "" where it is."""
        imports, functions = self.model.opset_imports, tuple(self.model.functions.values())
        context = LowerContext(numerics, str, default_opset(self.model), self.types)
        (lowered,) = lower_all([match], TARGETS["portable"], context)
        if isinstance(lowered, Refusal):
            return lowered.message
        try:
            proof = prove_site(lowered.part, lowered, Proving(self.types, imports, functions))
        except BackendMissingError:
            return "ONNX Runtime, which proves it, is not installed"
        finally:
            lowered.discard()
        return "" if proof.passed else proof.reason


def _made(measured: float, numbers: Sequence[float], n: int) -> float | None:
    """Return what constants and the length of a row make of a measured number, the simplest."""
    for number in _products([1.0, *sorted(filter(None, numbers))], n):
        if abs(number - measured) <= _NEAR * measured:
            return number
    return None


def _products(numbers: Sequence[float], n: int) -> Iterator[float]:
    """Give what numbers may be in a norm: themselves first, products and roots of two, of which one
    may be squared, at last."""
    yield from numbers
    squares = [*numbers, *(number * number for number in numbers)]
    pairs = [p for a, b in itertools.product(numbers, squares) for p in (a * b, a / b)]
    yield from (pair * length for pair in pairs for length in (1.0, 1 / n, n, n**-0.5, n**0.5))
    yield from (math.sqrt(pair * length) for pair in pairs for length in (1.0, 1 / n, n))
