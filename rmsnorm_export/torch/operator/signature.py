"""What ``NormSpec`` says of each operator, as PyTorch and Python want it said.

The attributes stand in ``NormSpec`` alone, with their types, defaults and meanings; the schema of
an operator, the signature and docstring of a function and the translation to ONNX follow from them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.spec import Kind, NormSpec

NAMES: dict[Kind, str] = {
    "RMSNorm": "rms_norm",
    "SkipRMSNorm": "skip_rms_norm",
    "GatedRMSNorm": "gated_rms_norm",
    "RotaryRMSNorm": "rotary_rms_norm",
}
"""Kind of the spec -> name of the operator in PyTorch."""

OPERANDS: dict[Kind, tuple[str, ...]] = {
    "RMSNorm": ("x", "scale", "bias"),
    "SkipRMSNorm": ("x", "residual", "scale", "bias"),
    "GatedRMSNorm": ("x", "gate", "scale", "bias"),
    "RotaryRMSNorm": ("x", "cos", "sin", "scale", "bias"),
}
OPTIONAL = frozenset({"scale", "bias"})
"""The operands that may be left out."""

Shown = TypeVar("Shown", bound=Callable[..., Any])

_MEANING = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""An entry of the section ``Attributes`` in the docstring of ``NormSpec``."""


def attribute_defaults(kind: Kind | None, spec: type[NormSpec] = NormSpec) -> dict[str, Any]:
    """The attributes of an operator in order (None: of all), and their defaults: fields of
    ``spec``."""
    fields = {field.name: field.default for field in dataclasses.fields(spec)}
    del fields["kind"]
    return fields if kind is None else {name: fields[name] for name in spec(kind=kind).attributes()}


def schema(kind: Kind, spec: type[NormSpec] = NormSpec) -> str:
    """The operator's schema for ``torch.library``."""
    operands = ", ".join(
        f"Tensor? {name}=None" if name in OPTIONAL else f"Tensor {name}" for name in OPERANDS[kind]
    )
    attributes = ", ".join(
        f"{type(value).__name__} {name}={_literal(value)}"
        for name, value in attribute_defaults(kind, spec).items()
    )
    result = "(Tensor, Tensor)" if kind == "SkipRMSNorm" else "Tensor"
    return f"{NAMES[kind]}({operands}, *, {attributes}) -> {result}"


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def show_attributes(
    kind: Kind | None, *, without: Iterable[str] = (), spec: type[NormSpec] = NormSpec
) -> Callable[[Shown], Shown]:
    """Decorator: ``**attributes`` are shown one by one, in the signature and in the docstring.

    ``without``: those that the function, or the class with this ``__init__``, does not take.
    """
    attributes = {k: v for k, v in attribute_defaults(kind, spec).items() if k not in without}

    def show(shown: Shown) -> Shown:
        function: Any = shown.__init__ if isinstance(shown, type) else shown  # type: ignore[misc]
        plain = inspect.signature(function)
        own = [p for p in plain.parameters.values() if p.kind is not p.VAR_KEYWORD]
        types = typing.get_type_hints(spec)
        keyword = inspect.Parameter.KEYWORD_ONLY
        own += [
            inspect.Parameter(name, keyword, default=value, annotation=types[name])
            for name, value in attributes.items()
            if name not in plain.parameters
        ]
        function.__signature__ = plain.replace(parameters=own)
        function.__annotations__ = {
            **{p.name: p.annotation for p in own if p.annotation is not p.empty},
            "return": plain.return_annotation,
        }
        # Python leaves docstrings out with -OO.
        if shown.__doc__:
            shown.__doc__ = _documented(inspect.cleandoc(shown.__doc__), attributes, spec)
        return shown

    return show


def _documented(text: str, attributes: dict[str, Any], spec: type[NormSpec]) -> str:
    """``text`` with what each attribute means, below the line of ``**attributes``."""
    meanings = dict(_MEANING.findall(inspect.cleandoc(spec.__doc__ or "")))
    entries = [
        textwrap.fill(
            f"{name} ({value!r}): {' '.join(meanings.get(name, '').split())}",
            width=100,
            initial_indent=" " * 8 + "- ",
            subsequent_indent=" " * 10,
        )
        for name, value in attributes.items()
    ]
    return re.sub(
        r"^    \*\*attributes: .*$",
        lambda line: "\n".join([line[0], "", *entries]),
        text,
        flags=re.MULTILINE,
    )


def check_attributes(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse an attribute that is not known, as a misspelt one.

    Raises:
        UsageError: naming it and the attributes that ``owner`` has.
    """
    for name in given:
        if name not in known:
            raise UsageError(
                f"{owner} has no attribute {name!r}.",
                found=f"{name}=...",
                fix=f"use {', '.join(known)}",
            )
