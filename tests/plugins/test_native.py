"""The kernels of ONNX Runtime on the CPU: numbers, shapes, threads, and what they refuse."""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import assign_bodies, body_key
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.runtime.metrics import ulp_distance
from tests.plugins import kernel_build
from tests.plugins.native_fuzz import fuzz_in_a_process, set_attributes
from tests.plugins.native_process import EPSILON, TYPES, defined, run
from tests.tools.tables import table
from toolbox.node_model import node_model


def _normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(dtype)


def _ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, TYPES[16]])
@pytest.mark.parametrize("n", [64, 4096])
def test_sums_of_many_rows(native_library: pathlib.Path, dtype: Any, n: int) -> None:
    """Of f32 exact; half types add a few squares in f32, which is rarely seen."""
    x, scale = _normal(2**20 // n, n, dtype=dtype), 1 + 0.3 * _normal(n, seed=1)
    one = defined(NormSpec(epsilon=EPSILON), x, scale.astype(dtype))
    y = run(native_library, one.model, one.feeds)["y"]
    differing = float(np.mean(ulp_distance(y, one.expected[0]) > 0))
    assert differing <= (0 if dtype is np.float32 else 5e-5)


_STREAMED = 2**23 // 1000
"""Rows of outputs that pass the caches by; a few of them do not."""
_ROWS: tuple[tuple[NormSpec, int], ...] = (
    (NormSpec(kind="GatedRMSNorm", gate_first=True, group_size=40, epsilon=EPSILON), 301),
    (NormSpec(kind="SkipRMSNorm", partial_size=63, epsilon=EPSILON), 301),
    (NormSpec(kind="SkipRMSNorm"), _STREAMED),
)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, TYPES[16]])
@pytest.mark.parametrize(("spec", "rows"), _ROWS)
def test_a_row_is_the_same_in_any_call(
    native_library: pathlib.Path, dtype: Any, spec: NormSpec, rows: int
) -> None:
    x, second = (_normal(rows, 1000, dtype=dtype, seed=seed) for seed in (0, 1))
    whole = run(native_library, *node_model(spec, x, None, None, second), threads=3)
    part = run(native_library, *node_model(spec, x[-9:], None, None, second[-9:]))
    for name, array in part.items():
        assert array.tobytes() == whole[name][-9:].tobytes()


@pytest.mark.parametrize("kind", ["RMSNorm", "SkipRMSNorm", "GatedRMSNorm", "gate_first"])
@pytest.mark.parametrize("dtype", TYPES.values())
@pytest.mark.parametrize("shape", [(2, 37, 5, 7), (3, 64, 1000), (1, 8, 1, 33), (2, 5, 1)])
def test_rows_that_lie_apart(
    native_library: pathlib.Path, kind: Any, dtype: Any, shape: tuple[int, ...]
) -> None:
    """Channels in front of positions: bit for bit what the same rows give in one piece."""
    first = kind == "gate_first"
    spec = NormSpec(kind="GatedRMSNorm" if first else kind, epsilon=EPSILON, gate_first=first)
    x, second = (_normal(*shape, dtype=dtype, seed=seed) for seed in (0, 1))
    scale = _normal(shape[1], *[1] * (len(shape) - 2))
    model, feeds = node_model(spec, x, scale, None, second)
    set_attributes(model, axis=1 - len(shape), last_axis=1 - len(shape))
    apart = run(native_library, model, feeds, threads=3)
    moved = {name: np.moveaxis(array, 1, -1) for name, array in feeds.items()}
    moved["scale"] = scale.reshape(-1)
    model, _ = node_model(spec, *map(moved.get, ("x", "scale", "bias", "second")))
    together = run(native_library, model, moved)
    for name, array in apart.items():
        assert np.moveaxis(array, 1, -1).tobytes() == together[name].tobytes()


