"""What went wrong in an export, in terms of the module and its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.printable import first_line
from rmsnorm_export.torch.dtypes import dtype_name

_DETAILS = "run with --debug, or look at __cause__, for PyTorch's own account"
_STATIC = re.compile(
    r"inferred a static shape of (\d+) for dimension inputs\[('[^']*'|\d+)\]\.shape\[(\d+)\]"
)
_MOST_NAMES = 8
"""Parameters of ``forward`` in a message."""


def explain(
    error: BaseException, module: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Error:
    """The error of this package that stands for an exception of PyTorch's exporter."""
    chain = list(_causes(error))
    for inner in chain:
        if isinstance(inner, Error):
            return inner
    # The innermost exception that says anything.
    root = next((inner for inner in reversed(chain) if str(inner).strip()), chain[-1])
    place = _module_of(chain, module)
    where = f"module {place!r}" if place else f"the module {type(module).__name__}"
    kind = type(root).__name__
    text = first_line(root, otherwise="")
    if isinstance(root, MemoryError) or "can't allocate memory" in str(root):
        return InputError(
            "There is not enough memory to export the module.",
            found=text or kind,
            fix="use a smaller --dtype, smaller example inputs, or a machine with more memory",
        )
    if kind in ("GuardOnDataDependentSymNode", "PendingUnbackedSymbolNotFound"):
        return InputError(
            "The module's control flow depends on the values of a tensor, which ONNX cannot trace.",
            found=f"{where}: {text}",
            fix="use torch.where or torch.cond instead of Python's if, or leave that branch out of "
            "the exported module",
        )
    if kind == "DispatchError" or "No ONNX function found" in str(root):
        operator = re.search(r"op='([^']+)', overload='([^']+)'", str(root))
        name = f"{operator[1]}.{operator[2]}" if operator else text
        return InputError(
            "An operator of the module has no translation to ONNX.",
            found=name,
            fix="write it with operators that PyTorch's exporter knows, or try a higher --opset",
        )
    static = _STATIC.search(str(root))
    if static:
        return UsageError(
            "The module fixes the size of a dimension that was asked to be dynamic.",
            found=f"input {static[2]}, axis {static[3]}: {static[1]}",
            fix="give it a fixed size, or change the module so that its code does not depend on "
            "that size",
        )
    if kind in ("UserError", "ConstraintViolationError") or "dynamic_shapes" in str(root):
        return UsageError(
            "The dynamic shapes do not fit the module.",
            found=text,
            fix="leave those dimensions fixed, or change their ranges (--shapes, dynamic_shapes)",
        )
    misfit = _argument_error(module, args, kwargs)
    if misfit:
        return UsageError(
            "The arguments do not fit the module's forward.",
            found=f"{misfit}; forward{_forward_inputs(module)}",
            fix="give the inputs that forward takes (args and kwargs, or --shapes)",
        )
    if "not implemented for '" in str(root):
        return InputError(
            "PyTorch cannot compute this in the type that was given.",
            found=f"{where}: {text}; inputs: {arguments_text(args, kwargs)}",
            fix="use another type (--dtype f32, f16 or bf16)",
        )
    if any(words in str(root) for words in ("dtype", "same type", "Expected tensor for arg")):
        return InputError(
            "The module cannot compute with the types of its inputs and weights.",
            found=f"{where}: {text}; inputs: {arguments_text(args, kwargs)}",
            fix="give inputs of the type of the weights (--dtype, --shapes)",
        )
    return InputError(
        "The module cannot be traced with these inputs.",
        found=f"{where}: {kind}: {text or 'no details'}; inputs: {arguments_text(args, kwargs)}"
        f"; forward{_forward_inputs(module)}",
        fix=f"check the shapes and types of the inputs (--shapes); {_DETAILS}",
    )


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
    return "(" + ", ".join(names[:_MOST_NAMES] + ["..."] * (len(names) > _MOST_NAMES)) + ")"
