"""What went wrong in an export, in terms of the module and its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.printable import one_line
from rmsnorm_export.torch.dtypes import dtype_name

_CAUSES: tuple[tuple[str, type[Error], str, str], ...] = (
    (
        r"^(?:GuardOnDataDependentSymNode|PendingUnbackedSymbolNotFound)",
        InputError,
        "The module's control flow depends on the values of a tensor, which ONNX cannot trace.",
        "use torch.where or torch.cond instead of Python's if, or omit that branch of the module",
    ),
    (
        r"^DispatchError|No ONNX function found",
        InputError,
        "An operator of the module has no translation to ONNX.",
        "write it with operators that PyTorch's exporter knows, or try a higher --opset",
    ),
    (
        r"inferred a static shape of|^(?:UserError|ConstraintViolationError)|dynamic_shapes",
        UsageError,
        "The dynamic shapes do not fit the module.",
        "leave those dimensions fixed, change their ranges (--shapes, dynamic_shapes), or change "
        "the module so that its code does not depend on those sizes",
    ),
    (
        r"not implemented for '|dtype|same type|Expected tensor for arg",
        InputError,
        "The module cannot compute with the types of its inputs and weights.",
        "give inputs of the type of the weights, or use another type (--dtype f32, --shapes)",
    ),
    (
        r"",
        InputError,
        "The module cannot be traced with these inputs.",
        "check the shapes and types of the inputs (--shapes); run with --debug, or look at "
        "__cause__, for PyTorch's own account",
    ),
)
"""A line of PyTorch's exception, its type in front -> the error, its sentence and its fix."""


def explain(
    error: BaseException, module: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Error:
    """Return the error of this package that stands for an exception of PyTorch's exporter."""
    chain = list(_causes(error))
    for inner in chain:
        if isinstance(inner, Error):
            return inner
    if misfit := _argument_error(module, args, kwargs):
        return UsageError(
            "The arguments do not fit the module's forward.",
            found=f"{misfit}; forward{_forward_inputs(module)}",
            fix="give the inputs that forward takes (args and kwargs, or --shapes)",
        )
    # The innermost exception that says anything.
    root = next((inner for inner in reversed(chain) if str(inner).strip()), chain[-1])
    place = _module_of(chain, module)
    where = f"module {place!r}" if place else f"the module {type(module).__name__}"
    lines = [line.strip() for line in str(root).splitlines() if line.strip()] or [""]
    lines[0] = f"{type(root).__name__}: {lines[0]}"
    for pattern, error_type, sentence, fix in _CAUSES:
        if line := next((line for line in lines if re.search(pattern, line)), ""):
            found = f"{where}: {one_line(line, 300)}; inputs: {arguments_text(args, kwargs)}"
            return error_type(sentence, found=f"{found}; forward{_forward_inputs(module)}", fix=fix)
    raise AssertionError("the last pattern matches every line")


def arguments_text(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Types and shapes of the arguments, for a message."""
    texts = [_argument_text(value) for value in args]
    texts += [f"{name}={_argument_text(value)}" for name, value in kwargs.items()]
    return ", ".join(texts) or "none"


def _argument_text(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)}{list(value.shape)}"
    return type(value).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def _module_of(chain: list[BaseException], module: object) -> str:
    """Path of the innermost submodule whose code was running."""
    if not isinstance(module, torch.nn.Module):
        return ""
    paths = {id(child): name for name, child in module.named_modules()}
    innermost = ""
    for error in chain:
        trace = error.__traceback__
        while trace is not None:
            holder = trace.tb_frame.f_locals.get("self")
            if isinstance(holder, torch.nn.Module):
                innermost = paths.get(id(holder), "") or innermost
            trace = trace.tb_next
    return innermost


def _argument_error(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What ``forward`` has against the arguments, or ""."""
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except (AttributeError, ValueError):  # a program has no forward, some have no signature
        pass
    return ""


def _forward_inputs(module: object) -> str:
    forward = getattr(module, "forward", None)
    names = list(inspect.signature(forward).parameters) if forward is not None else []
    return "(" + ", ".join([*names[:8], *(["..."] if names[8:] else [])]) + ")"
