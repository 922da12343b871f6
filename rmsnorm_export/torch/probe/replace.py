"""Replace the norms of a model by the operator, found by what they compute.

A module gets another ``forward`` and nothing else. It keeps its identity, attributes, parameters,
buffers and hooks; only its class becomes a subclass of its own class, as
``torch.nn.utils.parametrize`` does it. So weights stay tied, the state dict keeps its keys, a
module that is used in several places changes in all of them, and putting the class back undoes
everything.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.operands import row_shape
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.printable import collapse, family
from rmsnorm_export.torch.dtypes import dtype_name
from rmsnorm_export.torch.probe import fit_rounding
from rmsnorm_export.torch.probe.copies import (
    has_forward,
    has_real_children,
    stand_in,
    tensor_at,
    undisturbed,
)
from rmsnorm_export.torch.probe.fit import Fit, Form, NotANorm, RefusedError, Rounding, types_name
from rmsnorm_export.torch.probe.probe import device_of, probe_on

ATTRIBUTE = "_rmsnorm_export"
"""Of the module: the ``Fit`` that its new forward goes by."""

_CLASSES: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}
_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, type)


class Replaced(NamedTuple):
    """One module that the operator has taken over.

    Attributes:
        path: of the module in the model, the first one where it is used in several places.
        class_name: of the module.
        spec: the operator in the model's own types; of the call with a gate where there is one.
        evidence: lines that say what was compared.
    """

    path: str
    class_name: str
    spec: NormSpec
    evidence: tuple[str, ...]


class Skipped(NamedTuple):
    """One leaf module that was left alone.

    Attributes:
        path: of the module in the model.
        class_name: of the module.
        reason: in one sentence.
    """

    path: str
    class_name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What ``replace_norms`` did; as a context manager it is undone at the end of the block.

    Attributes:
        replaced: modules that are the operator now, in the order of the model.
        skipped: the other leaf modules, with the reason.
        reasons: as ``skipped``, once for each family: modules of one class whose reasons differ in
            numbers only; the path names them all, as in ``layers.{0-31}.mlp``.
    """

    replaced: tuple[Replaced, ...]
    skipped: tuple[Skipped, ...]
    _undo: tuple[tuple[torch.nn.Module, type[torch.nn.Module]], ...] = dataclasses.field(
        repr=False, compare=False
    )

    @property
    def reasons(self) -> tuple[Skipped, ...]:
        families: dict[Hashable, list[Skipped]] = {}
        for skipped in self.skipped:
            families.setdefault((skipped.class_name, family(skipped.reason)), []).append(skipped)
        return tuple(
            members[0]._replace(path=", ".join(collapse(skipped.path for skipped in members)))
            for members in families.values()
        )

    def restore(self) -> None:
        """Give every module its own ``forward`` back; a second call does nothing.

        Raises:
            UsageError: a module has been given another class since; nothing is changed then.
        """
        for module, base in self._undo:
            if type(module) not in (base, replaced_class(base)):
                raise UsageError(
                    "A replaced module cannot be restored: its class has changed since.",
                    found=f"{type(module).__name__}, replaced as {base.__name__}",
                    fix="undo the later change first (parametrizations, for example)",
                )
        for module, base in self._undo:
            if type(module) is not base:
                module.__class__ = base
                module.__dict__.pop(ATTRIBUTE, None)

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()


