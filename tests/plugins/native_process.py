"""Every attribute and type of the operator through a library of kernels, in a process of its own.

    python -m tests.plugins.native_process LIBRARY

prints a line for each norm that is further from the reference than it may be, then how many were
compared by which ONNX Runtime. That, and the instruction set, is a matter of the environment.
"""

from __future__ import annotations

import itertools
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx.compose import add_prefix

from rmsnorm_export.op.dtypes import Array, element_type
from rmsnorm_export.op.native import ROW_KINDS
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.runtime.metrics import ulp_distance
from rmsnorm_export.runtime.session import run_session
from rmsnorm_export.tensorrt.plugin.libraries import session_options
from tests.tools import variants
from toolbox.node_model import node_model

TYPES: dict[int, type] = {1: np.float32, 10: np.float16, 16: ml_dtypes.bfloat16, 11: np.float64}
if not hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type"):  # before 1.20
    del TYPES[16]

VARIANTS: list[dict[str, Any]] = variants.VARIANTS["native"]
GATES: list[dict[str, Any]] = variants.VARIANTS["gates"]
EPSILON = 2.0**-17
"""One that float32 holds: attributes are of that type."""
N = 111
"""Odd, and of 37: no vector and no group ends where another does."""


def specs() -> Iterator[tuple[int, NormSpec]]:
    for dtype, stash, values in itertools.product(TYPES, TYPES, VARIANTS):
        for kind in ROW_KINDS:
            for gate in GATES if kind == "GatedRMSNorm" else ({},):
                attributes = {"stash_type": stash, "epsilon": EPSILON, **values, **gate}
                yield dtype, NormSpec(kind=kind, **attributes)
    for dtype, stash, values in itertools.product(TYPES, TYPES, VARIANTS):
        # An ulp of the norm is many of what turning it leaves: its f32 sums are exact alone.
        if values.keys().isdisjoint(("partial_size", "group_size")) and (dtype, stash) != (1, 11):
            for interleaved in (False, True):
                turned = {"rotary_dim": 40, "rotary_interleaved": interleaved}
                attributes = {"stash_type": stash, "epsilon": EPSILON, **values, **turned}
                yield dtype, NormSpec(kind="RotaryRMSNorm", **attributes)


class Case(NamedTuple):
    """One norm: its node, inputs, and what they come to."""

    spec: NormSpec
    model: onnx.ModelProto
    feeds: dict[str, Array]
    expected: tuple[Array, ...]


def defined(
    spec: NormSpec,
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    second: Array | None = None,
    tables: tuple[Array, Array] | None = None,
) -> Case:
    """Of these operands, by the definition; ``second`` and ``tables`` where the kind has them."""
    named: dict[str, Any] = {
        "SkipRMSNorm": {"residual": second},
        "GatedRMSNorm": {"gate": second},
        "RotaryRMSNorm": dict(zip(("cos", "sin"), tables or (), strict=False)),
    }.get(spec.kind, {})
    result = reference_exact(spec, x, scale, bias, **named)
    outputs = result if isinstance(result, tuple) else (result,)
    return Case(spec, *node_model(spec, x, scale, bias, second, tables), outputs)


