"""The kernels of ONNX Runtime on the CPU: numbers, shapes, threads, and what they refuse."""

from __future__ import annotations

import ctypes
import math
import os
import pathlib
import shutil
import subprocess
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper

import rmsnorm_export as rx
from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import assign_bodies, body_key
from rmsnorm_export.op.reference import reference_exact, reference_float64
from rmsnorm_export.op.spec import DOMAIN, NormSpec
from rmsnorm_export.runtime.metrics import ulp_distance, ulp_error
from rmsnorm_export.runtime.session import run_session
from tests.plugins import kernel_build
from tests.plugins.native_fuzz import fuzz_in_a_process, set_attributes
from tests.plugins.native_process import TYPES
from tests.tools.node_model import node_model

PLUGINS = pathlib.Path(__file__).parents[2] / "plugins"


def _session(model: onnx.ModelProto, library: pathlib.Path, threads: int = 1) -> Any:
    import onnxruntime

    options = rx.session_options(library, threads=threads)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def _run(
    library: pathlib.Path,
    spec: NormSpec,
    x: Any,
    scale: Any = None,
    bias: Any = None,
    second: Any = None,
    threads: int = 1,
) -> Any:
    model, feeds = node_model(spec, x, scale, bias, second)
    return run_session(_session(model, library, threads), feeds)


@pytest.mark.parametrize("dtype", TYPES.values())
@pytest.mark.parametrize("shape", [(1,), (3, 1), (7, 3), (5, 123), (2, 3, 4, 199), (1, 4104)])
def test_rows_of_every_length_with_any_number_of_threads(
    native_library: pathlib.Path, dtype: Any, shape: tuple[int, ...]
) -> None:
    x = np.random.default_rng(1).normal(0, 1, shape).astype(dtype)
    scale = np.random.default_rng(2).normal(0, 1, shape[-1:]).astype(np.float32)
    spec = NormSpec(epsilon=2.0**-20)
    expected = reference_exact(spec, x, scale)
    one = _run(native_library, spec, x, scale)["y"]
    assert ulp_distance(one, expected).max() == 0
    for threads in (2, 5):
        assert _run(native_library, spec, x, scale, threads=threads)["y"].tobytes() == one.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, TYPES[16]])
@pytest.mark.parametrize("n", [64, 4096])
def test_sums_are_as_accurate_as_pytorchs(native_library: pathlib.Path, dtype: Any, n: int) -> None:
    """Against float64; of f32 exact, half types add a few squares in f32, which is rarely seen."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    x = random.normal(0, 1, (2**20 // n, n)).astype(np.float32)
    scale = random.normal(1, 0.3, n).astype(np.float32)
    spec = NormSpec(epsilon=2.0**-20)
    kind = getattr(torch, np.dtype(dtype).name)
    row, weight = torch.from_numpy(x).to(kind), torch.from_numpy(scale).to(kind)
    x, scale = row.float().numpy().astype(dtype), weight.float().numpy().astype(dtype)
    rows = row.float()
    rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + spec.epsilon)
    eager = (weight * rows.to(kind)).float().numpy().astype(dtype)
    found = _run(native_library, spec, x, scale)["y"]
    exact, truth = reference_exact(spec, x, scale), reference_float64(spec, x, scale)
    differing = float(np.mean(ulp_distance(found, exact) > 0))
    assert differing <= (0 if dtype is np.float32 else 5e-5)
    own, others = (float(ulp_error(y, truth).mean()) for y in (found, eager))
    assert own <= others * 1.0001  # half types: but for the last rounding they are the same


_STREAMED = 2**23 // 1000
"""Rows of outputs that pass the caches by; a few of them do not."""


@pytest.mark.parametrize("dtype", [np.float32, np.float16, TYPES[16]])
@pytest.mark.parametrize(
    ("spec", "rows"),
    [
        (NormSpec(kind="GatedRMSNorm", gate_first=True, group_size=40, epsilon=2.0**-20), 301),
        (NormSpec(kind="SkipRMSNorm", partial_size=63, epsilon=2.0**-20), 301),
        (NormSpec(kind="SkipRMSNorm"), _STREAMED),
    ],
)
def test_a_row_is_the_same_in_any_call(
    native_library: pathlib.Path, dtype: Any, spec: NormSpec, rows: int
) -> None:
    random = np.random.default_rng(1)
    x, second = (random.normal(0, 1, (rows, 1000)).astype(dtype) for _ in range(2))
    whole = _run(native_library, spec, x, second=second, threads=3)
    part = _run(native_library, spec, x[-9:], second=second[-9:])
    for name, array in part.items():
        assert array.tobytes() == whole[name][-9:].tobytes()


def test_a_sum_that_overflows_f32_does_not(native_library: pathlib.Path) -> None:
    """Each square fits, their sum does not: it is taken in f64, as the reference's."""
    x = np.full((1, 64), 1.5e19, np.float32)
    got = _run(native_library, NormSpec(epsilon=0.0), x)["y"]
    assert ulp_distance(got, reference_exact(NormSpec(epsilon=0.0), x)).max() == 0


