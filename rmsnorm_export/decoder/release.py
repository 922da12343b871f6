"""What is said where a release of transformers breaks something that nobody tried it with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rmsnorm_export.errors import Error, InputError
from rmsnorm_export.printable import first_line
from rmsnorm_export.system.packages import TRANSFORMERS, untried


def other_release() -> str:
    """Return the cure where the installed release was not tried; "" where it was."""
    drift = untried(TRANSFORMERS)
    return drift and f"install a release that was tried: {drift}"


@contextlib.contextmanager
def naming_release() -> Iterator[None]:
    """Name the releases that were tried in what another one makes fail.

    Raises:
        InputError: something other than an error of this package was raised.
    """
    try:
        yield
    except Error:
        raise
    except Exception as error:  # whatever another package raises
        if not (fix := other_release()):
            raise
        what = "The installed release of transformers does not do what those do that were tried."
        found = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(what, found=found, fix=fix) from error
