"""What is written loads and computes the same in a session as ONNX Runtime opens one, which removes
and fuses nodes: a float64 constant that is 0 or 1 in float32, a norm and any Mul behind it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from tests.recognize import text_models as text
from tests.sample import crossed, sampled

TYPES = {"float": np.float32, "float16": np.float16, "double": np.float64}
EVERY: tuple[Target, ...] = (*text.TARGETS, "plain")
_MEAN = """q{i} = {square}
 m{i} = ReduceMean<axes = [-1]>(q{i})
 e{i} = Add(m{i}, eps)
 d{i} = Sqrt(e{i})
 """
NORMS = {
    "Pow": f"{_MEAN.replace('{square}', 'Pow(x{i}, two)')}v{{i}} = Div(x{{i}}, d{{i}})\n",
    "Mul": f"{_MEAN.replace('{square}', 'Mul(x{i}, x{i})')}v{{i}} = Div(x{{i}}, d{{i}})\n",
    "Reciprocal": f"{_MEAN.replace('{square}', 'Pow(x{i}, two)')}r{{i}} = Reciprocal(d{{i}})\n"
    " v{i} = Mul(x{i}, r{i})\n",
}
"""From ``x{i}`` to ``v{i}``."""

ROWS = [
    *itertools.product([7], [(), (1,), (7,), (1, 7), (3, 1)]),
    *itertools.product([1], [(), (1,), (5,), (1, 5)]),
]
"""Elements of a row, and the shape of what it is multiplied with."""


KINDS = "stored", "given", "computed"


def dims_of(shape: tuple[int, ...], *, symbols: bool = False) -> str:
    """A shape in text form; with ``symbols`` the last size is a number alone."""
    last = len(shape) - 1
    return ",".join(f"D{i}" if symbols and i < last else str(n) for i, n in enumerate(shape))


def model(
    dtype: str, body: str, inputs: dict[str, str], result: str, **constants: object
) -> onnx.ModelProto:
    """A model of ``body``; ``inputs``: their shapes in text form."""
    types = {name: f"{dtype}[{dims}]" if dims else dtype for name, dims in inputs.items()}
    source = text.model(
        body, inputs=", ".join(f"{own} {name}" for name, own in types.items()),
        outputs=f"{dtype}[{result}] y", constants="float unused = {0}",
    )  # fmt: skip
    arrays = {"two": 2, "eps": 2.0**-7, **constants}
    stored = (onnx.numpy_helper.from_array(np.array(a, TYPES[dtype]), n) for n, a in arrays.items())
    source.graph.initializer.extend(stored)
    return source


def check(
    source: onnx.ModelProto, target: Target, feeds: dict[str, np.ndarray]
) -> tuple[rx.Report, onnx.ModelProto]:
    """Hold what is written against the nodes of the source, run one by one."""
    result = rx.optimize(source, target=target, numerics="upcast")
    written = ir.to_proto(result.model)
    if result.report.fused:
        (expected,) = text.run(source, feeds)
        for optimized in (False, True):
            (found,) = text.run(written, feeds, optimized=optimized)
            assert found.shape == expected.shape
            tolerance = {"float16": 4e-3, "float": 1e-6, "double": 1e-12}[source_type(source)]
            wide = (array.astype(np.float64) for array in (found, expected))
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=0)
    return result.report, written


def source_type(source: onnx.ModelProto) -> str:
    own = source.graph.input[0].type.tensor_type.elem_type
    return next(n for n, d in TYPES.items() if onnx.helper.tensor_dtype_to_np_dtype(own) == d)


STABILISED = {
    "inside": " e = Add(m, eps)\n d = Sqrt(e)\n y = Div(x, d)",
    "by a Sum": " e = Sum(eps, m)\n d = Sqrt(e)\n y = Div(x, d)",
    "outside": " r = Sqrt(m)\n d = Add(r, eps)\n y = Div(x, d)",
    "a floor": " e = Max(m, eps)\n d = Sqrt(e)\n y = Div(x, d)",
}


@crossed(
    6,
    target=EVERY,
    where=[*STABILISED],
    epsilon=[5e-324, 1e-310, 1e-160, 1e-50, 2.0**-150, 2.0**-149, 1e-40, 1e-38],
)
def test_a_float64_epsilon_that_is_0_in_float32_is_there(
    target: Target, where: str, epsilon: float
) -> None:
    body = f"q = Mul(x, x)\n m = ReduceMean<axes = [-1]>(q)\n{STABILISED[where]}"
    source = model("double", body, {"x": "B,S,7"}, "B,S,7", eps=epsilon)
    row = np.random.default_rng(0).standard_normal(7)
    near = epsilon if where == "outside" else math.sqrt(epsilon)
    rows = [0 * row, row, max(near, 1e-150) * row, 1e-150 * row]
    report, _ = check(source, target, {"x": np.array([rows])})
    if target in ("portable", "plain"):
        assert len(report.fused) == 1
    else:  # or a sentence
        assert len(report.fused) + len(report.refused) == 1


@pytest.mark.parametrize("target", EVERY)
def test_rows_of_zeros_have_length_zero(target: Target) -> None:
    body = "v = LpNormalization<axis = -1, p = 2>(x)\n y = Mul(v, root)"
    source = model("double", body, {"x": "B,S,7"}, "B,S,7", root=math.sqrt(7))
    report, _ = check(source, target, {"x": np.outer([0.0, 1.0, 1e-150], np.ones(7))[None]})
    assert len(report.fused) == (target in ("portable", "plain"))


@pytest.mark.parametrize("target", EVERY)
def test_a_float64_factor_that_is_1_in_float32_is_there(target: Target) -> None:
    """The root of n in float32, as exporters write it, and a scale that is computed."""
    body = "l = ReduceL2<axes = [-1]>(x)\n u = Mul(x, root)\n v = Div(u, l)\n g = Tanh(w)\n"
    root = float(np.float32(math.sqrt(8)))
    for shape in ("8", "B,S,8", "B,S,1"):
        inputs = {"x": "B,S,8", "w": shape}
        source = model("double", f"{body} y = Mul(v, g)", inputs, "B,S,8", root=root)
        rng = np.random.default_rng(0)
        x = rng.standard_normal((2, 3, 8))
        w = rng.standard_normal({"8": (8,), "B,S,8": x.shape}.get(shape, (2, 3, 1)))
        report, _ = check(source, target, {"x": x, "w": w})
        assert len(report.fused) == 1


def multiplied(
    dtype: str, rank: int, norm: str, kind: str, *, symbols: bool
) -> Iterator[tuple[onnx.ModelProto, dict[str, np.ndarray]]]:
    """Norms of rank ``rank``, times a tensor of each shape that is ``kind``; with inputs."""
    rng = np.random.default_rng(0)
    for n, shape in ROWS:
        x = rng.standard_normal((*[3] * (rank - 1), n)).astype(TYPES[dtype])
        feeds, inputs = {"x": x}, {"x": dims_of(x.shape, symbols=symbols)}
        body = NORMS[norm].format(i="") + "y = Mul(v, w)"
        w = rng.uniform(0.5, 1.5, shape).astype(TYPES[dtype])
        if kind != "stored":
            feeds["w"], inputs["w"] = w, dims_of(shape)
        if kind == "computed":
            body = f"g = Abs(w)\n {body.replace('w)', 'g)')}"
        constants = {"w": w} if kind == "stored" else {}
        result = dims_of(np.broadcast_shapes(x.shape, shape))
        yield model(dtype, body, inputs, result, **constants), feeds


CASES = [*itertools.product(KINDS, NORMS, EVERY, TYPES, (1, 2, 3, 4))]


@sampled("kind, norm, target, dtype, rank", CASES, CASES[::43])
def test_a_norm_times_any_tensor(
    kind: str, norm: str, target: Target, dtype: str, rank: int
) -> None:
    """A row of rank 1 has that of a scale, and a row of one is repeated by what it meets."""
    fused = 0
    for source, feeds in multiplied(dtype, rank, norm, kind, symbols=rank % 2 == 0):
        report, _ = check(source, target, feeds)
        fused += len(report.fused)
    assert fused >= 5


@pytest.mark.parametrize("target", ["portable", "plain"])
def test_norms_without_a_scale_beside_one_that_has_it(target: Target) -> None:
    """They could share a function, but for a scale of one number: ONNX Runtime removes its Mul
    where that is 1, and takes the next one."""
    body = "".join(NORMS["Pow"].format(i=i) for i in "abcd")
    body += " ya = Mul(va, g)\n yb = Mul(vb, three)\n yc = Mul(vc, five)\n"
    body += " wd = Mul(vd, own)\n yd = Mul(wd, five)\n"
    body += "".join(f" s{i} = ReduceSum<keepdims = 0>(y{i})\n" for i in "abcd")
    body += " t = Sum(sa, sb, sc, sd)\n y = Reshape(t, one)"
    sizes = {"xa": (2, 7), "xb": (4,), "xc": (3, 1), "xd": (3, 1)}
    source = model(
        "float", body, {"xa": "B,7", "xb": "N", "xc": "C,1", "xd": "C,1"}, "1",
        g=np.arange(1, 8), three=3.0, five=np.arange(1, 6), own=[2.0],
    )  # fmt: skip
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    feeds = {
        n: np.arange(1, 1 + math.prod(s)).reshape(s).astype(np.float32) for n, s in sizes.items()
    }
    report, written = check(source, target, feeds)
    assert len(report.fused) == 4
    assert len(written.functions) == 2 * (target == "portable")