def _with_body(model: onnx.ModelProto, body: onnx.FunctionProto) -> onnx.ModelProto:
    model.functions.append(body)
    return model


def test_the_kernel_wins_over_the_body(native_library: pathlib.Path) -> None:
    """The body gives X back: who gets it did not use the kernel."""
    import onnxruntime

    x = np.full((2, 8), 2.0, np.float32)
    model, feeds = node_model(NormSpec(epsilon=0.0), x, None, None, None)
    identity = helper.make_node("Identity", ["X"], ["Y"])
    opsets = [helper.make_opsetid("", 17)]
    body = helper.make_function(DOMAIN, "RMSNorm", ["X"], ["Y"], [identity], opsets)
    model = _with_body(model, body)
    assert run_session(_session(model, native_library), feeds)["y"].max() == 1
    plain = onnxruntime.InferenceSession(model.SerializeToString())
    assert run_session(plain, feeds)["y"].max() == 2


@pytest.mark.parametrize("kind", ["RMSNorm", "SkipRMSNorm", "GatedRMSNorm"])
@pytest.mark.parametrize("dtype", TYPES.values())
@pytest.mark.parametrize("shape", [(2, 37, 5, 7), (3, 64, 1000), (1, 8, 1, 33), (2, 5, 1)])
def test_rows_that_lie_apart(
    native_library: pathlib.Path, kind: Any, dtype: Any, shape: tuple[int, ...]
) -> None:
    """Channels in front of positions: bit for bit what the same rows give in one piece."""
    random = np.random.default_rng(0)
    x, second = (random.normal(0, 1, shape).astype(dtype) for _ in range(2))
    scale = random.normal(0, 1, (shape[1], *[1] * (len(shape) - 2))).astype(np.float32)
    axis = 1 - len(shape)
    given = None if kind == "RMSNorm" else second
    for gate_first in (0, 1) if kind == "GatedRMSNorm" else (0,):
        spec = NormSpec(kind=kind, epsilon=2.0**-17, gate_first=bool(gate_first))
        model, feeds = node_model(spec, x, scale, None, given)
        set_attributes(model, axis=axis, last_axis=axis)
        apart = run_session(_session(model, native_library, threads=3), feeds)
        moved = {name: np.moveaxis(array, 1, -1) for name, array in feeds.items()}
        moved["scale"] = scale.reshape(-1)
        model, _ = node_model(spec, *map(moved.get, ("x", "scale", "bias", "second")))
        together = run_session(_session(model, native_library), moved)
        for name, array in apart.items():
            assert np.moveaxis(array, 1, -1).tobytes() == together[name].tobytes()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(2, 5, 3, 16), (2, 1, 3, 16), (1, 5, 1, 8), (5, 1, 16), (16,)])
def test_tables_of_any_broadcast_turn_the_norm(
    native_library: pathlib.Path, shape: tuple[int, ...], interleaved: bool
) -> None:
    random = np.random.default_rng(0)
    x = random.normal(0, 1, (2, 5, 3, 20)).astype(np.float16)
    cos, sin = (random.normal(0, 1, shape).astype(np.float32) for _ in range(2))
    spec = NormSpec(
        kind="RotaryRMSNorm", epsilon=2.0**-17, rotary_dim=16, rotary_interleaved=interleaved
    )
    model, feeds = node_model(spec, x, None, None, None, (cos, sin))
    got = run_session(_session(model, native_library, threads=3), feeds)["y"]
    assert got.tobytes() == reference_exact(spec, x, cos=cos, sin=sin).tobytes()


