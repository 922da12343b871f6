"""This program again, as on a lesser processor: CPUID tells it of no AVX-512, or of no AVX."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tools.lib.command import say

PROCESSORS = ("avx2", "sse")
"""The most that is left: AVX2 with FMA and F16C; SSE4.2."""


def become(processor: str) -> None:
    """Return where this process is on such a one, else replace it by one that is.

    Exit code 3 where it cannot be: not Linux on x86-64, a processor or virtual machine without
    faults of CPUID, no C compiler. What was chosen before any code of the program runs, the C
    library's `memcpy` say, is that of the real processor.
    """
    if os.environ.get("LESSER") == processor:
        return
    with tempfile.TemporaryDirectory(prefix="rmsnorm-lesser-") as folder:
        library = Path(folder) / "lesser.so"
        source = Path(__file__).with_suffix(".c")
        try:
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            say(f"No lesser processor: a C compiler is needed, and Linux on x86-64 ({error}).")
            raise SystemExit(3) from error
        environment = {**os.environ, "LD_PRELOAD": str(library), "LESSER": processor}
        done = subprocess.run(sys.orig_argv, env=environment, check=False)
    raise SystemExit(done.returncode)
