"""The CPU kernels of the operator in ONNX Runtime: found, registered, and tried.

The library has the operator's own names, so ONNX Runtime takes it instead of the function bodies of
a ``portable`` file; without it the same file runs its bodies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
from onnx import helper

from rmsnorm_export.errors import InputError
from rmsnorm_export.op.dtypes import Array, element_type, numpy_dtype, type_name
from rmsnorm_export.op.native import ROW_KINDS, operator_name
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import (
    BFLOAT16,
    BLOCK,
    CODE_TYPES,
    DOMAIN,
    DOUBLE,
    FLOAT,
    FLOAT16,
    QUANTIZE,
    UINT8,
    Kind,
    NormSpec,
    Quantize,
    scaled_by,
)
from rmsnorm_export.runtime.metrics import ulp_distance
from rmsnorm_export.runtime.session import has_cuda_nodes, onnxruntime, run_session
from rmsnorm_export.runtime.session import session_options as plain_options
from rmsnorm_export.runtime.support import CPU, CUDA
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.process import Request, Say
from rmsnorm_export.tensorrt.plugin.creators import FailedCheckError
from rmsnorm_export.tensorrt.plugin.libraries import (
    NATIVE_BUILD_FIX,
    inspect_library,
    onnxruntime_library,
)
from rmsnorm_export.tensorrt.plugin.probe import Trying

_TYPES = (FLOAT, FLOAT16, BFLOAT16, DOUBLE)
_MAX_ULP = {FLOAT: 3, DOUBLE: 8}
"""From the reference, for sums of another order and the sigmoid; of a half type 1."""


def session_options(
    library: StrPath | None = None,
    *,
    cuda: bool = False,
    threads: int = 0,
    cache: StrPath | None = None,
) -> Any:
    """``onnxruntime.SessionOptions`` with the operator's kernels registered.

    Args:
        library: of ``rx.plugin.build(runtime="onnxruntime")``; None: that of the newest build.
        cuda: of None: the library with the CUDA kernels as well, for sessions with
            ``providers=["CUDAExecutionProvider", "CPUExecutionProvider"]``.
        threads: of one operator; 0 lets ONNX Runtime choose.
        cache: folder of the builds; by default that of ``build``.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, is older than 1.17 or cannot load the
            library, or nothing is built.
        InputError: ``library`` is none of ONNX Runtime, cut short, or for another machine.
    """
    chosen = onnxruntime_library(cuda=cuda, cache=cache) if library is None else Path(library)
    if library is not None:
        # The linker ends the process on a library that is cut short.
        info = inspect_library(library, creators=False)
        if info.problem or info.style != "register":
            raise InputError(
                "The library has no kernels for ONNX Runtime.",
                found=f"{info.path}: {info.problem or f'it is for {info.style}'}",
                fix=info.fix or NATIVE_BUILD_FIX,
            )
    return plain_options(optimize=True, threads=threads, kernels=chosen)


def node_model(
    spec: NormSpec,
    x: Array,
    scale: Array | None,
    bias: Array | None,
    second: Array | None,
    tables: tuple[Array, Array] | None = None,
    quantize: Quantize | None = None,
    step: Array | None = None,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, without its function body, and its inputs.

    Args:
        spec: the norm.
        x, scale, bias: operands of every kind.
        second: residual or gate.
        tables: cos and sin.
        quantize, step: the node gives codes, of this scale where theirs is given.
    """
    more = {"second": second, **dict(zip(("cos", "sin"), tables or (), strict=False))}
    given = {"x": x, **more, "scale": scale, "bias": bias}
    feeds = {name: array for name, array in given.items() if array is not None}
    places = [name for name in given if name != "second" or second is not None]
    names = [name if name in feeds else "" for name in places]
    while not names[-1]:
        names.pop()
    if step is not None:
        feeds["step"] = step
        names.append("step")
    dtype = element_type(x.dtype)
    outputs = {"y": (dtype, x.shape)}
    if spec.kind == "SkipRMSNorm":
        outputs["sum"] = (dtype, x.shape)
    attributes: dict[str, Any] = dict(spec.attributes())
    if quantize is not None:
        attributes[QUANTIZE] = quantize
        outputs["y"] = (CODE_TYPES[quantize.partition("_")[0]][0], x.shape)
        if step is None:
            block = scaled_by(quantize) == "block"
            last = x.shape[-1] // BLOCK if block else 1
            outputs["scales"] = (UINT8 if block else FLOAT, (*x.shape[:-1], last))
    name = operator_name(spec.kind, quantize)
    node = helper.make_node(name, names, [*outputs], "a norm", domain=DOMAIN, **attributes)

    def declared(name: str, array: Array) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, element_type(array.dtype), array.shape)

    graph = helper.make_graph(
        [node],
        "norm",
        [declared(*item) for item in feeds.items()],
        [helper.make_tensor_value_info(name, *of) for name, of in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def main(request: Request, say: Say) -> None:
    """Try the library, in the process that ``run_probe`` starts."""
    ort = onnxruntime()
    say("version", version=ort.__version__)
    with Trying(say, "register") as registering:
        options = session_options(request["library"], threads=1)
    for providers in _providers(ort, request["library"]) if registering.passed else ():
        where = f" ({providers[0]})" if len(providers) > 1 else ""
        for dtype, spec in _cases():
            words = ", ".join(f"{k} {v}" for k, v in spec.non_default().items()) or "defaults"
            with Trying(say, f"{spec.kind} {type_name(dtype)}: {words}{where}") as trying:
                trying.detail = _compared(ort, options, providers, dtype, spec)
        for dtype, how in itertools.product(_TYPES, get_args(Quantize)):
            with Trying(
                say, f"{operator_name('RMSNorm', how)} {type_name(dtype)}{where}"
            ) as trying:
                trying.detail = _codes_compared(ort, options, providers, dtype, how)
    say("end")


def _providers(ort: Any, library: str) -> list[list[str]]:
    """The CPU's, and CUDA's where there are kernels for it and it starts."""
    if not has_cuda_nodes(library) or CUDA not in ort.get_available_providers():
        return [[CPU]]
    trial, _ = node_model(NormSpec(), np.ones((1, 1), np.float32), None, None, None)
    options = session_options(library, threads=1)
    session = ort.InferenceSession(trial.SerializeToString(), options, providers=[CUDA, CPU])
    return [[CPU], [CUDA, CPU]] if CUDA in session.get_providers() else [[CPU]]


def _cases() -> Iterator[tuple[int, NormSpec]]:
    variants: tuple[dict[str, Any], ...] = (
        {},
        {"scale_before_cast": True, "scale_offset": 1.0},
        {"round_rstd": True, "partial_size": 5},
        {"group_size": 37, "epsilon_outside": True, "epsilon": 0.5},
    )
    for dtype, kind, values in itertools.product(_TYPES, ROW_KINDS, variants):
        yield dtype, NormSpec(kind=kind, **{"epsilon": 2.0**-16, **values})
    for dtype in _TYPES:
        yield dtype, NormSpec(kind="RotaryRMSNorm", epsilon=2.0**-16, rotary_dim=40)


def _compared(ort: Any, options: Any, providers: list[str], dtype: int, spec: NormSpec) -> str:
    """Run one norm of odd sizes, with an infinity in it, against the reference."""
    random = np.random.default_rng(0)
    # The CUDA kernels turn rows of even length only.
    shape, stored = (3, 112 if spec.kind == "RotaryRMSNorm" else 111), numpy_dtype(dtype)
    x, second = (random.normal(0, 2, shape).astype(stored) for _ in range(2))
    x[1, 7] = np.inf
    scale, bias = (random.normal(1, 1, shape[1:]).astype(stored) for _ in range(2))
    cos, sin = (random.normal(0, 1, (1, spec.rotary_dim)).astype(stored) for _ in range(2))
    more: dict[Kind, dict[str, Array]] = {
        "RMSNorm": {},
        "SkipRMSNorm": {"residual": second},
        "GatedRMSNorm": {"gate": second},
        "RotaryRMSNorm": {"cos": cos, "sin": sin},
    }
    named = more[spec.kind]
    model, feeds = node_model(
        spec,
        x,
        scale,
        bias,
        second if len(named) == 1 else None,
        (cos, sin) if "cos" in named else None,
    )
    session = ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    got = run_session(session, feeds)
    expected = reference_exact(spec, x, scale, bias, **named)
    pair = expected if isinstance(expected, tuple) else (expected,)
    ulp = max(_apart(a, b, len(providers) > 1) for a, b in zip(got.values(), pair, strict=True))
    if not ulp <= _MAX_ULP.get(dtype, 1):
        raise FailedCheckError(f"{ulp:g} ulp from the reference")
    return f"{ulp:g} ulp from the reference"


def _apart(got: Array, expected: Array, of_row: bool) -> float:
    """In ulp of the result; on CUDA of the greatest of its row, as sums there have other orders."""
    apart = ulp_distance(got, expected)
    if of_row:
        exact, found = expected.astype(np.float64), got.astype(np.float64)
        greatest = np.abs(np.nan_to_num(exact, posinf=0, neginf=0)).max(axis=-1, keepdims=True)
        unit = np.spacing(greatest.astype(expected.dtype)).astype(np.float64)
        apart = np.where(np.isfinite(exact), np.abs(found - exact) / unit, apart)
    return float(apart.max())


def _codes_compared(ort: Any, options: Any, providers: list[str], dtype: int, how: Quantize) -> str:
    """Codes of norms that are -1 and 1."""
    x = np.resize([-3.0, 3.0], (3, 2 * BLOCK)).astype(numpy_dtype(dtype))
    step = np.array(0.0625, np.float32) if scaled_by(how) == "tensor" else None
    model, feeds = node_model(NormSpec(epsilon=0.0), x, None, None, None, quantize=how, step=step)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    got = run_session(session, feeds)
    # 1 in steps: 16; 127 or 448 of a row; 2^8 for the least power of two with 1 <= 448 * 2^E.
    largest = CODE_TYPES[how.partition("_")[0]][1]
    number = {"tensor": 16, "row": largest, "block": 256}[scaled_by(how)]
    codes = got["y"].astype(np.float32)
    if not np.array_equal(codes, np.sign(x.astype(np.float32)) * number):
        raise FailedCheckError(f"codes of -1 and 1 are {sorted({*codes.ravel().tolist()})}")
    return f"{number:g} for 1"
