"""The problems that are counted, and how the project's own host code launches each."""

from __future__ import annotations

import ctypes
import dataclasses
import struct
from pathlib import Path
from typing import Any

from rmsnorm_export.op import abi
from scripts.sass.parse import Usage

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element."""

_FP8 = {"y": abi.TYPES["float8_e4m3"]}
_INT8 = {"y": abi.TYPES["int8"]}
OPS: dict[str, dict[str, Any]] = {
    "norm": {},
    "gemma": {"scale_before_cast": True, "scale_offset": 1.0},
    "torch": {"scale_before_cast": True},
    "skip": {"kind": abi.KINDS["SkipRMSNorm"]},
    "gated": {"kind": abi.KINDS["GatedRMSNorm"]},
    "fp8": {**_FP8, "quantize": abi.STATIC},
    "fp8row": {**_FP8, "quantize": abi.PER_ROW},
    "int8": {**_INT8, "quantize": abi.STATIC},
    "int8row": {**_INT8, "quantize": abi.PER_ROW},
    "skipfp8": {"kind": abi.KINDS["SkipRMSNorm"], **_FP8, "quantize": abi.STATIC},
    "skipfp8row": {"kind": abi.KINDS["SkipRMSNorm"], **_FP8, "quantize": abi.PER_ROW},
    "mxfp8": {**_FP8, "quantize": abi.BLOCKS},
    "skipmxfp8": {"kind": abi.KINDS["SkipRMSNorm"], **_FP8, "quantize": abi.BLOCKS},
    "rotary": {"kind": abi.KINDS["RotaryRMSNorm"]},
    "rotary32": {"kind": abi.KINDS["RotaryRMSNorm"], "table": abi.TYPES["float32"]},
}
"""Attributes and fields of the problem, by the name under which it is counted."""

TENSORS = {name: number << 40 for number, (name, _) in enumerate(abi.Pointers._fields_, 1)}
"""An address for each tensor, far from the others."""


HEADS = 32
"""Rows with the same angles, one behind the other: [batch, tokens, heads, n]."""


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Rows of ``n`` elements."""

    op: str
    dtype: str
    n: int
    low_latency: bool = False

    @property
    def name(self) -> str:
        """Its key in the table."""
        return f"{self.op} {self.dtype} {self.n}" + " low latency" * self.low_latency

    @property
    def rows(self) -> int:
        """Enough to fill the GPU many times: half a gigabyte of x; of a batch that decodes, 16."""
        if self.low_latency:
            return 16
        return max(4096, (512 << 20) // (self.n * SIZES[self.dtype]))

    @property
    def row_bytes(self) -> int:
        """What has to be moved of a row."""
        size = SIZES[self.dtype]
        fields = OPS[self.op]
        inputs_and_sum = {0: 1, 1: 3, 2: 2, 3: 1}[fields.get("kind", 0)]
        tables = self.n * SIZES["float32" if "table" in fields else self.dtype] * 2 // HEADS
        own = self.n * (inputs_and_sum * size + (1 if "y" in fields else size))
        return own + (tables if self.op.startswith("rotary") else 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """What the runtime was asked for."""

    kernel: str
    blocks: int
    threads: int
    cluster: int
    shared_bytes: int
    parameters: bytes
    lanes: int  # threads of a row in a block
    rows: int  # that they take at once
    segments_at: int  # offset of the number of rows in the parameters

    @property
    def rows_at_once(self) -> float:
        """Of a block."""
        return self.threads / self.lanes / self.cluster * self.rows

    def with_rows(self, rows: int) -> bytes:
        """The parameters, for another number of rows."""
        changed = bytearray(self.parameters)
        struct.pack_into("<q", changed, self.segments_at, rows // self.rows)
        return bytes(changed)


class _Launch(ctypes.Structure):
    """``Launch`` of plugins/tests/gpu/recorder.cpp."""

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        *((name, ctypes.c_uint) for name in ("blocks", "threads", "cluster", "shared", "early")),
        ("parameters", ctypes.c_ubyte * 1024),
    )


class Recorder:
    """The kernels behind a runtime that launches nothing (scripts.gpu.build.recorded)."""

    def __init__(self, path: Path, usages: dict[str, Usage]) -> None:
        self._functions = abi.functions(path)
        self._functions.recorder_last.restype = ctypes.POINTER(_Launch)
        for name, usage in usages.items():
            self._functions.recorder_registers(name.encode(), usage.registers)

    def launch(self, work: Work) -> Launch:
        """
        Raises:
            ValueError: the library refuses the work.
        """
        size = abi.TYPES[work.dtype]
        types = {"x": size, "scale": size, "bias": size, "y": size, "table": size}
        problem = abi.Problem(n=work.n, has_scale=True, **types)
        problem.norm.epsilon = 1e-6
        for name, value in OPS[work.op].items():
            setattr(problem if hasattr(problem, name) else problem.norm, name, value)
        if work.op.startswith("rotary"):
            problem.table_width = work.n
            problem.runs[:] = work.rows // HEADS, HEADS
            problem.strides[:] = 0, 1, 0
        pointers = abi.Pointers(**TENSORS)
        tactic = abi.LOW_LATENCY if work.low_latency else abi.THROUGHPUT
        status = self._functions.rmsnorm_launch(
            ctypes.byref(problem), ctypes.byref(pointers), work.rows, tactic, None
        )
        if status:
            raise ValueError(f"The launch of {work.name} ended with {status}.")
        last = self._functions.recorder_last().contents
        parameters = bytes(last.parameters)[: self._functions.recorder_task_bytes()]
        at = self._functions.recorder_lanes_offset()
        return Launch(
            kernel=last.kernel.decode(),
            blocks=last.blocks,
            threads=last.threads,
            cluster=last.cluster,
            shared_bytes=last.shared,
            parameters=parameters,
            lanes=struct.unpack_from("<i", parameters, at)[0],
            rows=struct.unpack_from("<i", parameters, self._functions.recorder_rows_offset())[0],
            segments_at=self._functions.recorder_segments_offset(),
        )
