"""What PyTorch's exporter prints, logs and warns of, kept instead of shown."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TextIO

_LOGGERS = ("torch", "onnxscript", "onnx_ir", "transformers")
TRACING, DECOMPOSING = "tracing the module", "decomposing the graph"
TRANSLATING = "translating the graph to ONNX"
_LOG = logging.getLogger("rmsnorm_export.torch")
_STAGES = {
    "Obtain model graph": TRACING,
    "Run decompositions": DECOMPOSING,
    "Translate the graph": TRANSLATING,
}
"""Beginnings of the exporter's own lines -> what the user is told at that point."""


class _Sink(io.TextIOBase):
    """A stream that hands on whole lines of its own thread; those of others go where they went.

    Args:
        take: gets the lines.
        stream: what this stands in for.
    """

    def __init__(self, take: Callable[[str], None], stream: TextIO) -> None:
        super().__init__()
        self._take = take
        # A progress bar of rich stands in for the stream, and prints what is written to it above
        # the bar; by this name rich itself finds the stream behind it. Were it to find the bar
        # here, each drawing of the bar would be printed above it, and so be drawn again.
        self.stream: TextIO = getattr(stream, "rich_proxied_file", stream)
        self.rich_proxied_file = self.stream
        self._rest = ""
        self._thread = threading.get_ident()

    @property
    def _foreign(self) -> bool:
        return threading.get_ident() != self._thread

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._foreign and self.stream.isatty()

    def flush(self) -> None:
        if self._foreign:
            self.stream.flush()

    def write(self, text: str) -> int:
        if self._foreign:
            return self.stream.write(text)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._take(line)
        return len(text)


class _Handler(logging.Handler):
    def __init__(self, take: Callable[[str], None]) -> None:
        super().__init__()
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        self._take(f"{record.levelname}: {record.name}: {record.getMessage()}")


@contextlib.contextmanager
def collected(tell: Callable[[str], None] | None = None) -> Iterator[list[str]]:
    """Collect the lines of prints and logs, then of warnings, while the block runs.

    At its end they are logged, for -v. ``tell`` is called with each stage that begins.
    """
    lines: list[str] = []
    begun: set[str] = set()

    def take(line: str) -> None:
        if line.strip():
            lines.append(line.rstrip())
        for beginning, stage in _STAGES.items():
            if beginning in line and tell is not None and stage not in begun:
                begun.add(stage)
                with (
                    contextlib.redirect_stdout(out.stream),
                    contextlib.redirect_stderr(err.stream),
                ):
                    tell(stage)

    out, err = _Sink(take, sys.stdout), _Sink(take, sys.stderr)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            _heard_by(_Handler(take)),
        ):
            yield lines
    finally:
        lines.extend(f"{w.category.__name__}: {w.message}" for w in caught)
        for line in lines:
            _LOG.info("%s", line)


@contextlib.contextmanager
def _heard_by(handler: logging.Handler) -> Iterator[None]:
    """Only ``handler`` hears the loggers of the exporter's packages."""
    known = list(logging.root.manager.loggerDict.items())
    kept: list[tuple[logging.Logger, list[logging.Handler], bool]] = []
    for family in _LOGGERS:
        head = logging.getLogger(family)
        kept.append((head, head.handlers, head.propagate))
        head.handlers, head.propagate = [handler], False
    for name, logger in known:
        head_name, dot, _ = name.partition(".")
        if not isinstance(logger, logging.Logger) or not dot or head_name not in _LOGGERS:
            continue
        if logger.handlers or not logger.propagate:
            kept.append((logger, logger.handlers, logger.propagate))
            logger.handlers, logger.propagate = [], True
    try:
        yield
    finally:
        for logger, handlers, propagate in kept:
            logger.handlers, logger.propagate = handlers, propagate
