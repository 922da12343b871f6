"""What PyTorch's exporter prints, warns of and raises, in terms of the module and its arguments."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import TextIO

import torch

from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.printable import one_line
from rmsnorm_export.torch.dtypes import dtype_name

_LOG = logging.getLogger("rmsnorm_export.torch")


CONTROL_FLOW = re.compile("GuardOnDataDependentSymNode|PendingUnbackedSymbolNotFound")

_DYNAMIC = re.compile("UserError|ConstraintViolationError|dynamic_shapes|inferred a static shape")


class _Buffer(io.StringIO):
    """A stand-in for ``stream``; by this name rich finds where to draw a bar of progress."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.rich_proxied_file = getattr(stream, "rich_proxied_file", stream)


@contextlib.contextmanager
def collected() -> Iterator[list[str]]:
    """Collect the lines of prints and warnings while the block runs; at its end log them, for -v.

    Loggers are silent meanwhile: PyTorch's write to streams of their own.
    """
    lines: list[str] = []
    out, err = _Buffer(sys.stdout), _Buffer(sys.stderr)
    caught: list[warnings.WarningMessage] = []
    silenced = logging.root.manager.disable
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            logging.disable()
            yield lines
    finally:
        logging.disable(silenced)
        printed = (out.getvalue() + err.getvalue()).splitlines()
        lines.extend(line.rstrip() for line in printed if line.strip())
        lines.extend(f"{warning.category.__name__}: {warning.message}" for warning in caught)
        for line in lines:
            _LOG.info("%s", line)


def explain(
    error: BaseException, module: object, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Error:
    """Return the error of this package that stands for an exception of PyTorch's exporter."""
    root = error
    while not isinstance(root, Error) and root.__cause__ is not None and str(root.__cause__):
        root = root.__cause__
    if isinstance(root, Error):
        return root
    text = f"{type(root).__name__}: {one_line(str(root), 400)}"
    kind: type[Error] = InputError
    what = "The module cannot be exported with these inputs."
    fix = (
        "check the types and shapes of the inputs against forward and the weights (--shapes, "
        "--dtype); for an operator that ONNX lacks try a higher --opset; --debug prints PyTorch's "
        "own account"
    )
    if CONTROL_FLOW.match(text):
        what = "The module's control flow depends on the values of a tensor."
        fix = "use torch.where or torch.cond instead of Python's if, or omit that branch"
    elif _DYNAMIC.search(text):
        kind, what = UsageError, "The dynamic shapes do not fit the module."
        fix = "fix those sizes, or change their ranges (--shapes, dynamic_shapes)"
    inputs = arguments_text(args, kwargs)
    return kind(what, found=f"{type(module).__name__}: {text}; inputs: {inputs}", fix=fix)


@contextlib.contextmanager
def explained(what: str, fix: str, place: object = "") -> Iterator[None]:
    """Turn whatever code of others raises in the block into an error of ours that names its class.

    Args:
        what: happened then.
        fix: what to do.
        place: the file that is read, if it is one.

    Raises:
        InputError: for any exception, ``SystemExit`` included.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {one_line(str(error), 300) or 'no message'}"
        raise InputError(what, found=f"{place}: {reason}" if place else reason, fix=fix) from error


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