def test_a_suffixed_name_has_the_kernel_and_a_literal_keeps_its_body(
    native_library: pathlib.Path,
) -> None:
    x = np.random.default_rng(0).normal(0, 1, (3, 9)).astype(np.float64)
    spec = NormSpec(epsilon=1e-5, stash_type=11)
    key = body_key(spec, dtype=11, scale_dtype=None, bias_dtype=None, opset=17)
    ((name, body),) = assign_bodies([key])
    assert name == "RMSNorm_stash_float64_epsilon_literal"
    model, feeds = node_model(spec, x, None, None, None)
    model.graph.node[0].op_type = name
    function = ir.serde.serialize_function(build_function(name, body, 17))
    got = run_session(_session(_with_body(model, function), native_library), feeds)["y"]
    assert ulp_distance(got, reference_exact(spec, x)).max() <= 2
    model, feeds = node_model(NormSpec(), x, None, None, None)
    for word in ("round_rstd", "grouped", "partial_2", "several_axes", "epsilon_clamp_channels"):
        model.graph.node[0].op_type = f"RMSNorm_{word}"  # without a body, only a kernel can run
        assert run_session(_session(model, native_library), feeds)["y"].shape == x.shape


BAD_ATTRIBUTES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("epsilon must be finite, and at least 0; it has epsilon -1", {"epsilon": -1.0}),
    ("epsilon must be finite", {"epsilon": math.nan}),
    ("the attribute epsilon must be of the type", {"epsilon": 1}),
    ("the attribute axis must be of the type", {"axis": -1.0}),
    ("the attribute activation must be of the type", {"activation": 1}),
    ("axis must be counted from the end", {"axis": 1}),
    ("stash_type must be", {"stash_type": 7}),
    ("scale_offset must be finite", {"scale_offset": math.inf}),
    ("partial_size and group_size must be", {"partial_size": -1}),
    ("partial_size and group_size must be", {"partial_size": 1, "group_size": 1}),
    ("partial_size and group_size need axis -1", {"partial_size": 1, "axis": -2}),
    ("last_axis must be", {"last_axis": -2}),
    ("last_axis must be", {"last_axis": 0}),
    ("epsilon_outside and epsilon_clamp", {"epsilon_outside": 1, "epsilon_clamp": 1}),
    ("association needs last_axis", {"association": 2, "axis": -2, "last_axis": -2}),
    ("association needs last_axis -1, and no group_size", {"association": 2, "group_size": 2}),
    ("association must be", {"association": 3}),
    ("association must be", {"association": 1}),
    ("activation must be silu or sigmoid", {"activation": "relu"}),
    ("round_rstd and scale_before_cast", {"round_rstd": 1, "scale_before_cast": 1}),
)


@pytest.mark.parametrize(("words", "attributes"), BAD_ATTRIBUTES)
def test_a_bad_attribute_is_named_when_the_model_is_loaded(
    native_library: pathlib.Path, words: str, attributes: dict[str, Any]
) -> None:
    x = np.ones((2, 8), np.float16)
    model, _ = node_model(NormSpec(kind="GatedRMSNorm"), x, None, None, x)
    set_attributes(model, **attributes)
    with pytest.raises(Exception, match=r"GatedRMSNorm node 'a norm': .*; it has ") as caught:
        _session(model, native_library)
    assert words in str(caught.value)


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


