"""The kernels of a shared library (``build``), called through ctypes on torch tensors."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from scripts.gpu import peers
from scripts.gpu.kernels_page import LOW_LATENCY, OURS
from scripts.gpu.work import EPSILON, Buffers, Op, Work

_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
_FP8 = 3
_KINDS: dict[Op, int] = {"norm": 0, "skip": 1, "fp8": 0}
_THROUGHPUT, _LOW_LATENCY = 1, 2


class _Norm(ctypes.Structure):
    """``Norm`` of rmsnorm.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
        ("scale_offset", ctypes.c_float),
        ("epsilon_outside", ctypes.c_bool),
        ("scale_before_cast", ctypes.c_bool),
        ("round_rstd", ctypes.c_bool),
        ("stash_half", ctypes.c_bool),
        ("gate_first", ctypes.c_bool),
        ("association", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("partial_size", ctypes.c_int64),
        ("group_size", ctypes.c_int64),
    )


class _Problem(ctypes.Structure):
    """``Problem`` of rmsnorm.h."""

    _fields_ = (
        ("norm", _Norm),
        ("n", ctypes.c_int64),
        ("x", ctypes.c_int32),
        ("scale", ctypes.c_int32),
        ("bias", ctypes.c_int32),
        ("y", ctypes.c_int32),
        ("has_scale", ctypes.c_bool),
        ("has_bias", ctypes.c_bool),
        ("quantize", ctypes.c_int32),
    )


class _Pointers(ctypes.Structure):
    """``Pointers`` of rmsnorm.h."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in ("x", "other", "scale", "bias", "quant_scale", "y", "sum", "row_scale")
    )


class Library:
    """The functions of c_api.cpp."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            RuntimeError: the structures above are not those of the library.
        """
        self._functions = ctypes.CDLL(str(path))
        self._functions.rmsnorm_refusal.restype = ctypes.c_char_p
        self._functions.rmsnorm_error.restype = ctypes.c_char_p
        self._functions.rmsnorm_launch.argtypes = [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_void_p)
        ]
        there, here = self._functions.rmsnorm_problem_bytes(), ctypes.sizeof(_Problem)
        if there != here:
            raise RuntimeError(f"Problem has {there} bytes in the library and {here} here")

    def contender(self, name: str, tactic: int) -> peers.Peer:
        """Ours, as the benchmark wants it."""

        def make(work: Work) -> peers.PeerRun:
            problem = _problem(work)
            reason = self._functions.rmsnorm_refusal(ctypes.byref(problem))
            if reason is not None:
                raise peers.UnavailableError(reason.decode())

            def run(used: Buffers) -> torch.Tensor:
                pointers = _pointers(used)
                status = self._functions.rmsnorm_launch(
                    ctypes.byref(problem),
                    ctypes.byref(pointers),
                    work.rows,
                    tactic,
                    torch.cuda.current_stream().cuda_stream,
                )
                if status != 0:
                    raise RuntimeError(self._functions.rmsnorm_error(status).decode())
                return used.y

            return run

        return peers.Peer(name, make)

    def contenders(self) -> list[peers.Peer]:
        """Both tactics."""
        return [
            self.contender(OURS, _THROUGHPUT),
            self.contender(LOW_LATENCY, _LOW_LATENCY),
        ]


def _problem(work: Work) -> _Problem:
    t = _TYPES[work.dtype]
    problem = _Problem(n=work.n, x=t, scale=t, bias=t, y=t, has_scale=True)
    problem.norm.kind = _KINDS[work.op]
    problem.norm.epsilon = EPSILON
    if work.op == "fp8":
        problem.y, problem.quantize = _FP8, 1
    return problem


def _pointers(used: Buffers) -> _Pointers:
    def at(tensor: torch.Tensor | None) -> int | None:
        return None if tensor is None else tensor.data_ptr()

    return _Pointers(
        x=at(used.x),
        other=at(used.residual),
        scale=at(used.weight),
        quant_scale=at(used.quant_scale),
        y=at(used.y),
        sum=at(used.total),
    )
