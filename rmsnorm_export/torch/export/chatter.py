"""What PyTorch's exporter prints, logs and warns of, kept instead of shown."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

_FAMILIES = ("torch", "onnxscript", "onnx_ir", "transformers")
_LOG = logging.getLogger("rmsnorm_export.torch")


class _Buffer(io.StringIO):
    """A stand-in for ``stream``; by this name rich finds where to draw a bar of progress."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.rich_proxied_file = getattr(stream, "rich_proxied_file", stream)


class _Handler(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{record.levelname}: {record.name}: {record.getMessage()}")


@contextlib.contextmanager
def collected() -> Iterator[list[str]]:
    """Collect the lines of logs, then of prints and warnings, while the block runs.

    At its end they are logged, for -v.
    """
    lines: list[str] = []
    out, err = _Buffer(sys.stdout), _Buffer(sys.stderr)
    caught: list[warnings.WarningMessage] = []
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            _heard_by(_Handler(lines)),
        ):
            yield lines
    finally:
        printed = (out.getvalue() + err.getvalue()).splitlines()
        lines.extend(line.rstrip() for line in printed if line.strip())
        lines.extend(f"{w.category.__name__}: {w.message}" for w in caught)
        for line in lines:
            _LOG.info("%s", line)


@contextlib.contextmanager
def _heard_by(handler: logging.Handler) -> Iterator[None]:
    """Only ``handler`` hears the loggers of the exporter's packages."""
    heads = [logging.getLogger(family) for family in _FAMILIES]
    # A logger below that has handlers of its own, or hands nothing on, is silenced by name.
    below = [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger)
        and name.startswith(tuple(f"{family}." for family in _FAMILIES))
        and (logger.handlers or not logger.propagate)
    ]
    kept = [(logger, logger.handlers, logger.propagate) for logger in (*heads, *below)]
    for logger in below:
        logger.handlers, logger.propagate = [], True
    for logger in heads:
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        for logger, handlers, propagate in kept:
            logger.handlers, logger.propagate = handlers, propagate
