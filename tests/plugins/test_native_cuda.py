"""ONNX Runtime's nodes on CUDA: launched on a CPU, registered where there is no CUDA, built."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest

import rmsnorm_export as rx
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.native import ROW_KINDS
from rmsnorm_export.op.spec import Kind, NormSpec, Quantize, scaled_by
from rmsnorm_export.runtime.session import place_of_kernels
from rmsnorm_export.runtime.support import CUDA
from rmsnorm_export.tensorrt.plugin.libraries import open_library
from tests.op.test_codes import at_every_place, reference_codes, same
from tests.plugins import kernel_build
from tests.plugins.native_fuzz import fuzz_in_a_process, set_attributes
from tests.plugins.native_process import GATES, TYPES, VARIANTS, Case, defined, run, run_all, turned
from tests.plugins.test_native_codes import HOWS, coded
from tests.plugins.test_native_isas import VERSIONS, in_version
from tests.proof.sites import LLAMA, source
from toolbox.command import module_command
from toolbox.corpus import cache
from toolbox.driver import assert_between
from toolbox.node_model import node_model

CUDA_TYPES = (1, 10, 16)

pytestmark = pytest.mark.skipif(
    kernel_build.missing_compiler() is not None, reason=str(kernel_build.missing_compiler())
)


@pytest.fixture(scope="module")
def nodes() -> pathlib.Path:
    """A library whose CUDA nodes run on the CPU; they are registered for CUDA as well."""
    return kernel_build.node_library()


def _check(nodes: pathlib.Path, case: Case, terms: Any = 0.0, ulp: int = 4) -> None:
    """Within an ulp of a half type, `ulp` of float32: of the result, or of a term that cancels.

    The kernels' own tests hold them tighter: here an attribute that is lost must show.
    """
    outputs = run(nodes, case.model, case.feeds)
    for a, b in zip(outputs.values(), case.expected, strict=True):
        exact = b.astype(np.float64)
        unit = np.spacing((np.abs(exact) + terms).astype(b.dtype)).astype(np.float64)
        most = (ulp if a.itemsize == 4 else 1) * unit
        assert (np.abs(a.astype(np.float64) - exact) <= most).all(), case.spec


@pytest.mark.parametrize("dtype", CUDA_TYPES)
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_every_attribute_reaches_the_kernel(nodes: pathlib.Path, dtype: int, kind: Kind) -> None:
    """The path of an attribute is the same in every type."""
    random = np.random.default_rng(dtype)
    gated = kind == "GatedRMSNorm"
    ulp = 16 if gated else 4  # the kernels' sigmoid is within 2^-20 of itself
    variants = VARIANTS if dtype == 10 else VARIANTS[:3]
    for i, (stash, values) in enumerate(itertools.product(sorted({1, dtype}), variants)):
        more = {"stash_type": stash, "epsilon": 2.0**-7, **(GATES[i % 4] if gated else {})}
        spec = NormSpec(kind=kind, **values, **more)
        x, second = (random.normal(0, 2, (3, 111)).astype(TYPES[dtype]) for _ in range(2))
        scale, bias = (random.normal(1, 1, 111).astype(t) for t in (np.float32, TYPES[dtype]))
        terms = np.abs(bias) * (1 + np.abs(second.astype(np.float64)) if gated else 1)
        _check(nodes, defined(spec, x, scale, bias, second), terms, ulp)
        if not {"association", "scale_offset"} & {*values}:
            _check(nodes, defined(spec, x, second=second), ulp=ulp)


def test_tables_of_any_broadcast(nodes: pathlib.Path) -> None:
    for case in turned():
        _check(nodes, case, 8.0)  # each of two products


def test_rows_that_lie_apart_and_of_several_axes(nodes: pathlib.Path) -> None:
    random = np.random.default_rng(1)
    x = random.normal(0, 1, (2, 6, 5, 7)).astype(np.float16)
    for axis, last in ((-3, -3), (-2, -1), (-2, -2)):
        sizes = x.shape[axis : last + 1 or None]
        scale = random.normal(0, 1, (*sizes, *[1] * (-1 - last))).astype(np.float32)
        _check(nodes, defined(NormSpec(epsilon=2.0**-7, axis=axis, last_axis=last), x, scale))


@pytest.mark.parametrize("how", [None, "int8_per_row"])
@pytest.mark.parametrize("width", [111, 128, 20_000])  # in registers, and slices of shared memory
def test_a_sum_that_nobody_asks_for(nodes: pathlib.Path, width: int, how: Any) -> None:
    x, residual = np.random.default_rng(2).normal(0, 1, (2, 3, width)).astype(np.float16)
    spec = NormSpec(kind="SkipRMSNorm", epsilon=2.0**-7)
    model, feeds = node_model(spec, x, None, None, residual, None, how)
    both = run(nodes, model, feeds)
    del model.graph.output[1]
    model.graph.node[0].output[1] = ""
    for name, array in run(nodes, model, feeds).items():
        assert array.tobytes() == both[name].tobytes()


def _coded(
    nodes: pathlib.Path, spec: NormSpec, *tensors: Any
) -> Iterator[tuple[Quantize, tuple[Array, ...], tuple[Array, ...]]]:
    """Each way of codes, the norm, and what the node with codes gives; all in one session."""
    norm, *codes = run_all(nodes, [coded(spec, how, 0.02, *tensors) for how in (None, *HOWS)])
    for how, outputs in zip(HOWS, codes, strict=True):
        yield how, norm, outputs


@pytest.mark.parametrize("dtype", CUDA_TYPES)
@pytest.mark.parametrize(("kind", "n"), [*zip(ROW_KINDS, (416, 96, 96), strict=True)])
def test_codes_are_those_of_the_norm(nodes: pathlib.Path, kind: Kind, n: int, dtype: int) -> None:
    """Of the CUDA node's own norm: the scales are the definition's, a code is at most one off."""
    random = np.random.default_rng(dtype)
    x, second = (random.normal(0, 2, (4, n)).astype(TYPES[dtype]) for _ in range(2))
    x[0], x[1, 3], x[2, n - 1], x[3, :5] = 0, np.nan, np.inf, -0.0
    scale = random.normal(1, 1, n).astype(TYPES[dtype])
    spec = NormSpec(kind=kind, epsilon=2.0**-7)
    for how, norm, (codes, *more) in _coded(nodes, spec, x, scale, None, second):
        expected, *scales = reference_codes(norm[0], how, 0.02)
        if how == "int8":  # a NaN is 0, as of QuantizeLinear on CUDA
            expected[np.isnan(norm[0].astype(np.float32))] = 0
        for a, b in zip(more, (*norm[1:], *scales), strict=True):
            # The fast kernels of float32 multiply with a row's scale, within ulp.
            exact = b.astype(np.float64)
            assert_between(a, exact, exact, 4 if b.dtype == np.float32 == x.dtype else 0)
        exact = expected.astype(np.float64)
        assert_between(codes, exact, exact, 1)


@pytest.mark.parametrize("dtype", CUDA_TYPES)
def test_what_is_no_number_is_in_the_scale_wherever_it_is(nodes: pathlib.Path, dtype: int) -> None:
    x = at_every_place(32, TYPES[dtype])
    spec = NormSpec(epsilon=0.0, partial_size=1)
    for how, _, outputs in _coded(nodes, spec, x, None, None, None):
        if scaled_by(how) != "tensor":
            for a, b in zip(outputs, reference_codes(x, how, 0.0), strict=True):
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
    nodes: pathlib.Path, words: str, spec: NormSpec, tensors: Any, attributes: dict[str, Any]
) -> None:
    operands = (*(tensors or (_ones(2, 8),)), *[None] * 6)[:6]
    model, feeds = node_model(spec, *operands)
    set_attributes(model, **attributes)
    with pytest.raises(Exception, match=f"RMSNorm node 'a norm': on a GPU .*{words}"):
        run(nodes, model, feeds)


def test_codes_need_a_place_for_their_scales(nodes: pathlib.Path) -> None:
    model, feeds = node_model(NormSpec(), _ones(2, 32), None, None, None, None, "fp8_per_row")
    del model.graph.output[1], model.graph.node[0].output[1]
    with pytest.raises(Exception, match="must have an output for the scales of its codes"):
        run(nodes, model, feeds)


def test_a_proof_runs_the_kernels_and_says_where(nodes: pathlib.Path) -> None:
    report = rx.optimize(source(LLAMA, dtype=16), prove=True, kernels=str(nodes)).report
    (site,) = report.fused
    assert site.proof is not None
    assert site.proof.passed
    device, where = place_of_kernels(str(nodes))
    if CUDA not in onnxruntime.get_available_providers():
        assert (device, where) == ("cpu", " on the CPU, for it has no CUDA provider")
    assert site.proof.runtime.endswith(where)


@pytest.mark.parametrize("version", VERSIONS)
def test_other_versions_of_onnxruntime_take_the_same_nodes(version: str) -> None:
    """Those of the CPU with the stream of its context, those of CUDA left alone."""
    test = f"{__file__}::{test_rows_that_lie_apart_and_of_several_axes.__name__}"
    command = module_command("pytest", "-q", "-p", "no:cacheprovider", test)
    done = subprocess.run(command, env=os.environ | in_version(version), stdout=subprocess.PIPE)
    assert b"1 passed" in done.stdout, done.stdout.decode()


@pytest.mark.thorough
def test_any_node_is_launched_or_refused() -> None:
    """Under AddressSanitizer and UndefinedBehaviorSanitizer, the kernels as well."""
    library = kernel_build.node_library(sanitized=True)
    fuzz_in_a_process(library, 500, "wild", **kernel_build.sanitizer_environment())


@pytest.mark.thorough
def test_the_built_library_needs_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads in ONNX Runtime for the CPU, whose nodes then run by the CPU's kernels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.root()))
    built = rx.plugin.build(runtime="onnxruntime", cuda=True, arch="90")
    assert built.runtime == "onnxruntime-cuda"
    library = built.path("register")
    assert library == rx.plugin.onnxruntime_library(cuda=True)
    assert open_library(library, "register") == library
    assert kernel_build.exported(library) == ["RegisterCustomOps"]
    model = source(LLAMA)
    options = rx.session_options(cuda=True)
    session = onnxruntime.InferenceSession(rx.optimize(model).to_bytes(), options)
    assert session.get_inputs()
