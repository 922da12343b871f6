"""The CPU kernels for ONNX Runtime, one instruction set at a time, in processes of their own."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from tests.plugins.native_isa import ISAS
from tests.tools.lib.command import module_command, module_environment


def _in_a_process(*arguments: str, **environment: str) -> str:
    command = module_command("tests.plugins.native_process", *arguments)
    done = subprocess.run(
        command,
        env={**module_environment(), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("isa", ISAS)
def test_every_attribute_and_type(native_library: pathlib.Path, isa: str) -> None:
    assert _in_a_process(str(native_library), RMSNORM_EXPORT_ISA=isa) == "1326 norms\n"


@pytest.mark.parametrize("isa", ISAS)
def test_an_activation_is_the_same_in_a_large_call(native_library: pathlib.Path, isa: str) -> None:
    """Of every number of the half types: whatever stands beside it."""
    assert _in_a_process(str(native_library), "activations", RMSNORM_EXPORT_ISA=isa) == "8 forms\n"
