"""Drives the kernels, on the CPU shim or on a GPU, and says what they may return.

``Shim.run(Job)`` is one launch. ``allowed(job)`` gives the interval that the rounding-exact
reference leaves: every step is rounded as declared, but the sum of squares may associate in any
way. The reference is evaluated with the mean a little smaller and a little larger; y is monotone
in it. The usual norms, and all of half types, may multiply by 1 / rms, which is an rms of 2 ulp of
f32 less or more; and a sigmoid errs by up to 2**-20 of itself, or 2**-17.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import subprocess
from typing import Any, Literal, get_args
from unittest import mock

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rmsnorm_export.op import reference
from rmsnorm_export.op.dtypes import element_type, round_to
from rmsnorm_export.op.spec import FLOAT, NormSpec

Array = npt.NDArray[Any]

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
FP8, INT8 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.int8)
_TYPES = (F32, F16, BF16, FP8, INT8)
_KINDS = ("RMSNorm", "SkipRMSNorm", "GatedRMSNorm", "RotaryRMSNorm")
How = Literal["none", "static", "per_row"]
_QUANTIZE: tuple[How, ...] = get_args(How)
LARGEST_CODE = {FP8: 448.0, INT8: 127.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A launch; arrays are [rows, n] and [n].

    ``tables``: cos and sin, [..., w], whose axes before the last are broadcast against ``leading``:
    sizes whose product is the rows. In memory ``inner`` rows lie side by side, so that the elements
    of one are so many apart. ``misaligned`` counts elements; ``most_cluster``, the blocks that the
    device places in a cluster, where ``sm`` has any; ``compiled_for``, an earlier architecture
    whose code the driver has translated. Without ``has_sum`` nobody asks for that of Skip.
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
    low_latency: bool = False
    sm: int = 90
    compiled_for: int | None = None
    most_cluster: int = 16
    backwards: bool = False
    misaligned: int = 0
    inner: int = 1
    has_sum: bool = True

    @property
    def y_type(self) -> np.dtype[Any]:
        return self.x.dtype if self.quantize == "none" else self.codes


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a launch wrote, and how it was launched."""

    y: Array
    sum: Array | None
    row_scale: Array | None
    blocks: int
    threads: int
    cluster: int
    shared_bytes: int
    queries: int  # that the host made of the device and the kernel


class RefusalError(Exception):
    """The sentence of ``refusal``."""


