"""Drives the kernels, interpreted on a CPU or on a GPU, and says what they may return.

``Driver.run(Job)`` is one launch. ``allowed(job)`` gives the interval that the rounding-exact
reference leaves: every step is rounded as declared, but the sum of squares may associate in any
way. The reference is evaluated with the mean a little smaller and a little larger; y is monotone
in it. The usual norms, and all of half types, may multiply by 1 / rms, which is an rms of 2 ulp of
f32 less or more; and a sigmoid errs by up to 2**-20 of itself, or 2**-17.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import re
import subprocess
from typing import Any, Literal, get_args
from unittest import mock

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rmsnorm_export.op import reference
from rmsnorm_export.op.dtypes import element_type, round_to
from rmsnorm_export.op.spec import NormSpec
from toolbox import abi

Array = npt.NDArray[Any]

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
FP8, INT8 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.int8)
_TYPES = (F32, F16, BF16, FP8, INT8)
How = Literal["none", "static", "per_row"]
_QUANTIZE: tuple[How, ...] = get_args(How)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A launch; arrays are [rows, n] and [n].

    ``tables``: cos and sin, [..., w], whose axes before the last are broadcast against ``leading``:
    sizes whose product is the rows. In memory ``inner`` rows lie side by side, so that the elements
    of one are so many apart. ``misaligned`` counts elements; ``most_cluster``, the blocks that the
    device places in a cluster, where ``sm`` has any; ``compiled_for``, an earlier architecture
    whose code the driver has translated; ``context``, which one of that device; ``schedule``, which
    warps run first. Without ``has_sum`` nobody asks for that of Skip.
    """

    spec: NormSpec
    x: Array
    other: Array | None = None
    scale: Array | None = None
    bias: Array | None = None
    tables: tuple[Array, Array] | None = None
    leading: tuple[int, ...] = ()
    quantize: How = "none"
    codes: np.dtype[Any] = FP8
    quant_scale: float = 1.0
    sm: int = 90
    compiled_for: int | None = None
    most_cluster: int = 16
    context: int = 0
    schedule: int = 1
    misaligned: int = 0
    inner: int = 1
    has_sum: bool = True

    @property
    def y_type(self) -> np.dtype[Any]:
        return self.x.dtype if self.quantize == "none" else self.codes


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The tensors that a launch wrote, and how it was launched."""

    y: Array
    sum: Array | None
    row_scale: Array | None
    blocks: int
    threads: int
    cluster: int
    queries: int  # that the host made of the device and the kernel
    at_once: int  # blocks of an SM, or clusters, as the runtime said
    instructions: int  # of warps, where they are interpreted
    kernel: str

    @property
    def family(self) -> str:
        """The kernel's name in its source."""
        named = re.search(r"\d(row_[a-z]+)", self.kernel)
        return named[1] if named else self.kernel


class RefusalError(Exception):
    """The sentence of ``refusal``."""


class LaunchError(AssertionError):
    """A launch failed, or the driver has ended: ask another one for what comes next."""