BAD_TENSORS: tuple[tuple[str, Any, dict[str, Any], dict[str, Any]], ...] = (
    ("partial_size must be at most.* X f32 [2, 8]", "SkipRMSNorm", {"partial_size": 9}, {}),
    ("group_size must divide", "SkipRMSNorm", {"group_size": 3}, {}),
    ("X must have the axis.* axis -3", "SkipRMSNorm", {"axis": -3}, {}),
    ("scale must have.* scale f32 [7]", "SkipRMSNorm", {}, {"scale": _ones(7)}),
    ("bias must have.* bias f32 [1]", "SkipRMSNorm", {}, {"bias": _ones(1)}),
    ("residual or gate.* residual f32 [1, 8]", "SkipRMSNorm", {}, {"second": _ones(1, 8)}),
    ("scale_offset needs a scale", "SkipRMSNorm", {"scale_offset": 1.0}, {}),
    ("cos f32 [3, 8], sin f32 [3, 4]", "RotaryRMSNorm", {}, {"tables": (_ones(3, 8), _ones(3, 4))}),
    ("X f32 [2, 8], cos f32 [3, 8]", "RotaryRMSNorm", {}, {"tables": (_ones(3, 8),) * 2}),
    ("rotary_dim entries.* cos f32 [8]", "RotaryRMSNorm", {"rotary_dim": 4}, {}),
    ("cos f32 [1, 2, 8]", "RotaryRMSNorm", {}, {"tables": (_ones(1, 2, 8),) * 2}),
    ("rotary_dim must be.* rotary_dim 10", "RotaryRMSNorm", {"rotary_dim": 10}, {}),
    ("rotary_dim must be even, and at least 0", "RotaryRMSNorm", {"rotary_dim": 3}, {}),
)


@pytest.mark.parametrize(("words", "kind", "attributes", "tensors"), BAD_TENSORS)
def test_tensors_that_do_not_fit_are_named(
    native_library: pathlib.Path,
    words: str,
    kind: Any,
    attributes: dict[str, Any],
    tensors: dict[str, Any],
) -> None:
    x = _ones(2, 8)
    second = x if kind == "SkipRMSNorm" else None
    tables = (_ones(8), _ones(8)) if kind == "RotaryRMSNorm" else None
    given = {"scale": None, "bias": None, "second": second, "tables": tables, **tensors}
    model, feeds = node_model(NormSpec(kind=kind), x, *given.values())
    set_attributes(model, **attributes)
    words = words.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(Exception, match=f"{kind} node 'a norm': .*{words}"):
        run_session(_session(model, native_library), feeds)


def test_a_tensor_of_another_type_is_named(native_library: pathlib.Path) -> None:
    model, feeds = node_model(NormSpec(), _ones(2, 8), _ones(8), None, None)
    model.graph.input[1].type.tensor_type.elem_type = 7
    feeds["scale"] = np.ones(8, np.int64)
    with pytest.raises(Exception, match=r"scale must be f16, bf16, f32 or f64, .* ONNX type 7"):
        run_session(_session(model, native_library), feeds)


def test_any_node_is_computed_or_refused(native_library: pathlib.Path) -> None:
    fuzz_in_a_process(native_library, 400)


def test_an_older_onnxruntime_is_told(native_library: pathlib.Path) -> None:
    """As ONNX Runtime 1.16 would answer: version 17 is unknown to it."""
    said: list[bytes] = []
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    version = ctypes.CFUNCTYPE(ctypes.c_char_p)

    def status(_code: int, message: bytes) -> int:
        said.append(message)
        return 1

    kept = create(status)
    table = (ctypes.c_void_p * 1)(ctypes.cast(kept, ctypes.c_void_p))
    functions = (
        get(lambda number: ctypes.addressof(table) if number < 17 else None),
        version(lambda: b"1.16.3"),
    )
    base = (ctypes.c_void_p * 2)(*(ctypes.cast(f, ctypes.c_void_p) for f in functions))
    register = ctypes.CDLL(str(native_library)).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, base) == 1
    assert said == [b"rmsnorm_export: this is ONNX Runtime 1.16.3; use 1.17 or newer"]


def _header() -> pathlib.Path | None:
    named = os.environ.get("ONNXRUNTIME_INCLUDE_DIR")
    places = [pathlib.Path(named)] if named else []
    places += [pathlib.Path("/usr/include/onnxruntime"), pathlib.Path("/usr/include")]
    return next((p for p in places if (p / "onnxruntime_c_api.h").is_file()), None)


def test_the_declarations_are_those_of_the_header() -> None:
    folder = _header()
    if folder is None or shutil.which("g++") is None:
        pytest.skip("apt install g++ libonnxruntime-dev, or set ONNXRUNTIME_INCLUDE_DIR")
    source = PLUGINS / "tests" / "onnxruntime" / "header.cpp"
    command = ["g++", "-std=c++17", "-fsyntax-only", "-I", folder, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_library_exports_one_function(native_library: pathlib.Path) -> None:
    assert kernel_build.exported(native_library) == ["RegisterCustomOps"]
