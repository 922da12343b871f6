"""Keep what PyTorch's exporter prints and warns of, instead of showing it."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

_LOG = logging.getLogger("rmsnorm_export.torch")


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
