"""``doctor``: what is installed, what is not and would be of use, and whether the core works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.errors import BackendMissingError, Error, VerificationError

if TYPE_CHECKING:
    from rmsnorm_export.diagnosis import Diagnosis


@define("doctor")
def command(files: Files) -> None:
    """Check this installation: packages, GPUs, the TensorRT plugin, and a model for every target.

    Exit code 0 when the core works, whatever else is missing; 6 when a package that it needs is
    missing or broken; 4 when the self test fails.
    """
    from rmsnorm_export.diagnosis import doctor

    files.check()
    with console.progress(files.state, "Importing packages, running the self test"):
        diagnosis = doctor()
    files.finish(diagnosis, _broken_core(diagnosis))


def _broken_core(diagnosis: Diagnosis) -> Error | None:
    """The error that the exit code stands for; None when the core works."""
    if diagnosis.works:
        return None
    bad = [c for c in diagnosis.components if c.required and c.status != "ok"]
    if bad:
        return BackendMissingError(
            "A package that rmsnorm-export needs does not work.",
            found=", ".join(f"{c.name} is {c.status}" for c in bad),
            fix=" && ".join(dict.fromkeys(c.install for c in bad)),
        )
    failed = [test for test in diagnosis.self_tests if not test.passed]
    return VerificationError(
        "The self test failed.",
        found="; ".join(f"{test.name}: {test.detail}" for test in failed),
        fix="install rmsnorm-export again; if that does not help, report what doctor --format json"
        " prints",
    )
