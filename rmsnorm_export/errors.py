"""The one exception family: what happened, what was found, how to fix it.

Every subclass carries the exit code that the command line returns for it.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of the command line."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INPUT = 3
    VERIFICATION = 4
    REQUIREMENT = 5
    BACKEND = 6


class Error(Exception):
    """Base of every error that this package raises on purpose.

    Args:
        what: what happened, one sentence.
        found: what was found that made it happen.
        fix: what the user can do about it.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, what: str, *, found: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.found = found
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.found:
            lines.append(f"found: {self.found}")
        if self.fix:
            lines.append(f"fix: {self.fix}")
        return "\n".join(lines)


class UsageError(Error):
    """An option or argument that cannot be used as given."""

    exit_code = ExitCode.USAGE


class InputError(Error):
    """A file or model that cannot be read, or a place that cannot be written."""

    exit_code = ExitCode.INPUT


class VerificationError(Error):
    """Two models, or a site before and after, differ by more than was declared."""

    exit_code = ExitCode.VERIFICATION


class RequirementError(Error):
    """Fewer norms were fused than ``--require`` asked for."""

    exit_code = ExitCode.REQUIREMENT


class BackendMissingError(Error):
    """A runtime that the command needs is not installed."""

    exit_code = ExitCode.BACKEND
