"""The kernels of a shared library (``build``), called through ctypes on torch tensors."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from bench.gpu import peers
from bench.gpu.kernels_page import LOW_LATENCY, OURS
from bench.gpu.work import EPSILON, Buffers, Op, Work
from rmsnorm_export.op import abi

_KINDS: dict[Op, str] = {
    "norm": "RMSNorm",
    "skip": "SkipRMSNorm",
    "fp8": "RMSNorm",
    "rotary": "RotaryRMSNorm",
}


class Library:
    """The functions of c_api.cpp."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            InputError: those of abi.py are not the structures of the library.
        """
        self._functions = abi.functions(path)

    def contender(self, name: str, tactic: int) -> peers.Peer:
        """Ours, as the benchmark wants it."""

        def make(work: Work) -> peers.PeerRun:
            problem = _problem(work)
            if work.op == "rotary":
                problem.table, problem.table_width = problem.x, work.n
                axes = [
                    (ctypes.c_int64 * 2)(work.tokens, heads)
                    for heads in (work.rows // work.tokens, 1)
                ]
                self._functions.rmsnorm_broadcast_tables(
                    ctypes.byref(problem), axes[0], 2, axes[1], 2
                )
            reason = self._functions.rmsnorm_refusal(ctypes.byref(problem))
            if reason is not None:
                raise peers.UnavailableError(reason.decode())

            def run(used: Buffers) -> torch.Tensor:
                pointers = _pointers(used)
                stream = torch.cuda.current_stream().cuda_stream if used.x.is_cuda else None
                status = self._functions.rmsnorm_launch(
                    ctypes.byref(problem),
                    ctypes.byref(pointers),
                    work.rows,
                    tactic,
                    stream,
                )
                if status != 0:
                    raise RuntimeError(self._functions.rmsnorm_error(status).decode())
                return used.y

            return run

        return peers.Peer(name, make)

    def contenders(self) -> list[peers.Peer]:
        """Both tactics."""
        return [
            self.contender(OURS, abi.THROUGHPUT),
            self.contender(LOW_LATENCY, abi.LOW_LATENCY),
        ]


def _problem(work: Work) -> abi.Problem:
    t = abi.TYPES[work.dtype]
    problem = abi.Problem(n=work.n, x=t, scale=t, bias=t, y=t, has_scale=True)
    problem.norm.kind = abi.KINDS[_KINDS[work.op]]
    problem.norm.epsilon = EPSILON
    if work.op == "fp8":
        problem.y, problem.quantize = abi.TYPES["float8_e4m3"], abi.STATIC
    return problem


def _pointers(used: Buffers) -> abi.Pointers:
    def at(tensor: torch.Tensor | None) -> int | None:
        return None if tensor is None else tensor.data_ptr()

    return abi.Pointers(
        x=at(used.x),
        other=at(used.residual),
        scale=at(used.weight),
        quant_scale=at(used.quant_scale),
        y=at(used.y),
        sum=at(used.total),
        cos=at(used.cos),
        sin=at(used.sin),
    )
