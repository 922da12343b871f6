"""ONNX Runtime's nodes on CUDA: launched on a CPU, registered where there is no CUDA, built."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import helper

import rmsnorm_export as rx
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.native import ROW_KINDS
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import Kind, NormSpec, Quantize, scaled_by
from rmsnorm_export.runtime.session import place_of_kernels, run_session
from rmsnorm_export.runtime.support import CUDA
from rmsnorm_export.tensorrt.plugin.result import Built
from tests.op.test_codes import at_every_place, reference_codes, same
from tests.plugins import kernel_build
from tests.plugins.native_fuzz import fuzz_in_a_process
from tests.plugins.native_process import GATES, VARIANTS, Case, run_all
from tests.plugins.test_native_codes import HOWS
from tests.plugins.test_native_runtimes import VERSIONS, run_in
from tests.proof.sites import LLAMA, source
from tests.tools.corpus import cache
from tests.tools.node_model import node_model
from tests.tools.shim import assert_between

TYPES: dict[int, Any] = {1: np.float32, 10: np.float16, 16: ml_dtypes.bfloat16}

pytestmark = pytest.mark.skipif(
    kernel_build.missing_compiler() is not None, reason=str(kernel_build.missing_compiler())
)


@pytest.fixture(scope="module")
def nodes() -> pathlib.Path:
    """A library whose CUDA nodes run on the CPU; they are registered for CUDA as well."""
    return kernel_build.node_library()


@pytest.fixture(scope="module")
def options(nodes: pathlib.Path) -> Any:
    return rx.session_options(nodes, threads=1)


def _run(options: Any, spec: NormSpec, *tensors: Any, **attributes: Any) -> dict[str, Array]:
    """x, scale, bias, second, tables, way of codes, their step."""
    model, feeds = node_model(spec, *tensors)
    (node,) = model.graph.node
    for name, value in attributes.items():
        (old,) = (a for a in node.attribute if a.name == name)
        old.CopyFrom(helper.make_attribute(name, value))
    return run_session(onnxruntime.InferenceSession(model.SerializeToString(), options), feeds)


def _close(got: dict[str, Array], expected: Any, terms: Any = 0.0, ulp: int = 4) -> None:
    """Within an ulp of a half type, `ulp` of float32: of the result, or of a term that cancels.

    The kernels' own tests hold them tighter: here an attribute that is lost must show.
    """
    pair = expected if isinstance(expected, tuple) else (expected,)
    for a, b in zip(got.values(), pair, strict=True):
        exact = b.astype(np.float64)
        unit = np.spacing((np.abs(exact) + terms).astype(b.dtype)).astype(np.float64)
        assert (
            np.abs(a.astype(np.float64) - exact) <= (ulp if a.itemsize == 4 else 1) * unit
        ).all()


def _specs(kind: Kind, dtype: int) -> Iterator[NormSpec]:
    for i, (stash, values) in enumerate(itertools.product(sorted({1, dtype}), VARIANTS)):
        if dtype != 10 and i % 4 != ROW_KINDS.index(kind):
            continue  # the path of an attribute is the same in every type
        gate = GATES[i % 4] if kind == "GatedRMSNorm" else {}
        yield NormSpec(kind=kind, stash_type=stash, epsilon=2.0**-7, **values, **gate)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_every_attribute_reaches_the_kernel(options: Any, dtype: int, kind: Kind) -> None:
    random = np.random.default_rng(dtype)
    ulp = 16 if kind == "GatedRMSNorm" else 4  # the kernels' sigmoid is within 2^-20 of itself
    for spec in _specs(kind, dtype):
        x, second = (random.normal(0, 2, (3, 111)).astype(TYPES[dtype]) for _ in range(2))
        scale, bias = (random.normal(1, 1, 111).astype(t) for t in (np.float32, TYPES[dtype]))
        given = None if kind == "RMSNorm" else second
        more = {"SkipRMSNorm": {"residual": given}, "GatedRMSNorm": {"gate": given}}.get(kind, {})
        got = _run(options, spec, x, scale, bias, given)
        gated = 1 + np.abs(second.astype(np.float64)) if kind == "GatedRMSNorm" else 1
        _close(got, reference_exact(spec, x, scale, bias, **more), np.abs(bias) * gated, ulp)
        if spec.association == 0:
            bare = dataclasses.replace(spec, scale_offset=0.0)
            got = _run(options, bare, x, None, None, given)
            _close(got, reference_exact(bare, x, **more), ulp=ulp)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(2, 5, 3, 16), (2, 1, 3, 8), (5, 1, 16), (16,)])
def test_tables_of_any_broadcast(options: Any, shape: tuple[int, ...], interleaved: bool) -> None:
    random = np.random.default_rng(0)
    for dtype, of_table in (
        (np.float32, np.float32),
        (np.float16, np.float32),
        *[(TYPES[16],) * 2],
    ):
        x = random.normal(0, 1, (2, 5, 3, 20)).astype(dtype)
        cos, sin = (random.normal(0, 1, shape).astype(of_table) for _ in range(2))
        scale = random.normal(0, 1, 20).astype(np.float32)
        spec = NormSpec(
            kind="RotaryRMSNorm", epsilon=2.0**-7, rotary_dim=16, rotary_interleaved=interleaved
        )
        got = _run(options, spec, x, scale, None, None, (cos, sin))
        expected = reference_exact(spec, x, scale, cos=cos, sin=sin)
        _close(got, expected, 8.0)  # each of two products


def test_rows_that_lie_apart_and_of_several_axes(options: Any) -> None:
    random = np.random.default_rng(1)
    x = random.normal(0, 1, (2, 6, 5, 7)).astype(np.float16)
    for axis, last in ((-3, -3), (-2, -1), (-2, -2)):
        sizes = x.shape[axis : last + 1 or None]
        scale = random.normal(0, 1, (*sizes, *[1] * (-1 - last))).astype(np.float32)
        spec = NormSpec(epsilon=2.0**-7, axis=axis, last_axis=last)
        _close(_run(options, spec, x, scale, None, None), reference_exact(spec, x, scale))


def test_a_sum_that_nobody_asks_for(options: Any) -> None:
    random = np.random.default_rng(2)
    spec = NormSpec(kind="SkipRMSNorm", epsilon=2.0**-7)
    for width in (111, 128, 20_000):  # in registers, and slices of shared memory
        x, residual = (random.normal(0, 1, (3, width)).astype(np.float16) for _ in range(2))
        for how in (None, "int8_per_row"):
            model, feeds = node_model(spec, x, None, None, residual, None, how)  # type: ignore[arg-type]
            opened = [onnxruntime.InferenceSession(model.SerializeToString(), options)]
            del model.graph.output[1]
            model.graph.node[0].output[1] = ""
            opened.append(onnxruntime.InferenceSession(model.SerializeToString(), options))
            both, one = (run_session(session, feeds) for session in opened)
            assert all(one[name].tobytes() == both[name].tobytes() for name in one)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_empty_tensors(options: Any, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float16)
    got = _run(options, NormSpec(kind="SkipRMSNorm"), x, None, None, x)
    assert [array.shape for array in got.values()] == [shape, shape]


def test_codes_of_no_rows_and_of_rows_without_elements(options: Any) -> None:
    none = np.zeros((0, 8), np.float16)
    outputs = _run(options, NormSpec(), none, None, None, None, None, "int8_per_row")
    assert [array.shape for array in outputs.values()] == [(0, 8), (0, 1)]
    rows = np.zeros((3, 0), np.float16)
    with pytest.raises(Exception, match="node 'a norm': a row must have elements"):
        _run(options, NormSpec(), rows, None, None, None, None, "int8_per_row")


def _coded(
    options: Any, dtype: int, spec: NormSpec, x: Array, scale: Array | None, second: Array | None
) -> Iterator[tuple[Quantize, tuple[Array, ...], tuple[Array, ...]]]:
    """Each way of codes, the norm, and what the node with codes gives; all in one session."""
    cases = []
    for how in (None, *HOWS):
        step = np.array(0.02, np.float32) if how in ("int8", "fp8") else None
        model, feeds = node_model(spec, x, scale, None, second, None, how, step)
        cases.append(Case(dtype, spec, model, feeds, None, (x,) * len(model.graph.output)))
    norm, *coded = run_all(options, cases)
    for how, got in zip(HOWS, coded, strict=True):
        yield how, norm, got


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("kind", "n"), [*zip(ROW_KINDS, (416, 96, 96), strict=True)])
def test_codes_are_those_of_the_norm(options: Any, kind: Kind, n: int, dtype: int) -> None:
    """Of the CUDA node's own norm: the scales are the definition's, a code is at most one off."""
    random = np.random.default_rng(dtype)
    x, second = (random.normal(0, 2, (4, n)).astype(TYPES[dtype]) for _ in range(2))
    x[0], x[1, 3], x[2, n - 1], x[3, :5] = 0, np.nan, np.inf, -0.0
    scale = random.normal(1, 1, n).astype(TYPES[dtype])
    given = None if kind == "RMSNorm" else second
    spec = NormSpec(kind=kind, epsilon=2.0**-7)
    for how, norm, (codes, *more) in _coded(options, dtype, spec, x, scale, given):
        expected, *scales = reference_codes(norm[0], how, 0.02)
        if how == "int8":  # a NaN is 0, as of QuantizeLinear on CUDA
            expected[np.isnan(norm[0].astype(np.float32))] = 0
        for a, b in zip(more, (*norm[1:], *scales), strict=True):
            # The fast kernels of float32 multiply with a row's scale, within ulp.
            exact = b.astype(np.float64)
            assert_between(a, exact, exact, 4 if b.dtype == np.float32 == x.dtype else 0)
        exact = expected.astype(np.float64)
        assert_between(codes, exact, exact, 1)


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_no_number_is_in_the_scale_wherever_it_is(options: Any, dtype: int) -> None:
    x = at_every_place(32, TYPES[dtype])
    spec = NormSpec(epsilon=0.0, partial_size=1)
    for how, _, got in _coded(options, dtype, spec, x, None, None):
        if scaled_by(how) != "tensor":
            for a, b in zip(got, reference_codes(x, how, 0.0), strict=True):
                assert same(a, b)


def _ones(*shape: int, dtype: Any = np.float16) -> Array:
    return np.ones(shape, dtype)


_TABLE = _ones(2, 1, 2, 1, 4, dtype=np.float32)
_LACKS: tuple[tuple[str, NormSpec, tuple[Any, ...], dict[str, Any]], ...] = (
    ("stash_type must be f32 or the type of X", NormSpec(stash_type=11), (), {}),
    ("1 to 1048576 elements .* group_size 1048578", NormSpec(), (), {"group_size": (1 << 20) + 2}),
    ("1 to 1048576 elements .* f16 .1, 1048577.", NormSpec(), (_ones(1, (1 << 20) + 1),), {}),
    ("scale and bias must be", NormSpec(), (_ones(2, 8), _ones(8, dtype=np.float64)), {}),
    (
        "at most two runs of axes of x .* cos f32 .2, 1, 2, 1, 4.",
        NormSpec(kind="RotaryRMSNorm", rotary_dim=4),
        (_ones(2, 3, 2, 3, 8, dtype=np.float32), None, None, None, (_TABLE, _TABLE)),
        {},
    ),
    ("need axis -1", NormSpec(axis=-2), (_ones(2, 3, 32), *[None] * 4, "int8_per_row"), {}),
)


@pytest.mark.parametrize(("words", "spec", "tensors", "attributes"), _LACKS)
def test_what_the_kernels_lack_is_refused_with_node_and_attribute(
    options: Any, words: str, spec: NormSpec, tensors: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    given = (*tensors, *[None] * 6)[:6] if tensors else (_ones(2, 8), *[None] * 5)
    with pytest.raises(Exception, match=f"RMSNorm node 'a norm': on a GPU .*{words}"):
        _run(options, spec, *given, **attributes)


def test_codes_need_a_place_for_their_scales(options: Any) -> None:
    model, feeds = node_model(NormSpec(), _ones(2, 32), None, None, None, None, "fp8_per_row")
    del model.graph.output[1], model.graph.node[0].output[1]
    with pytest.raises(Exception, match="must have an output for the scales of its codes"):
        run_session(onnxruntime.InferenceSession(model.SerializeToString(), options), feeds)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_proof_runs_the_kernels_and_says_where(nodes: pathlib.Path, dtype: int) -> None:
    report = rx.optimize(source(LLAMA, dtype=dtype), prove=True, kernels=str(nodes)).report
    (site,) = report.fused
    assert site.proof is not None
    assert site.proof.passed
    device, where = place_of_kernels(str(nodes))
    if CUDA not in onnxruntime.get_available_providers():
        assert (device, where) == ("cpu", " on the CPU, for it has no CUDA provider")
    assert site.proof.runtime.endswith(where)


@pytest.mark.parametrize("version", VERSIONS)
def test_earlier_runtimes_take_the_same_nodes(
    nodes: pathlib.Path, tmp_path: pathlib.Path, version: str
) -> None:
    """Those of the CPU with the stream of its context, those of CUDA left alone."""
    x = np.random.default_rng(0).normal(0, 1, (3, 64)).astype(np.float16)
    spec = NormSpec(epsilon=2.0**-7)
    done, outputs = run_in(version, nodes, tmp_path, [node_model(spec, x, None, None, None)])
    assert (done.returncode, done.stdout) == (0, f"{version}\n"), done.stderr
    _close({"y": outputs[0][0]}, reference_exact(spec, x))


@pytest.mark.thorough
def test_any_node_is_launched_or_refused() -> None:
    """Under AddressSanitizer and UndefinedBehaviorSanitizer, the kernels as well."""
    library = kernel_build.sanitized_node_library()
    fuzz_in_a_process(library, 500, "wild", **kernel_build.sanitizer_environment())


@pytest.fixture(scope="module")
def built() -> Built:
    if kernel_build.find_nvcc() is None:
        pytest.skip("no nvcc: pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl")
    return rx.plugin.build(
        runtime="onnxruntime", cuda=True, arch="90", cache=cache.root() / "native"
    )


@pytest.mark.thorough
def test_the_built_library_needs_no_cuda(built: Built) -> None:
    """It loads in ONNX Runtime for the CPU, whose nodes then run by the CPU's kernels."""
    assert built.runtime == "onnxruntime-cuda"
    library = built.path("register")
    place = cache.root() / "native"
    assert library == rx.plugin.onnxruntime_library(cuda=True, cache=place)
    assert rx.plugin.open_library(library).style == "register"
    assert kernel_build.exported(library) == ["RegisterCustomOps"]
    result = rx.plugin.check(runtime="onnxruntime", cuda=True, cache=place)
    assert result.passed
    assert "no node ran on a GPU" in result.notes[0]
    (trial,) = result.runtimes
    assert len(trial.checks) == 16
