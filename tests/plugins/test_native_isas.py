"""The CPU kernels for ONNX Runtime, one instruction set at a time, in processes of their own."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from tests.plugins.native_isa import ISAS
from tests.tools.lib.command import module_command, module_environment


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("module", "printed"), [("native_process", "1326 norms\n"), ("test_native_codes", "56\n")]
)
def test_every_attribute_type_and_code(
    native_library: pathlib.Path, module: str, printed: str, isa: str
) -> None:
    command = module_command(f"tests.plugins.{module}", str(native_library))
    env = {**module_environment(), "RMSNORM_EXPORT_ISA": isa, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