class Driver:
    """A driver (plugins/tests/kernels/driver.cpp), one process for many launches."""

    def __init__(self, *command: str | pathlib.Path) -> None:
        """``command``: the driver, perhaps as the argument of another program."""
        options = {"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, env={**os.environ, **options}, **pipes)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def finish(self) -> int:
        """Let the driver end, and the program around it; return its exit code."""
        with contextlib.suppress(BrokenPipeError):
            self._in.close()
        return self._process.wait()

    def run(self, job: Job, **fields: object) -> Outcome:
        """Launch; ``fields`` overrule what the job says of the problem, for refusals.

        Raises:
            RefusalError: with the reason.
            LaunchError: with that of the runtime.
        """
        self._write(_header(job, fields))
        if reason := self._line():
            raise RefusalError(reason)
        rows = [_beside(array, job.inner) for array in (job.x, job.other) if array is not None]
        weights = [array for array in (job.scale, job.bias) if array is not None]
        static = [np.float32(job.quant_scale)] if job.quantize == "static" else []
        self._write(*(array.tobytes() for array in (*rows, *weights, *static, *(job.tables or ()))))
        status, intact, *how = map(int, self._line().split())
        kernel = self._line()
        y = self._rows(job.y_type, job)
        skip = job.spec.kind == "SkipRMSNorm" and job.has_sum
        total = self._rows(job.x.dtype, job) if skip else None
        row_scale = self._array(F32, job.x.shape[:1]) if job.quantize == "per_row" else None
        if status != 0:
            raise LaunchError(f"cudaError_t {status}: {kernel}")
        assert intact, "a guard zone was written to"
        return Outcome(y, total, row_scale, *how, kernel)

    def checked(self, job: Job) -> Outcome:
        """Launch, and compare every output with the reference."""
        outcome = self.run(job)
        check(job, outcome)
        return outcome

    def _write(self, *parts: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # the answer will be missing
            self._in.write(b"".join(parts))
            self._in.flush()

    def _line(self) -> str:
        line = self._out.readline()
        if not line:
            raise LaunchError(f"the driver ended with {self._process.wait()}, see its output above")
        return line.decode().rstrip("\n")

    def _rows(self, dtype: np.dtype[Any], job: Job) -> Array:
        rows, n = job.x.shape
        return _beside(self._array(dtype, (rows * n // job.inner, job.inner)), n).reshape(rows, n)

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        size = int(np.prod(shape)) * dtype.itemsize
        return np.frombuffer(self._out.read(size), dtype).reshape(shape)


def _beside(rows: Array, inner: int) -> Array:
    """[rows, n] as [rows / inner, n, inner], flattened to [rows / inner * n, inner]."""
    return rows.reshape(-1, inner, rows.shape[1]).swapaxes(1, 2).reshape(-1, inner)


def _header(job: Job, overruled: dict[str, object]) -> bytes:
    """Return what ``read_job`` of driver.cpp reads: numbers, and the problem as it is in memory."""
    table = job.x.reshape(-1) if job.tables is None else job.tables[0]
    arrays = {"x": job.x, "scale": job.scale, "bias": job.bias, "table": table}
    problem = abi.Problem(
        n=job.x.shape[-1],
        inner=job.inner,
        y=_TYPES.index(job.y_type),
        has_scale=job.scale is not None,
        has_bias=job.bias is not None,
        quantize=_QUANTIZE.index(job.quantize),
        **{k: _TYPES.index((job.x if v is None else v).dtype) for k, v in arrays.items()},
    )
    problem.set_norm(job.spec)
    problem.table_width = table.shape[-1]
    for name, value in overruled.items():
        part = problem.norm if hasattr(problem.norm, name) else problem
        assert hasattr(part, name)
        setattr(part, name, value)
    numbers = [len(bytes(problem)), len(job.x), job.misaligned, job.has_sum]
    numbers += [job.sm, job.compiled_for or job.sm, job.most_cluster]
    numbers += [job.context, job.schedule]
    for sizes in (job.leading, table.shape[:-1]):
        numbers += [len(sizes), *sizes]
    return np.array(numbers, np.int64).tobytes() + bytes(problem)


def allowed(job: Job) -> tuple[Array, Array]:
    """Return the least and greatest y, in float64, rounded to the type of x, not yet quantised.

    Both are NaN where y must be; the least alone where y may be anything: an infinity, or NaN.
    """
    if job.tables is not None:
        norm = dataclasses.replace(job.spec, kind="RMSNorm", rotary_dim=0, rotary_interleaved=False)
        return turned(job, *allowed(dataclasses.replace(job, spec=norm, tables=None)))
    n = job.x.shape[-1]
    # One rounding for each of the elements that a thread adds in sequence, at 2**-24 each, and for
    # the tree; more than any order here needs, and far below an ulp of a half type.
    slack = 2.0**-24 * (24 + n / 512)
    half, hot = job.x.dtype != F32, usual(job)
    product = 2.0**-22 if half or hot else 0.0  # of what is multiplied by 1 / rms, and not divided
    gate = 2.0**-17 if half and hot else 2.0**-20
    if job.spec.gate_first:  # the squares of all elements err otherwise than this element does
        slack += 4 * gate
    gates = (-gate, gate) if job.spec.kind == "GatedRMSNorm" else (0.0,)
    bounds = []
    for side, error in itertools.product((-1, 1), gates):
        y = exact(job, 1 + side * slack, 1 + side * product, error)
        bounds.append((y[0] if isinstance(y, tuple) else y).astype(np.float64))
    missing = np.isnan(bounds)
    either = missing.any(axis=0) & ~missing.all(axis=0)
    return np.min(bounds, axis=0), np.where(either, np.inf, np.max(bounds, axis=0))


def turned(job: Job, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the rotary embedding of intervals: it is extreme at ends of both of a pair."""
    assert job.tables is not None
    size, own = job.spec.rotary_dim or job.x.shape[-1], element_type(job.tables[0].dtype)
    index = np.arange(job.x.shape[-1])
    first = index % 2 == 0 if job.spec.rotary_interleaved else index < size // 2
    angles = [np.broadcast_to(t, (*job.leading, t.shape[-1])) for t in job.tables]
    cos, sin = (angle.reshape(-1, angle.shape[-1]).astype(np.float64) for angle in angles)
    formula = reference._Formula(
        job.spec,
        {"cos": cos, "sin": sin},
        out=lambda values: round_to(values, element_type(job.x.dtype)),
        table=lambda values: round_to(values, own),
    )
    with np.errstate(invalid="ignore", over="ignore"):
        corners = itertools.product((low, high), repeat=2)
        ends = [formula._rotated(np.where(first, a, b)) for a, b in corners]
    return np.min(ends, axis=0), np.max(ends, axis=0)


def usual(job: Job) -> bool:
    """Return whether a kernel of row_hot.cuh may take it."""
    free = {"scale_offset", "scale_before_cast", "rotary_dim", "rotary_interleaved"}
    n = job.x.shape[-1]
    spec = job.spec.canonical(element_type(job.x.dtype))
    # The first n elements are all, and so is a group of n.
    moot = {name: 0 for name in ("partial_size", "group_size") if getattr(spec, name) == n}
    attributes = dataclasses.replace(spec, **moot).non_default()
    own_scale = job.scale is not None and job.scale.dtype == job.x.dtype
    whole = (n | job.misaligned) * job.x.dtype.itemsize % 16 == 0
    plain = attributes.keys() <= free and job.bias is None and job.inner == 1
    return plain and own_scale and whole


def exact(
    job: Job, factor: float = 1.0, rms_factor: float = 1.0, gate_error: float = 0.0
) -> reference.Result:
    """Return ``reference_exact`` with the mean multiplied by ``factor``, rms by ``rms_factor``, and
    the sigmoids off by ``gate_error`` of themselves."""
    mean = reference._mean
    other = {"SkipRMSNorm": "residual", "GatedRMSNorm": "gate"}.get(job.spec.kind)
    inputs = {other: job.other} if other else {}

    def changed(values: Array) -> Array:
        return np.asarray(mean(values) * (factor * rms_factor**2))

    inside = not (job.spec.epsilon_outside or job.spec.epsilon_clamp)
    epsilon = job.spec.epsilon * rms_factor ** (2 if inside else 1)
    spec = dataclasses.replace(job.spec, epsilon=epsilon)

    def activated(spec: NormSpec, gate: Array, stash: Any) -> Array:
        sigmoid = 1 / (1 + np.exp(-gate))
        # Denormal ones have few bits.
        sigmoid = stash(np.maximum(sigmoid * (1 + gate_error) + np.sign(gate_error) * 2.0**-148, 0))
        return np.asarray(sigmoid if spec.activation == "sigmoid" else stash(gate * sigmoid))

    with mock.patch.multiple(reference, _mean=changed, activated=activated):
        return reference.reference_exact(spec, job.x, job.scale, job.bias, **inputs)


def ordinal(values: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.int64]:
    """Return each value's place among those of ``dtype``: neighbours differ by 1, zeros are 0."""
    stored = values.astype(dtype).view(f"i{dtype.itemsize}").astype(np.int64)
    magnitude = stored & ((1 << 8 * dtype.itemsize - 1) - 1)
    return stored if dtype == INT8 else np.where(stored < 0, -magnitude, stored)


def assert_between(result: Array, low: Array, high: Array, ulps: int = 0) -> None:
    """Assert that it is at most ``ulps`` of its type outside the bounds, and NaN where they are."""
    values, missing = result.astype(np.float64), np.isnan(low)
    wrong = np.isnan(values) != np.where(missing & ~np.isnan(high), np.isnan(values), missing)
    assert not wrong.any(), f"NaN, or none, at {np.argwhere(wrong)[0]}; {wrong.sum()} such"
    place, least, most = (
        ordinal(np.where(missing, 0, each), result.dtype) for each in (values, low, high)
    )
    worst = np.maximum(least - place, place - most)
    where = np.unravel_index(int(worst.argmax()), worst.shape)
    assert worst.max() <= ulps, (
        f"{worst.max()} ulp outside at {where}: {values[where]!r} of {result.dtype}, "
        f"allowed [{low[where]!r}, {high[where]!r}]; {np.count_nonzero(worst > ulps)} such"
    )


def codes_of(y: Array, scale: Array, codes: np.dtype[Any]) -> Array:
    """``saturate(round_to_even(y / scale))``, the quotient in f32."""
    with np.errstate(over="ignore", invalid="ignore"):
        quotient = y.astype(np.float32) / scale.astype(np.float32)
        if codes == INT8:
            return np.clip(np.rint(quotient), -128, 127).astype(INT8)
        return np.clip(quotient, -448, 448).astype(FP8)


def check(job: Job, outcome: Outcome) -> None:
    """Compare all outputs with the reference: y within its interval, codes within one of theirs."""
    low, high = allowed(job)
    if job.spec.kind == "SkipRMSNorm" and job.has_sum:
        expected = exact(job)[1]
        assert outcome.sum is not None
        numbers = ~np.isnan(expected.astype(np.float32))
        assert outcome.sum[numbers].tobytes() == expected[numbers].tobytes()
        assert np.isnan(outcome.sum.astype(np.float32)[~numbers]).all()
    if job.quantize == "none":
        assert_between(outcome.y, low, high)
        return
    scale = np.full((len(job.x), 1), job.quant_scale, np.float32)
    if job.quantize == "per_row":
        assert outcome.row_scale is not None
        # The greatest magnitude of an interval is at one of its ends, the least at one or at 0.
        ends = np.fmax(np.abs(low), np.abs(high)).max(axis=-1)
        least = np.where(low * high < 0, 0, np.minimum(np.abs(low), np.abs(high))).max(axis=-1)
        largest = np.float32(448 if job.codes == FP8 else 127)
        low_scale, high_scale = (v.astype(np.float32) / largest for v in (least, ends))
        # 1 is that of a row of zeros, which this may be.
        zeros = (low_scale == 0) & (outcome.row_scale == 1)
        assert_between(np.where(zeros, high_scale, outcome.row_scale), low_scale, high_scale)
        assert (outcome.row_scale != 0).all(), "0 is the scale of no row"
        scale = outcome.row_scale[:, None]
    either = np.isnan(low) & ~np.isnan(high)
    ends = (np.where(either, -np.inf, low), high)
    least, most = (codes_of(end, scale, job.codes).astype(np.float64) for end in ends)
    if job.codes == FP8:
        least[either] = np.nan
    assert_between(outcome.y, least, most, 1)
