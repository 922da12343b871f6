"""What PyTorch's exporter prints, logs and warns of, kept instead of shown."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator

Progress = Callable[[str], None]

_FAMILIES = ("torch", "onnxscript", "onnx_ir", "transformers")
_STAGES = {
    "Obtain model graph": "Tracing the module",
    "Run decompositions": "Decomposing the graph",
    "Translate the graph": "Translating the graph to ONNX",
}
"""Beginnings of the exporter's own lines -> what the user is told at that point."""


class Chatter:
    """The lines that were said, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class _Sink(io.TextIOBase):
    """A stream that hands on whole lines."""

    def __init__(self, take: Callable[[str], None]) -> None:
        super().__init__()
        self._take = take
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
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
def collected(progress: Progress | None = None) -> Iterator[Chatter]:
    """Collect prints, logs and warnings while the block runs; tell ``progress`` of new stages."""
    chatter = Chatter()
    told: set[str] = set()

    def take(line: str) -> None:
        if line.strip():
            chatter.lines.append(line.rstrip())
        for beginning, stage in _STAGES.items():
            if beginning in line and progress is not None and stage not in told:
                told.add(stage)
                progress(stage)

    sink = _Sink(take)
    with (
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
        _loggers(_Handler(take)),
    ):
        try:
            yield chatter
        finally:
            chatter.lines += [f"{w.category.__name__}: {w.message}" for w in caught]


@contextlib.contextmanager
def _loggers(handler: logging.Handler) -> Iterator[None]:
    """Only ``handler`` hears the loggers of the exporter's packages."""
    known = list(logging.root.manager.loggerDict.items())
    kept: list[tuple[logging.Logger, list[logging.Handler], bool]] = []
    for family in _FAMILIES:
        head = logging.getLogger(family)
        kept.append((head, head.handlers, head.propagate))
        head.handlers, head.propagate = [handler], False
    for name, logger in known:
        head_name, dot, _ = name.partition(".")
        if not isinstance(logger, logging.Logger) or not dot or head_name not in _FAMILIES:
            continue
        if logger.handlers or not logger.propagate:
            kept.append((logger, logger.handlers, logger.propagate))
            logger.handlers, logger.propagate = [], True
    try:
        yield
    finally:
        for logger, handlers, propagate in kept:
            logger.handlers, logger.propagate = handlers, propagate
