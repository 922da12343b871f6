"""Give a module another ``forward`` and nothing else.

The module keeps its identity, attributes, parameters, buffers and hooks; only its class becomes a
subclass of its own class, as ``torch.nn.utils.parametrize`` does it. So weights stay tied, the
state dict keeps its keys, a module that is used in several places changes in all of them, and
putting the class back undoes everything.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.torch.probe.fit import Fit, Formula, RefusedError
from rmsnorm_export.torch.probe.fit_rounding import evaluate

ATTRIBUTE = "_rmsnorm_export"
"""Of the module: the ``Calls`` that its new forward goes by."""

Key = tuple[int, torch.dtype, torch.dtype | None]
Entry = tuple[Formula, NormSpec, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Calls:
    """Which operator serves which call.

    Attributes:
        names: of the inputs of ``forward``.
        stored: name of the parameter whose type counts; None where there is none.
        table: number of inputs, type of the rows, type of the parameters -> formula, operator,
            and the shape of the normalised axes; ``()``: any.
    """

    names: tuple[str, ...]
    stored: str | None
    table: dict[Key, Entry]

    @classmethod
    def of(cls, fit: Fit) -> Calls:
        """All that ``fit`` found."""
        table: dict[Key, Entry] = {}
        stored = None
        for form in fit.forms:
            formula = form.formula
            stored = formula.scale or formula.bias or stored
            shape = () if form.any_width else form.shape
            for rounding in form.roundings:
                key = (formula.inputs, rounding.dtype, rounding.stored)
                table[key] = (formula, rounding.spec, shape)
        return cls(fit.names, stored, table)


_CLASSES: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}


def replaced_class(base: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """A subclass of ``base`` whose ``forward`` is the operator.

    A call that the operator does not serve (another combination of types, a gate that broadcasts, a
    scale of higher rank than the rows, a third argument) goes to the ``forward`` of ``base``, so it
    gives what it always gave.

    Raises:
        RefusedError: ``base`` cannot have a subclass made like this.
    """
    if base in _CLASSES:
        return _CLASSES[base]

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        served = serve(self, args, kwargs)
        return base.forward(self, *args, **kwargs) if served is None else served

    def reduce_ex(self: Any, protocol: Any) -> Any:
        # Pickle finds a class by its name; this one is made again from its base.
        reduced: Any = base.__reduce_ex__(self, protocol)
        function, arguments, *rest = reduced
        if arguments and arguments[0] is type(self):
            return (_new_replaced, (base,), *rest)
        return (function, arguments, *rest)

    members = {"forward": forward, "__reduce_ex__": reduce_ex, "__module__": base.__module__}
    make: Any = type(base)
    try:
        _CLASSES[base] = make(f"Replaced{base.__name__}", (base,), members)
    except Exception as error:  # metaclasses and __init_subclass__ may refuse in any way
        raise RefusedError(f"its class cannot have a subclass: {error}") from error
    return _CLASSES[base]


def _new_replaced(base: type[torch.nn.Module]) -> torch.nn.Module:
    cls = replaced_class(base)
    return cls.__new__(cls)


def serve(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of the operator for one call; None where it does not serve that call."""
    calls: Calls = getattr(module, ATTRIBUTE)
    operands = _call_operands(calls.names, args, kwargs)
    if operands is None:
        return None
    x = operands[0]
    stored = None if calls.stored is None else getattr(module, calls.stored).dtype
    entry = calls.table.get((len(operands), x.dtype, stored))
    if entry is None:
        return None
    formula, spec, shape = entry
    if shape and tuple(x.shape[-len(shape) :]) != shape:
        return None
    for other in operands[1:]:
        if other.dtype != x.dtype or other.shape != x.shape:
            return None
    parameters = {name: getattr(module, name) for name in formula.parameters}
    if any(value.ndim > x.ndim for value in parameters.values()):
        return None
    results = evaluate(formula, spec, operands, parameters)
    return results if len(results) > 1 else results[0]


def _call_operands(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, ...] | None:
    """The tensors of a call in the order of ``forward``; None if there is anything else."""
    if len(args) + len(kwargs) > len(names):
        return None
    operands = list(args)
    for name in names[len(args) :]:
        if name not in kwargs:
            break
        operands.append(kwargs[name])
    if len(operands) != len(args) + len(kwargs):
        return None
    while operands and operands[-1] is None:
        operands.pop()
    if not operands or not all(isinstance(value, torch.Tensor) for value in operands):
        return None
    return tuple(operands)
