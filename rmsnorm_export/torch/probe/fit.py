"""What probing a module finds: the norm that it computes, or why it is none.

A module is described in two layers. The *formula* is what it computes in exact arithmetic; it does
not depend on types. The *rounding* says, for one type of the rows and one of the parameters, which
operator gives the module's own numbers.
"""

from __future__ import annotations

import dataclasses

import torch

from rmsnorm_export.op.spec import FLOAT, NormSpec
from rmsnorm_export.torch.dtypes import dtype_name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Formula(NormSpec):
    """An RMSNorm in exact arithmetic, with the names of the tensors that take part.

    What its fields say of rounding means nothing.

    Attributes:
        scale: name of the parameter (or buffer) that is the scale; None where there is none.
        scale_in_front: the row is multiplied by ``scale_offset + scale`` before it is normalised,
            and by nothing after.
        bias: name of the parameter that is added last; None where there is none.
        returns_sum: a residual norm that returns ``(y, x + residual)``, not ``y`` alone.
    """

    scale: str | None = None
    scale_in_front: bool = False
    bias: str | None = None
    returns_sum: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the scale and the bias, where there are any."""
        return tuple(name for name in (self.scale, self.bias) if name is not None)

    @property
    def inputs(self) -> int:
        """Tensors that a call takes."""
        return 1 if self.kind == "RMSNorm" else 2

    def spec(self, **rounding: float) -> NormSpec:
        """The operator of this formula; ``rounding``: the attributes that a formula leaves open.

        A scale in front, or an offset added before the operator, is no part of it.
        """
        known = {field.name: getattr(self, field.name) for field in dataclasses.fields(NormSpec)}
        if self.scale_in_front:
            known["scale_offset"] = 0.0
        return NormSpec(**(known | rounding))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """The operator that gives the module's numbers in one combination of types.

    Attributes:
        dtype: of the rows, and of the result.
        stored: of the parameters; None where there are none.
        spec: the operator.
        offset_first: ``scale_offset + scale`` is computed in ``stored`` and handed to the operator,
            whose own offset is 0.
        elements: that were compared with the module itself.
        different: of these, how many are not bitwise equal.
        ulps: the largest difference, in units in the last place of ``dtype`` (of float32 where a
            double is normalised in float32).
    """

    dtype: torch.dtype
    stored: torch.dtype | None
    spec: NormSpec
    offset_first: bool
    elements: int
    different: int
    ulps: int

    def __str__(self) -> str:
        name = types_name(self.dtype, self.stored)
        if not self.different:
            return f"{name}: {self.elements} of {self.elements} elements bitwise equal"
        narrowed = self.dtype == torch.float64 and self.spec.stash_type == FLOAT
        return (
            f"{name}: {self.elements - self.different} of {self.elements} elements bitwise equal, "
            f"the others within {self.ulps} ulp{' of float32' if narrowed else ''}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way to call the module.

    Attributes:
        formula: what it computes.
        shape: of the normalised axes as they were probed.
        any_width: whether it takes other widths as well; only without parameters.
        roundings: one for each combination of types in which an operator was found.
        refused: the other combinations and why no operator was found.
    """

    formula: Formula
    shape: tuple[int, ...]
    any_width: bool
    roundings: tuple[Rounding, ...]
    refused: tuple[tuple[torch.dtype, torch.dtype | None, str], ...]

    def rounding(self, dtype: torch.dtype, stored: torch.dtype | None) -> Rounding | None:
        """That for rows of ``dtype`` and parameters of ``stored``; None: none was found."""
        key = (dtype, stored if self.formula.parameters else None)
        return next((r for r in self.roundings if (r.dtype, r.stored) == key), None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A module that is an RMSNorm.

    Attributes:
        forms: the ways to call it that are one, fewest inputs first.
        names: of the inputs of ``forward``, in order.
    """

    forms: tuple[Form, ...]
    names: tuple[str, ...]

    def form(self, inputs: int) -> Form | None:
        """That with so many inputs."""
        return next((form for form in self.forms if form.formula.inputs == inputs), None)

    @property
    def spec(self) -> NormSpec:
        """The operator of the last form (the gated one where there is a gate), narrowest type.

        Half types come first: there the order of rounding shows.
        """
        roundings = self.forms[-1].roundings
        return min(roundings, key=lambda r: torch.finfo(r.dtype).bits).spec


@dataclasses.dataclass(frozen=True, slots=True)
class NotANorm:
    """A module that is no RMSNorm, or none that the operator can say.

    Attributes:
        reason: what it does instead, in one sentence.
    """

    reason: str


class RefusedError(Exception):
    """The module does not do what is being tried; the message is the reason.

    Every step of the probe may raise it; callers of the package never see it.
    """


def types_name(dtype: torch.dtype, stored: torch.dtype | None) -> str:
    """The types of a call: ``float16``, or ``float16 rows, float32 parameters``."""
    if stored in (None, dtype):
        return dtype_name(dtype)
    return f"{dtype_name(dtype)} rows, {dtype_name(stored)} parameters"
