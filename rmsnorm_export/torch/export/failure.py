"""What went wrong in an export, in terms of the module and its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch

from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.printable import first_line, one_line
from rmsnorm_export.torch.dtypes import dtype_name

_CONTROL_FLOW = re.compile("GuardOnDataDependentSymNode|PendingUnbackedSymbolNotFound")
_DYNAMIC = re.compile("UserError|ConstraintViolationError|dynamic_shapes|inferred a static shape")


def explain(
    error: BaseException, module: object, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Error:
    """Return the error of this package that stands for an exception of PyTorch's exporter."""
    chain = list(_causes(error))
    for inner in chain:
        if isinstance(inner, Error):
            return inner
    # The innermost exception that says anything.
    root = next((inner for inner in reversed(chain) if str(inner).strip()), chain[-1])
    text = f"{type(root).__name__}: {one_line(first_line(root), 300)}"
    place = _module_of(chain, module)
    where = f"module {place!r}" if place else f"the module {type(module).__name__}"
    found = f"{where}: {text}; inputs: {arguments_text(args, kwargs)}"
    if _CONTROL_FLOW.match(text):
        return InputError(
            "The module's control flow depends on the values of a tensor, which ONNX cannot trace.",
            found=found,
            fix="use torch.where or torch.cond instead of Python's if, or omit that branch",
        )
    if _DYNAMIC.search(f"{text} {root}"):
        return UsageError(
            "The dynamic shapes do not fit the module.",
            found=f"{found}; {one_line(str(root), 300)}",
            fix="fix those sizes, or change their ranges (--shapes, dynamic_shapes)",
        )
    return InputError(
        "The module cannot be exported with these inputs.",
        found=found,
        fix="check the types and shapes of the inputs against forward and the weights (--shapes, "
        "--dtype); for an operator that ONNX lacks try a higher --opset; --debug prints PyTorch's "
        "own account",
    )


def arguments_text(args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """Return the types and shapes of arguments, for a message."""
    named = [("", value) for value in args] + [
        (f"{name}=", value) for name, value in kwargs.items()
    ]
    return ", ".join(
        f"{name}{dtype_name(value.dtype)}{list(value.shape)}"
        if isinstance(value, torch.Tensor)
        else f"{name}{type(value).__name__}"
        for name, value in named
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _module_of(chain: list[BaseException], module: object) -> str:
    """Return the path of the innermost submodule whose code was running."""
    if not isinstance(module, torch.nn.Module):
        return ""
    paths = {id(child): name for name, child in module.named_modules()}
    innermost = ""
    for error in chain:
        trace = error.__traceback__
        while trace is not None:
            holder = trace.tb_frame.f_locals.get("self")
            innermost = paths.get(id(holder), "") or innermost
            trace = trace.tb_next
    return innermost