def case(dtype: int, spec: NormSpec, seed: int) -> Case:
    """Rows with NaN, infinities and zeros too; scale and bias of every type in turn."""
    random = np.random.default_rng(seed)
    stored = TYPES[dtype]
    x, second = (random.normal(0, 2, (6, N)).astype(stored) for _ in range(2))
    x[1], x[2, 3], x[3, 4], x[4, :5] = 0, np.nan, np.inf, -0.0
    x[5] = (random.normal(0, 1, N) * 1e-20).astype(stored)
    of_scale, of_bias = (list(TYPES.values())[seed // step % len(TYPES)] for step in (1, 4))
    scale = random.normal(0, 1, N).astype(of_scale)
    bias = random.normal(0, 1, N).astype(of_bias) if seed % 3 else None
    # Cos and sin of any numbers: of each row or of all, whole or half, of X's type or float32.
    shape = (*((6,), (1,), ())[seed % 3], (40, 20)[seed // 3 % 2])
    of_table = TYPES[1] if dtype in (10, 16) and seed // 6 % 2 else stored
    cos, sin = (random.normal(0, 1, shape).astype(of_table) for _ in range(2))
    return defined(spec, x, scale, bias, second, (cos, sin))


_SHAPES = ((1,), (3, 1), (7, 3), (5, 123), (2, 3, 4, 199), (1, 4104))
_TABLES = ((2, 5, 3, 16), (2, 1, 3, 16), (2, 1, 3, 8), (1, 5, 1, 8), (5, 1, 16), (16,))


def shaped() -> Iterator[Case]:
    """Rows of every length, one whose squares fit f32 and whose sum does not, any tables."""
    random = np.random.default_rng(0)
    for shape, stored in itertools.product(_SHAPES, TYPES.values()):
        x, scale = random.normal(0, 1, shape), random.normal(0, 1, shape[-1])
        yield defined(NormSpec(epsilon=EPSILON), x.astype(stored), scale.astype(np.float32))
    yield defined(NormSpec(epsilon=0.0), np.full((1, 64), 1.5e19, np.float32))
    yield from turned()


def turned() -> Iterator[Case]:
    """Tables of any broadcast, of the type of X and of float32."""
    random = np.random.default_rng(0)
    types = [of for of in ((1, 1), (10, 1), (16, 16)) if {*of} <= TYPES.keys()]
    for shape, (of_x, of_table), interleaved in itertools.product(_TABLES, types, (False, True)):
        attributes = {"epsilon": EPSILON, "rotary_dim": 16, "rotary_interleaved": interleaved}
        x, scale = random.normal(0, 1, (2, 5, 3, 20)), random.normal(0, 1, 20).astype(np.float32)
        cos, sin = (random.normal(0, 1, shape).astype(TYPES[of_table]) for _ in range(2))
        spec = NormSpec(kind="RotaryRMSNorm", **attributes)
        yield defined(spec, x.astype(TYPES[of_x]), scale, tables=(cos, sin))


def run(
    library: pathlib.Path | str, model: onnx.ModelProto, feeds: dict[str, Array], threads: int = 1
) -> dict[str, Array]:
    """The outputs of a node by the kernels of a library."""
    options = session_options(library, threads=threads)
    return run_session(onnxruntime.InferenceSession(model.SerializeToString(), options), feeds)


def run_all(
    library: pathlib.Path | str, cases: Sequence[Case], threads: int = 1
) -> Iterator[tuple[Array, ...]]:
    """The outputs of each, from one session: to open one takes as long as a thousand norms."""
    whole = onnx.ModelProto()
    whole.CopyFrom(cases[0].model)
    whole.graph.Clear()
    whole.graph.name = "norms"
    feeds = {}
    for i, one in enumerate(cases):
        whole.graph.MergeFrom(add_prefix(one.model, f"{i}.").graph)
        feeds.update({f"{i}.{name}": array for name, array in one.feeds.items()})
    outputs = iter(run(library, whole, feeds, threads).values())
    for one in cases:
        yield tuple(itertools.islice(outputs, len(one.expected)))


def distance(of: Case, outputs: tuple[Array, ...]) -> float:
    """The largest distance from the reference in ulp."""
    largest = 0.0
    for a, b in zip(outputs, of.expected, strict=True):
        apart = ulp_distance(a, b)
        unit = None
        if of.spec.kind == "GatedRMSNorm" and "bias" in of.feeds and a.itemsize > 2:
            # Where the bias nearly cancels the rest, an ulp of the bias is many of the sum.
            unit = np.spacing(np.abs(b) + np.abs(of.feeds["bias"]).astype(b.dtype))
        if of.spec.kind == "RotaryRMSNorm" and a.itemsize == 8:
            unit = np.spacing(np.abs(np.nan_to_num(b)).max(axis=-1, keepdims=True))
        if unit is not None:
            apart = np.minimum(apart, np.where(np.isfinite(b), np.abs(a - b) / unit, apart))
        largest = max(largest, float(apart.max()))
    return largest


def bound(of: Case) -> float:
    """Half types and ungated f32 bit for bit; the sigmoid is the runtime's own. That half types add
    a few squares in f32 changes none of these rows."""
    dtype = element_type(of.feeds["x"].dtype)
    if dtype in (10, 16):
        return 0
    if dtype == 1 and of.spec.kind != "GatedRMSNorm":
        return 0 if of.spec.stash_type != 11 else 1
    return 3


def activations(library: str, z: Array, activation: Any) -> Array:
    """Of a row of gates: one of ones is its own norm without epsilon."""
    spec = NormSpec(kind="GatedRMSNorm", activation=activation, epsilon=0.0)
    return run(library, *node_model(spec, np.ones_like(z)[None], None, None, z[None]))["y"][0]


def error_of_the_sigmoid(library: str) -> float:
    """In ulp."""
    ends = ((-110, 110, 200_001), (-1, 1, 20_001), (-88, -86.5, 20_001))  # e^z becomes subnormal
    z = np.concatenate([*(np.linspace(*of) for of in ends), [-np.inf, np.inf, -0.0, 0.0]])
    y = activations(library, z.astype(np.float32), "sigmoid").astype(np.float64)
    exact = 1 / (1 + np.exp(-z.astype(np.float32).astype(np.float64)))
    unit = np.maximum(np.spacing(np.abs(exact).astype(np.float32)), 2.0**-149)
    return float(np.max(np.abs(y - exact) / unit))


def far_activations(library: str, stored: type, activation: str) -> int:
    """How many gates of a half type, of all within 700, have an activation that no sigmoid within
    2^-21 of itself rounds to."""
    z = np.arange(2**16, dtype=np.uint16).view(stored)
    with np.errstate(invalid="ignore"):  # of NaN
        z = z[np.abs(z.astype(np.float64)) < 700]  # e^-z is a float64
    y = activations(library, z, activation)
    exact = 1 / (1 + np.exp(-z.astype(np.float64)))
    unit = np.maximum(2.0**-21 * exact, 2.0**-149)
    ends = np.stack([exact - unit, exact + unit])
    if activation == "silu":
        ends = np.sort(ends * z.astype(np.float64), axis=0)
        ends += np.array([[-0.5], [0.5]]) * np.spacing(np.abs(ends).astype(np.float32))
    low, high = ends.astype(stored)
    return int(np.sum(~((low <= y) & (y <= high))))


def sweep(library: str) -> Iterator[str]:
    error = error_of_the_sigmoid(library)
    if not error < 1.1:
        yield f"{error} ulp: the sigmoid"
    halves = [stored for stored in TYPES.values() if np.dtype(stored).itemsize == 2]
    for stored, activation in itertools.product(halves, ("sigmoid", "silu")):
        if far := far_activations(library, stored, activation):
            yield f"{far} gates: {activation} of {np.dtype(stored)}"
    cases = [case(dtype, spec, seed) for seed, (dtype, spec) in enumerate(specs())]
    exact = [*shaped()]
    for of, threads in ((cases, 1), (exact, 1), (exact, 2), (exact, 5)):
        for one, outputs in zip(of, run_all(library, of, threads), strict=True):
            ulp = distance(one, outputs)
            if not ulp <= (0 if of is exact else bound(one)):
                yield f"{ulp} ulp: {one.feeds['x'].dtype} {one.feeds['x'].shape}, {one.spec}"
    yield f"{len(cases) + len(exact)} by {onnxruntime.__version__}"


if __name__ == "__main__":
    for line in sweep(sys.argv[1]):
        print(line, flush=True)