class Shim:
    """A driver (plugins/tests/kernels/driver.cpp), one process for many launches."""

    def __init__(self, *command: str | pathlib.Path) -> None:
        """``command``: the driver, perhaps as the argument of another program."""
        options = {"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **options}
        )

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def finish(self) -> int:
        """Let the driver end, and the program around it; its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait()

    def run(self, job: Job, **fields: object) -> Outcome:
        """Launch; ``fields`` overrule what the job says of the problem, for refusals.

        Raises:
            RefusalError: with the reason.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(_header(job, fields))
        self._process.stdin.flush()
        reason = self._line()
        if reason:
            raise RefusalError(reason)
        rows = [_beside(array, job.inner) for array in (job.x, job.other) if array is not None]
        for array in (*rows, job.scale, job.bias):
            if array is not None:
                self._process.stdin.write(np.ascontiguousarray(array).tobytes())
        if job.quantize == "static":
            self._process.stdin.write(np.float32(job.quant_scale).tobytes())
        for table in job.tables or ():
            self._process.stdin.write(np.ascontiguousarray(table).tobytes())
        self._process.stdin.flush()
        status, intact, *how = map(int, self._line().split())
        assert status == 0, f"cudaError_t {status}"
        y = self._rows(job.y_type, job)
        skip = job.spec.kind == "SkipRMSNorm" and job.has_sum
        total = self._rows(job.x.dtype, job) if skip else None
        row_scale = self._array(F32, job.x.shape[:1]) if job.quantize == "per_row" else None
        assert intact, "a guard zone was written to"
        return Outcome(y, total, row_scale, *how)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the shim ended with {self._process.wait()}, see its output above"
        return line.decode().rstrip("\n")

    def _rows(self, dtype: np.dtype[Any], job: Job) -> Array:
        rows, n = job.x.shape
        return _beside(self._array(dtype, (rows * n // job.inner, job.inner)), n).reshape(rows, n)

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        assert self._process.stdout is not None
        size = int(np.prod(shape)) * dtype.itemsize
        return np.frombuffer(self._process.stdout.read(size), dtype).reshape(shape)


def _beside(rows: Array, inner: int) -> Array:
    """[rows, n] as [rows / inner, n, inner], flattened to [rows / inner * n, inner]."""
    count, n = rows.shape
    return rows.reshape(count // inner, inner, n).swapaxes(1, 2).reshape(-1, inner)


def _header(job: Job, overruled: dict[str, object]) -> bytes:
    """The line that ``read_job`` of driver.cpp reads, field by field."""
    spec = job.spec
    scale, bias = job.scale, job.bias
    table = job.x.reshape(-1) if job.tables is None else job.tables[0]
    fields: dict[str, object] = {
        "kind": _KINDS.index(spec.kind),
        "epsilon": spec.epsilon,
        "scale_offset": spec.scale_offset,
        "epsilon_outside": spec.epsilon_outside,
        "epsilon_clamp": spec.epsilon_clamp,
        "scale_before_cast": spec.scale_before_cast,
        "round_rstd": spec.round_rstd,
        "stash_half": spec.stash_type != FLOAT,
        "gate_first": spec.gate_first,
        "association": spec.association,
        "activation": ("silu", "sigmoid").index(spec.activation),
        "partial_size": spec.partial_size,
        "group_size": spec.group_size,
        "rotary_dim": spec.rotary_dim,
        "rotary_interleaved": spec.rotary_interleaved,
        "has_sum": job.has_sum,
        "n": job.x.shape[-1],
        "inner": job.inner,
        "x": _TYPES.index(job.x.dtype),
        "scale": _TYPES.index(job.x.dtype if scale is None else scale.dtype),
        "bias": _TYPES.index(job.x.dtype if bias is None else bias.dtype),
        "y": _TYPES.index(job.y_type),
        "has_scale": scale is not None,
        "has_bias": bias is not None,
        "quantize": _QUANTIZE.index(job.quantize),
        "table": _TYPES.index(table.dtype),
        "table_width": table.shape[-1],
        "rows": len(job.x),
        "tactic": 2 if job.low_latency else 1,
        "sm": job.sm,
        "compiled_for": job.compiled_for or job.sm,
        "most_cluster": job.most_cluster,
        "backwards": job.backwards,
        "misaligned": job.misaligned,
    }
    assert fields.keys() >= overruled.keys()
    fields.update(overruled)
    axes = ((len(sizes), *sizes) for sizes in (job.leading, table.shape[:-1]))
    values = itertools.chain(fields.values(), *axes)
    words = (int(f) if isinstance(f, bool) else f for f in values)
    return (" ".join(map(str, words)) + "\n").encode()


def allowed(job: Job) -> tuple[Array, Array]:
    """Least and greatest y, in float64, rounded to the type of x and not yet quantised."""
    if job.tables is not None:
        norm = dataclasses.replace(job.spec, kind="RMSNorm", rotary_dim=0, rotary_interleaved=False)
        return turned(job, *allowed(dataclasses.replace(job, spec=norm, tables=None)))
    n = job.x.shape[-1]
    # One rounding for each of the elements that a thread adds in sequence, at 2**-24 each, and for
    # the tree; more than any order here needs, and far below an ulp of a half type.
    slack = 2.0**-24 * (24 + n / 512)
    product = 2.0**-22 if multiplies(job) else 0.0
    gate = 2.0**-17 if usual(job) and job.x.dtype != F32 else 2.0**-20
    if job.spec.gate_first:  # the squares of all elements err otherwise than this element does
        slack += 4 * gate
    gates = (-gate, gate) if job.spec.kind == "GatedRMSNorm" else (0.0,)
    bounds = []
    for side, error in itertools.product((-1, 1), gates):
        y = exact(job, 1 + side * slack, 1 + side * product, error)
        bounds.append((y[0] if isinstance(y, tuple) else y).astype(np.float64))
    return np.min(bounds, axis=0), np.max(bounds, axis=0)


def turned(job: Job, low: Array, high: Array) -> tuple[Array, Array]:
    """The rotary embedding of intervals: every rounding is monotone."""
    assert job.tables is not None
    spec, n = job.spec, job.x.shape[-1]
    size = spec.rotary_dim or n
    first, second = (2 * np.arange(size // 2) + i for i in (0, 1))
    if not spec.rotary_interleaved:
        first, second = np.split(np.arange(size), 2)
    partner = np.empty(size, int)
    partner[first], partner[second] = second, first
    minus = np.isin(np.arange(size), first)
    tables = []
    for table in job.tables:
        entries = table.astype(np.float64)
        if table.shape[-1] != size:
            entries = np.repeat(entries, 2, -1) if spec.rotary_interleaved else np.tile(entries, 2)
        tables.append(np.broadcast_to(entries, (*job.leading, size)).reshape(-1, size))
    cos, sin = tables[0], np.where(minus, -tables[1], tables[1])
    own = element_type(job.tables[0].dtype)

    def products(factor: Array, of: Array) -> tuple[Array, Array]:
        ends = [round_to(bound[:, of] * factor, own) for bound in (low, high)]
        return np.minimum(*ends), np.maximum(*ends)

    with np.errstate(invalid="ignore", over="ignore"):
        terms = zip(products(cos, np.arange(size)), products(sin, partner), strict=True)
        sums = [round_to(a + b, own).astype(job.x.dtype).astype(np.float64) for a, b in terms]
    both = zip(sums, (low, high), strict=True)
    return tuple(np.concatenate([end, y[:, size:]], axis=-1) for end, y in both)  # type: ignore[return-value]


def usual(job: Job) -> bool:
    """Whether a kernel of row_hot.cuh may take it."""
    spec = job.spec
    plain = dataclasses.replace(
        NormSpec(kind=spec.kind, epsilon=spec.epsilon),
        scale_offset=spec.scale_offset,
        scale_before_cast=spec.scale_before_cast,
    )
    spec = dataclasses.replace(spec, rotary_dim=0, rotary_interleaved=False)
    if job.x.dtype == F32:  # nothing is rounded on the way
        spec = dataclasses.replace(spec, round_rstd=False)
    own_scale = job.scale is not None and job.scale.dtype == job.x.dtype
    whole = (job.x.shape[-1] | job.misaligned) * job.x.dtype.itemsize % 16 == 0
    return spec == plain and own_scale and job.bias is None and whole and job.inner == 1


def multiplies(job: Job) -> bool:
    """Whether it may be multiplied by 1 / rms, and not divided."""
    return usual(job) or job.x.dtype != F32


def exact(
    job: Job, factor: float = 1.0, rms_factor: float = 1.0, gate_error: float = 0.0
) -> reference.Result:
    """``reference_exact`` with the mean multiplied by ``factor``, rms by ``rms_factor``, and the
    sigmoids off by ``gate_error`` of themselves."""
    mean = reference._mean
    other = {"SkipRMSNorm": "residual", "GatedRMSNorm": "gate"}.get(job.spec.kind)
    inputs = {other: job.other} if other else {}

    def changed(values: Array) -> Array:
        return np.asarray(mean(values) * (factor * rms_factor**2))

    inside = not (job.spec.epsilon_outside or job.spec.epsilon_clamp)
    epsilon = job.spec.epsilon * rms_factor ** (2 if inside else 1)
    spec = dataclasses.replace(job.spec, epsilon=epsilon)

    def activated(spec: NormSpec, gate: Array, stash: Any = None) -> Array:
        stash = stash or np.asarray
        sigmoid = 1 / (1 + np.exp(-gate))
        # Denormal ones have few bits.
        sigmoid = stash(np.maximum(sigmoid * (1 + gate_error) + np.sign(gate_error) * 2.0**-148, 0))
        return np.asarray(sigmoid if spec.activation == "sigmoid" else stash(gate * sigmoid))

    with (
        mock.patch.object(reference, "_mean", changed),
        mock.patch.object(reference, "activated", activated),
    ):
        return reference.reference_exact(spec, job.x, job.scale, job.bias, **inputs)


def ordinal(values: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.int64]:
    """Position of each value among those of ``dtype``: neighbours differ by 1, both zeros are 0."""
    stored = values.astype(dtype)
    signed = stored.view(f"i{dtype.itemsize}").astype(np.int64)
    return signed if dtype == INT8 else np.where(signed < 0, -(signed & _magnitude(dtype)), signed)


def _magnitude(dtype: np.dtype[Any]) -> int:
    return int((1 << (8 * dtype.itemsize - 1)) - 1)


def assert_between(found: Array, low: Array, high: Array, ulps: int = 0) -> None:
    """``found`` is at most ``ulps`` of its own type outside the bounds, and NaN where they are."""
    dtype = found.dtype
    values = found.astype(np.float64)
    missing = np.isnan(low) | np.isnan(high)
    np.testing.assert_array_equal(np.isnan(values), missing)
    below = ordinal(np.where(missing, 0, low), dtype) - ordinal(np.where(missing, 0, values), dtype)
    above = ordinal(np.where(missing, 0, values), dtype) - ordinal(
        np.where(missing, 0, high), dtype
    )
    worst = np.maximum(below, above)
    where = np.unravel_index(int(worst.argmax()), worst.shape)
    assert worst.max() <= ulps, (
        f"{worst.max()} ulp outside at {where}: {values[where]!r} of {dtype}, "
        f"allowed [{low[where]!r}, {high[where]!r}]; {np.count_nonzero(worst > ulps)} such"
    )


def codes_of(y: Array, scale: Array, codes: np.dtype[Any]) -> Array:
    """``saturate(round_to_even(y / scale))``, the quotient in f32."""
    quotient = (y.astype(np.float32) / scale.astype(np.float32)).astype(np.float32)
    if codes == INT8:
        return np.clip(np.rint(quotient), -128, 127).astype(INT8)
    return np.clip(quotient, -448, 448).astype(FP8)


def check(job: Job, outcome: Outcome) -> None:
    """Every output against the reference: y within its interval, codes within one of theirs."""
    low, high = allowed(job)
    if job.spec.kind == "SkipRMSNorm" and job.has_sum:
        expected = exact(job)[1]
        assert outcome.sum is not None
        bits = f"u{expected.dtype.itemsize}"
        finite = ~np.isnan(expected.astype(np.float32))
        np.testing.assert_array_equal(outcome.sum.view(bits)[finite], expected.view(bits)[finite])
        assert np.isnan(outcome.sum.astype(np.float32)[~finite]).all()
    if job.quantize == "none":
        assert_between(outcome.y, low, high)
        return
    scale = np.full((len(job.x), 1), job.quant_scale, np.float32)
    if job.quantize == "per_row":
        assert outcome.row_scale is not None
        # The greatest magnitude of an interval is at one of its ends, the least at one or at 0.
        ends = np.maximum(np.abs(low), np.abs(high)).max(axis=-1)
        least = np.where(low * high < 0, 0, np.minimum(np.abs(low), np.abs(high))).max(axis=-1)
        largest = np.float32(LARGEST_CODE[job.codes])
        bounds = [(v.astype(np.float32) / largest).astype(np.float32) for v in (least, ends)]
        bounds = [np.where(v == 0, np.float32(1), v) for v in bounds]
        assert_between(outcome.row_scale, bounds[0], bounds[1])
        scale = outcome.row_scale[:, None]
    edges = [codes_of(end, scale, job.codes) for end in (low, high)]
    assert_between(outcome.y, *(e.astype(np.float64) for e in edges), 1)


def arrays(
    seed: int, rows: int, n: int, dtype: np.dtype[Any], spread: float = 1.0
) -> tuple[Array, Array, Array, Array]:
    """x, other, scale and bias; x with a row-dependent magnitude."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, n)) * spread * 2.0 ** rng.integers(-3, 4, (rows, 1))
    other = rng.standard_normal((rows, n)) * 2
    scale = 1 + 0.3 * rng.standard_normal(n)
    bias = 0.2 * rng.standard_normal(n)
    return x.astype(dtype), other.astype(dtype), scale.astype(dtype), bias.astype(dtype)
