"""The one exception family: what happened, what was found, how to fix it.

Every subclass carries the exit code that the command line returns for it.
"""

from __future__ import annotations

import dataclasses
import enum


class ExitCode(enum.IntEnum):
    """Exit codes of the command line.

    ``NOT_RUN`` is neither a pass nor a difference: what was to be compared could not be run here,
    where no kernel takes its types or an operator is not known, so that nothing was learned of it.
    """

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INPUT = 3
    VERIFICATION = 4
    REQUIREMENT = 5
    BACKEND = 6
    NOT_RUN = 7
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    """128 + SIGINT and 128 + SIGPIPE: what a shell reports for a program that these end."""


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
        parts = {"found": self.found, "fix": self.fix}
        return "\n".join([self.what, *(f"{key}: {part}" for key, part in parts.items() if part)])


class UsageError(Error):
    """An option or argument that cannot be used as given."""

    exit_code = ExitCode.USAGE

    def at(self, place: str) -> UsageError:
        """Return the same with the place that it is about, e.g. a flag, in front."""
        word, what = self.what.partition(" ")[0], self.what
        what = what[:1].lower() + what[1:] if word.istitle() else what  # TensorRT stays
        return UsageError(f"{place}: {what}", found=self.found, fix=self.fix)


class InputError(Error):
    """A file or model that cannot be read, or a place that cannot be written."""

    exit_code = ExitCode.INPUT


class VerificationError(Error):
    """Two models, or a site before and after, differ by more than was declared."""

    exit_code = ExitCode.VERIFICATION


class NotRunError(VerificationError):
    """Models that cannot be run here: nothing is known of their difference."""

    exit_code = ExitCode.NOT_RUN


class RequirementError(Error):
    """Fewer norms were fused than ``--require`` asked for."""

    exit_code = ExitCode.REQUIREMENT


class BackendMissingError(Error):
    """A runtime that the command needs is not installed."""

    exit_code = ExitCode.BACKEND


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """End of a command or a step, as it is printed and recorded.

    Attributes:
        what: happened, one sentence.
        found: what was found that made it happen.
        fix: what to do about it.
        exit_code: of the program.
    """

    what: str
    found: str
    fix: str
    exit_code: int

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return what any exception means."""
        if isinstance(error, Error):
            return cls(error.what, error.found, error.fix, int(error.exit_code))
        what, code = "Internal error in rmsnorm-export.", ExitCode.INTERNAL
        found = f"{type(error).__name__}: {error}"
        fix = "run the same command with --debug and report what it prints"
        if isinstance(error, KeyboardInterrupt):
            what, code = "The run was interrupted.", ExitCode.INTERRUPTED
            found, fix = "Ctrl-C, or SIGTERM", "run the command again: it goes on from here"
        elif isinstance(error, OSError) and error.strerror:
            what, code = "A file cannot be read or written.", ExitCode.INPUT
            found = ": ".join(filter(None, (error.strerror, str(error.filename or ""))))
            fix = "check the path, its permissions and the free space"
        elif isinstance(error, MemoryError):
            what, found = "Out of memory.", str(error) or "an allocation failed"
            fix = "use a machine with more memory, or smaller sizes with --shapes or --dims"
        return cls(what, found, fix, int(code))

    def error(self, before: str = "") -> Error:
        """Return an error with the exit code, and words before what happened."""
        error = Error(before + self.what, found=self.found, fix=self.fix)
        error.exit_code = ExitCode(self.exit_code)
        return error