def replace_norms(model: torch.nn.Module, *, verify: bool = True) -> Replacement:
    """Make every module of ``model`` that is an RMSNorm run the operator.

    A module is judged by what copies of it compute (see ``probe_module``), never by names. It keeps
    its identity, parameters, buffers, attributes and hooks: only its ``forward`` changes. The state
    dict is the same before, while and after. A call in types for which no operator gives the
    module's own numbers still runs the module's own ``forward``; the evidence names such types.

    Args:
        model: any module; changed in place. Parameters on the meta device will do.
        verify: run each norm once more with its own parameters against the operator before it is
            replaced; not possible on the meta device.

    Returns:
        what was replaced, what was not and why; ``restore()`` undoes it.

    Raises:
        UsageError: ``model`` is no module.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            "Only a torch.nn.Module has norms to replace.",
            found=type(model).__name__,
            fix="pass the model itself",
        )
    dtype = _prevalent_type(model)
    device = device_of(model)
    known: dict[Hashable, Fit | NotANorm] = {}
    replaced: list[Replaced] = []
    skipped: list[Skipped] = []
    undo: list[tuple[torch.nn.Module, type[torch.nn.Module]]] = []
    taken: set[torch.nn.Module] = set()
    # Children first: what holds a norm is none.
    for path, module in reversed(list(model.named_modules())):
        base = type(module)
        holds_norm = not taken.isdisjoint(module.children())
        container = has_real_children(module) and not hasattr(module, "parametrizations")
        if holds_norm or container or not has_forward(module):
            continue
        try:
            if ATTRIBUTE in module.__dict__:
                raise RefusedError("replaced already")
            fit = _probed(module, device, known)
            record = _record_replaced(path, module, fit, dtype, verify)
            cls = replaced_class(base)
        except RefusedError as refused:
            skipped.append(Skipped(path, base.__name__, str(refused)))
            continue
        setattr(module, ATTRIBUTE, fit)
        module.__class__ = cls
        taken.add(module)
        undo.append((module, base))
        replaced.append(record)
    return Replacement(tuple(replaced[::-1]), tuple(skipped[::-1]), tuple(undo))


def _prevalent_type(model: torch.nn.Module) -> torch.dtype:
    """The type of most parameters: in it a norm without parameters is expected to run."""
    counts: collections.Counter[torch.dtype] = collections.Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] += parameter.numel()
    return counts.most_common(1)[0][0] if counts else torch.float32


def _probed(
    module: torch.nn.Module, device: torch.device, known: dict[Hashable, Fit | NotANorm]
) -> Fit:
    """The fit of ``module``, taken from that of an equal module where there is one."""
    key = _same_computation(module)
    fit = known.get(key) or probe_on(module, device)
    if key is not None:
        known[key] = fit
    if isinstance(fit, NotANorm):
        raise RefusedError(fit.reason)
    return fit


def _same_computation(module: torch.nn.Module) -> Hashable | None:
    """Equal for modules of one class with the same attributes and shapes; None: cannot be told.

    Parameters play no part: a probe uses its own.
    """
    if module._modules or hasattr(module, "parametrizations"):
        return None
    own = {"_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set"}
    attributes = []
    for name, value in sorted(vars(module).items()):
        if name in own or "_hooks" in name:
            continue
        if not _is_plain(value):
            return None
        # 1, 1.0 and True are equal, and not the same
        attributes.append((name, repr(value), value))
    tensors = []
    for name, tensor in {**module._parameters, **module._buffers}.items():
        if tensor is not None and (tensor.numel() == 1 or not tensor.is_floating_point()):
            return None  # its value counts
        shape = None if tensor is None else (tuple(tensor.shape), type(tensor), tensor.is_meta)
        tensors.append((name, shape))
    return (type(module), tuple(attributes), tuple(tensors))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (*_PLAIN, types.FunctionType, types.BuiltinFunctionType))


def _record_replaced(
    path: str, module: torch.nn.Module, fit: Fit, dtype: torch.dtype, verify: bool
) -> Replaced:
    """The record of a replacement in the types that ``module`` has."""
    lines: list[str] = []
    spec = None
    for form in fit.forms:
        formula = form.formula
        types_of = {tensor_at(module, n).dtype for n in formula.parameters}
        if len(types_of) > 1:
            raise RefusedError("its scale and its bias are of different types")
        stored = next(iter(types_of), None)
        rounding = form.rounding(stored or dtype, stored)
        call = f"call with {formula.inputs} inputs, " if len(fit.forms) > 1 else ""
        own = "runs its own forward, since"
        lines += [f"{call}{other}" for other in form.roundings]
        lines += [f"{call}{types_name(x, w)}: {own} {why}" for x, w, why in form.refused]
        if rounding is not None:
            spec = rounding.spec
            if verify:
                lines += _verified(module, form, rounding, call)
    if spec is None:
        type_of_rows = dtype_name(stored or dtype)
        reasons = "; ".join(line for line in lines if line.startswith(f"{type_of_rows}:"))
        raise RefusedError(f"an RMSNorm, but not in its own type, {reasons or type_of_rows}")
    return Replaced(path, type(module).__name__, spec, tuple(lines))


def _verified(module: torch.nn.Module, form: Form, rounding: Rounding, call: str) -> list[str]:
    """Run ``module`` with its own parameters against the operator."""
    formula = form.formula
    parameters = {name: tensor_at(module, name).detach() for name in formula.parameters}
    if any(value.is_meta for value in parameters.values()):
        return []
    device = device_of(module)
    with undisturbed(device):
        shape = (3, 4, *form.shape)
        if formula.last_axis != -1:
            shape = (3, *form.shape, *(4, 5, 2)[: -1 - formula.last_axis])
        operands = fit_rounding.probe_inputs(formula, shape, rounding.dtype, device, seed=101)
        copy = stand_in(module, {}, device, training=module.training)
        try:
            results = type(copy).forward(copy, *operands)
        except Exception as error:  # whatever the module raises is its answer
            raise RefusedError(f"raises {type(error).__name__} with its own parameters") from error
        results = results if isinstance(results, tuple) else (results,)
        comparison = fit_rounding.compare_with_operator(
            formula, rounding.spec, results, operands, parameters, rounding.stored
        )
    if not fit_rounding.accepted(comparison):
        raise RefusedError(f"differs from the operator with its own parameters: {comparison}")
    return [f"{call}own parameters, {comparison}"]


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
    fit: Fit = getattr(module, ATTRIBUTE)
    operands = _call_operands(fit.names, args, kwargs)
    form = None if operands is None else fit.form(len(operands))
    if operands is None or form is None:
        return None
    x, formula = operands[0], form.formula
    parameters = {name: tensor_at(module, name) for name in formula.parameters}
    stored = next((value.dtype for value in parameters.values()), None)
    rounding = form.rounding(x.dtype, stored)
    if rounding is None or not (form.any_width or row_shape(formula, x.shape) == form.shape):
        return None
    if formula.last_axis != -1 and x.ndim + formula.axis != 1:
        return None  # its axis was counted from the front
    for other in operands[1:]:
        if other.dtype != x.dtype or other.shape != x.shape:
            return None
    if any(value.ndim > x.ndim for value in parameters.values()):
        return None
    results = fit_rounding.evaluate(formula, rounding.spec, operands, parameters)
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
