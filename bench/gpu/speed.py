"""Time and memory rate of the kernels and of other people's, each timed by ``triton.testing``.

Large tensors are read from cold memory: the L2 cache is flushed before each call. Few rows, as when
one token is decoded, run in a CUDA graph with a warm cache, and the table says so. A contender that
is wrong, not installed, or that lacks the operation says so in its row and is not timed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import itertools
import random
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch

from bench.gpu.machine import Built, Machine
from bench.gpu.steps import Tell
from rmsnorm_export.op.spec import NormSpec
from toolbox import abi

Op = Literal["norm", "skip", "fp8", "rotary"]
"""``norm``: y of x; ``skip``: y and x + residual; ``fp8``: y of x as E4M3 with a static scale;
``rotary``: y of x, turned by the angles of its token."""

Buffers = dict[str, Any]
"""Tensors of one call: x, weight, y and quant_scale; residual and sum; cos and sin [tokens, n]."""

Run = Callable[[Buffers], Any]
"""Compute the norm once; return y, or (y, ...)."""

Runs = dict[Op, Run]
"""Of the operations that a contender has."""

HEADS = 32
"""Rows of a token, which have its angles (``rotary``)."""

LENGTHS = (128, 256, 1024, 4096, 4104, 8192, 65536, 262144)
"""4,104 is 8 over a power of two: no multiple of what a warp loads at once."""

EPSILON = 1e-6
QUANT_SCALE = 0.02  # 448 * 0.02 is beyond every y of the random inputs: nothing saturates

BOUNDS: dict[Op, float] = {"norm": 3.0, "skip": 3.0, "fp8": 3.0, "rotary": 6.0}
"""Ulps from float64: three roundings to the type (sum, row, product), half an ulp each, which a
carry into the next binade doubles; behind it, two products and their sum."""


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """One norm: an operation on ``rows`` rows of ``n`` elements of a type."""

    op: Op
    rows: int
    n: int
    dtype: str

    @property
    def tokens(self) -> int:
        """Rows of cos and sin (``rotary``)."""
        return max(1, self.rows // HEADS)

    @property
    def bytes(self) -> int:
        """Each input read once, each output written once."""
        size, elements = getattr(torch, self.dtype).itemsize, self.rows * self.n
        written = 1 if self.op == "fp8" else size
        more = {"skip": 2 * elements, "rotary": 2 * self.tokens * self.n}.get(self.op, 0)
        return int(elements * (size + written) + (self.n + more) * size)


def grid(largest: int) -> list[Work]:
    """Return all works, of up to so many elements, shuffled: some of each kind come early."""
    works = []
    for op, dtype in itertools.product(get_args(Op), ("bfloat16", "float16")):
        for n in (64, 128, 256) if op == "rotary" else LENGTHS:
            works.append(Work(op, max(1, largest >> 16, largest // n), n, dtype))
        works += [Work(op, rows, 128 if op == "rotary" else 4096, dtype) for rows in (1, 32)]
    random.Random(0).shuffle(works)
    return works


def buffers(work: Work, generator: torch.Generator) -> Buffers:
    """Return random inputs, and outputs full of NaN."""
    dtype, device = getattr(torch, work.dtype), generator.device
    shape = (work.rows, work.n)

    def drawn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device=device, dtype=dtype, generator=generator)

    empty = torch.full(shape, float("nan"), device=device)
    tensors = {
        "x": drawn(*shape),
        "weight": drawn(work.n) * 0.2 + 1,
        "y": empty.to(torch.float8_e4m3fn if work.op == "fp8" else dtype),
        "quant_scale": torch.full((1,), QUANT_SCALE, device=device),
    }
    if work.op == "skip":
        tensors |= {"residual": drawn(*shape), "sum": empty.to(dtype)}
    if work.op == "rotary":
        angles = drawn(work.tokens, work.n // 2).repeat(1, 2)  # halves, as models have them
        tensors |= {"cos": angles.cos(), "sin": angles.sin()}
    return tensors


def worst_error(work: Work, used: Buffers, y: torch.Tensor) -> float:
    """Return the largest error in the first and last rows against float64, in ulps of y's type.

    The rounding order is not judged: a result in LLaMA's and one in Gemma's order both pass with
    2 ulp, a wrong one is off by thousands.
    """
    rows = sorted({*range(min(64, work.rows)), *range(max(0, work.rows - 64), work.rows)})
    x = used["x"][rows]
    if work.op == "skip":
        x = x + used["residual"][rows]
    wide = x.double()
    truth = wide / (wide.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    truth = size = truth * used["weight"].double()
    if work.op == "rotary":
        token = torch.tensor(rows, device=x.device) // (work.rows // work.tokens)
        across = torch.cat((-truth[:, work.n // 2 :], truth[:, : work.n // 2]), -1)
        size = torch.hypot(truth, across)  # of two terms that may cancel
        truth = truth * used["cos"][token].double() + across * used["sin"][token].double()
    if work.op == "fp8":
        truth = size = truth / QUANT_SCALE
    y = y.view(torch.uint8)[rows].view(y.dtype)  # as bytes: float8 knows no index on a GPU
    bits = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}.get(y.dtype, 3)
    smallest = {torch.float16: -14, torch.float8_e4m3fn: -6}.get(y.dtype, -126)
    exponent = size.abs().clamp(min=2.0**smallest).log2().floor()
    error = (y.double() - truth).abs() / torch.exp2(exponent - bits)
    return float(error.max()) if bool(torch.isfinite(error).all()) else float("inf")


def ours(library: ctypes.CDLL, machine: Machine, work: Work) -> Run:
    """Return the launch of a kernel of ``library`` (``abi.functions``).

    Raises:
        ValueError: the kernels refuse it.
    """
    kind = {"skip": "SkipRMSNorm", "rotary": "RotaryRMSNorm"}.get(work.op, "RMSNorm")
    types = dict.fromkeys(("x", "scale", "bias", "y", "table"), abi.TYPES[work.dtype])
    problem = abi.Problem(n=work.n, has_scale=True, **types)
    problem.set_norm(NormSpec(kind=kind, epsilon=EPSILON))
    if work.op == "fp8":
        problem.y, problem.quantize = abi.TYPES["float8_e4m3"], abi.STATIC
    at = ctypes.byref(problem)
    if work.op == "rotary":
        pair = ctypes.c_int64 * 2
        axes = [pair(work.tokens, heads) for heads in (work.rows // work.tokens, 1)]
        library.rmsnorm_broadcast_tables(at, axes[0], 2, axes[1], 2)
    if (reason := library.rmsnorm_refusal(at)) is not None:
        raise ValueError(reason.decode())

    def run(used: Buffers) -> torch.Tensor:
        pointers = abi.Pointers()
        for name, tensor in used.items():
            field = {"weight": "scale", "residual": "other"}.get(name, name)
            setattr(pointers, field, tensor.data_ptr())
        place = ctypes.byref(pointers)
        status = library.rmsnorm_launch(at, place, work.rows, machine.stream())
        if status != 0:
            raise RuntimeError(library.rmsnorm_error(status).decode())
        return used["y"]

    return run


def _torch(work: Work) -> Runs:
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (work.n,), weight, EPSILON)

    def skip(b: Buffers) -> tuple[torch.Tensor, torch.Tensor]:
        total = b["x"] + b["residual"]
        return norm(total, b["weight"]), total

    return {"norm": lambda b: norm(b["x"], b["weight"]), "skip": skip}


def _liger(_: Work) -> Runs:
    norm = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction
    added = importlib.import_module("liger_kernel.ops.fused_add_rms_norm")
    skip, options = added.LigerFusedAddRMSNormFunction, (EPSILON, 0.0, "llama", False)
    return {
        "norm": lambda b: norm.apply(b["x"], b["weight"], *options),
        "skip": lambda b: skip.apply(b["x"], b["residual"], b["weight"], *options),
    }


def _quack(_: Work) -> Runs:
    norm = functools.partial(importlib.import_module("quack.rmsnorm").rmsnorm, eps=EPSILON)
    return {
        "norm": lambda b: norm(b["x"], b["weight"]),
        "skip": lambda b: norm(b["x"], b["weight"], residual=b["residual"], prenorm=True),
    }


PEERS: dict[str, Callable[[Work], Runs]] = {"torch fused": _torch, "Liger": _liger, "quack": _quack}


def _measure(
    machine: Machine, work: Work, make: Callable[[Work], Runs], used: Buffers
) -> dict[str, Any]:
    try:
        run = make(work).get(work.op)
        if run is None:
            return {"remark": f"has no {work.op}"}
        result = run(used)
        y = result[0] if isinstance(result, tuple) else result
        if not worst_error(work, used, y) <= BOUNDS[work.op]:
            return {"remark": "wrong, not timed"}
        return {"seconds": machine.seconds(lambda: run(used), warm=work.rows <= HEADS)}
    except Exception as error:  # not installed, or on a size that it does not take
        return {"remark": f"{type(error).__name__}: {error}".splitlines()[0]}


def run(machine: Machine, built: Built, tell: Tell, end: float) -> None:
    """Measure the works of ``grid``, until the time is over."""
    library, copy = abi.functions(built.library), machine.copy_rate()
    makers: dict[str, Callable[[Work], Runs]] = {
        "ours": lambda work: {work.op: ours(library, machine, work)}
    }
    makers |= {name: make for name, make in PEERS.items() if name in machine.peers}
    works = grid(machine.largest)
    for number, work in enumerate(works):
        if time.monotonic() > end:
            tell("not run", f"{len(works) - number} sizes: the time is over")
            break
        used = buffers(work, torch.Generator(machine.device).manual_seed(machine.seed))
        times = {name: _measure(machine, work, make, used) for name, make in makers.items()}
        facts = {"bytes": work.bytes, "copy_bytes_per_second": copy, "contenders": times}
        tell("rows", {**dataclasses.asdict(work), **facts})


def tables(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the page shows: works by what they compute, other contenders, and remarks."""
    contenders = [pair for row in rows for pair in row["contenders"].items()]
    remarks = (f"{name}: {one['remark']}" for name, one in contenders if "remark" in one)
    works = sorted(rows, key=lambda row: (row["op"], row["dtype"], row["rows"] <= HEADS, row["n"]))
    return {
        "works": works,
        "others": list(dict.fromkeys(name for name, _ in contenders if name != "ours")),
        "remarks": list(dict.fromkeys(remarks)),
        "few": HEADS,
    }
