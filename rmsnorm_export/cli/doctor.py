"""``doctor``: what is installed, and whether the core works."""

from __future__ import annotations

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files


@define("doctor", reports=False)
def command(files: Files) -> None:
    """Check this installation: versions of packages, GPUs, and a model for every target.

    Exit code 4 when the self test fails.
    """
    from rmsnorm_export.diagnosis import doctor

    with console.progress(files.state, "Running the self test"):
        diagnosis = doctor()
    files.finish(diagnosis, diagnosis.error)
