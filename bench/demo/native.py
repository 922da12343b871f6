"""One norm by the operator's CPU kernels for ONNX Runtime against its body of plain operators."""

from __future__ import annotations

import argparse
import time

from bench.native import contenders
from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.op.spec import FLOAT16, NormSpec
from tests.tools.lib.timing import samples

_ROWS, _N = 512, 4096
_SPEC = NormSpec(kind="GatedRMSNorm", gate_first=True, group_size=64, epsilon=2.0**-17)


def native_line() -> str:
    """What the same file takes with the library of kernels and without; or how to build it."""
    options = argparse.Namespace(threads=1, library=None)
    try:
        runs = dict(contenders(_SPEC, FLOAT16, _ROWS, _N, options))
    except BackendMissingError as error:
        return f"kernels of the operator in ONNX Runtime: {error.what} {error.fix}"
    chosen = {name: runs[name] for name in ("portable", "native")}
    taken = samples(chosen, 10, 0.02, time.process_time)
    portable, native = (min(taken[name]) for name in chosen)
    return (
        f"Mamba-2's norm, [{_ROWS}, {_N}] float16, processor time: {portable * 1e3:.1f} ms by its"
        f" body, {native * 1e3:.1f} ms by its kernel, {portable / native:.1f} times as fast"
    )
