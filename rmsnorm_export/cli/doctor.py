"""``doctor``: what is installed, what is not and would be of use, and whether the core works."""

from __future__ import annotations

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files


@define("doctor", reports=False)
def command(files: Files) -> None:
    """Check this installation: packages, GPUs, the TensorRT plugin, and a model for every target.

    Exit code 0 when the core works, whatever else is missing; 6 when a package that it needs is
    missing or broken; 4 when the self test fails.
    """
    from rmsnorm_export.diagnosis import doctor

    with console.progress(files.state, "Importing packages, running the self test"):
        diagnosis = doctor()
    files.finish(diagnosis, diagnosis.error)