def test_a_suffixed_name_has_the_kernel_and_a_literal_keeps_its_body(
    native_library: pathlib.Path,
) -> None:
    x, spec = _normal(3, 9, dtype=np.float64), NormSpec(epsilon=1e-5, stash_type=11)
    key = body_key(spec, dtype=11, scale_dtype=None, bias_dtype=None, opset=17)
    ((name, body),) = assign_bodies([key])
    assert name == "RMSNorm_stash_float64_epsilon_literal"
    model, feeds = node_model(spec, x, None, None, None)
    model.graph.node[0].op_type = name
    model.functions.append(ir.serde.serialize_function(build_function(name, body, 17)))
    y = run(native_library, model, feeds)["y"]
    assert ulp_distance(y, reference_exact(spec, x)).max() <= 2
    model, feeds = node_model(NormSpec(), x, None, None, None)
    for word in ("round_rstd", "grouped", "partial_2", "several_axes", "epsilon_clamp_channels"):
        model.graph.node[0].op_type = f"RMSNorm_{word}"  # without a body, only a kernel can run
        assert run(native_library, model, feeds)["y"].shape == x.shape


REFUSED: dict[str, dict[str, dict[str, Any]]] = table(__file__)


@pytest.mark.parametrize(
    ("kind", "words"), [(kind, words) for kind, rows in REFUSED.items() for words in rows]
)
def test_what_is_refused_is_named(native_library: pathlib.Path, kind: Any, words: str) -> None:
    """Attributes when the model is loaded, what does not fit its tensors when it runs."""
    attributes, x = dict(REFUSED[kind][words]), _ones(2, 8)
    operands = {"scale": None, "bias": None, "second": x, "tables": (_ones(8), _ones(8))}
    for name in operands.keys() & attributes.keys():
        sizes = attributes.pop(name)
        ones = [_ones(*one) for one in sizes] if name == "tables" else _ones(*sizes)
        operands[name] = ones
    model, feeds = node_model(NormSpec(kind=kind), x, *operands.values())
    set_attributes(model, **attributes)
    words = words.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(Exception, match=f"{kind} node 'a norm': (?=.*; it has ).*{words}"):
        run(native_library, model, feeds if kind != "GatedRMSNorm" else {})


def test_a_tensor_of_another_type_is_named(native_library: pathlib.Path) -> None:
    model, feeds = node_model(NormSpec(), _ones(2, 8), _ones(8), None, None)
    model.graph.input[1].type.tensor_type.elem_type = 7
    feeds["scale"] = np.ones(8, np.int64)
    with pytest.raises(Exception, match=r"scale must be f16, bf16, f32 or f64, .* ONNX type 7"):
        run(native_library, model, feeds)


def test_any_node_is_computed_or_refused(native_library: pathlib.Path) -> None:
    fuzz_in_a_process(native_library, 200)


def test_an_older_onnxruntime_is_told(native_library: pathlib.Path) -> None:
    """As ONNX Runtime 1.16 would answer: version 17 is unknown to it."""
    sentences: list[bytes] = []
    pointer = ctypes.c_void_p

    @ctypes.CFUNCTYPE(pointer, ctypes.c_int, ctypes.c_char_p)
    def create(_code: int, sentence: bytes) -> int:
        sentences.append(sentence)
        return 1

    table = (pointer * 1)(ctypes.cast(create, pointer))
    get = ctypes.CFUNCTYPE(pointer, ctypes.c_uint32)(
        lambda version: ctypes.addressof(table) if version < 17 else None
    )
    version = ctypes.CFUNCTYPE(ctypes.c_char_p)(lambda: b"1.16.3")
    base = (pointer * 2)(*(ctypes.cast(function, pointer) for function in (get, version)))
    register = ctypes.CDLL(str(native_library)).RegisterCustomOps
    register.restype = pointer
    assert register(None, base) == 1
    assert sentences == [b"rmsnorm_export: this is ONNX Runtime 1.16.3; use 1.17 or newer"]


def test_the_declarations_are_those_of_the_header() -> None:
    named = os.environ.get("ONNXRUNTIME_INCLUDE_DIR", "/usr/include/onnxruntime")
    folders = [pathlib.Path(named), pathlib.Path("/usr/include")]
    present = [folder for folder in folders if (folder / "onnxruntime_c_api.h").is_file()]
    if not present or shutil.which("g++") is None:
        pytest.skip("apt install g++ libonnxruntime-dev, or set ONNXRUNTIME_INCLUDE_DIR")
    source = kernel_build.PLUGINS / "tests" / "onnxruntime" / "header.cpp"
    kernel_build.run(["g++", "-std=c++17", "-fsyntax-only", "-I", present[0], source])


def test_the_library_exports_one_function(native_library: pathlib.Path) -> None:
    assert kernel_build.exported(native_library) == ["RegisterCustomOps"]
