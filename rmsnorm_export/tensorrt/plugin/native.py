"""The CPU kernels of the operator in ONNX Runtime: found, registered, and tried.

The library has the operator's own names, so ONNX Runtime takes it instead of the function bodies of
a ``portable`` file; without it the same file runs its bodies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rmsnorm_export.errors import InputError
from rmsnorm_export.op.dtypes import Array, element_type, numpy_dtype, type_name
from rmsnorm_export.op.native import ROW_KINDS
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import BFLOAT16, DOMAIN, DOUBLE, FLOAT, FLOAT16, Kind, NormSpec
from rmsnorm_export.runtime.metrics import ulp_distance
from rmsnorm_export.runtime.session import onnxruntime, run_session
from rmsnorm_export.runtime.session import session_options as plain_options
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
    library: StrPath | None = None, *, threads: int = 0, cache: StrPath | None = None
) -> Any:
    """``onnxruntime.SessionOptions`` with the operator's kernels registered.

    Args:
        library: of ``rx.plugin.build(runtime="onnxruntime")``; None: that of the newest build.
        threads: of one operator; 0 lets ONNX Runtime choose.
        cache: folder of the builds; by default that of ``build``.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, is older than 1.17 or cannot load the
            library, or nothing is built.
        InputError: ``library`` is none of ONNX Runtime, cut short, or for another machine.
    """
    chosen = onnxruntime_library(cache=cache) if library is None else Path(library)
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
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, without its function body, and its inputs.

    Args:
        spec: the norm.
        x, scale, bias: operands of every kind.
        second: residual or gate.
        tables: cos and sin.
    """
    more = {"second": second, **dict(zip(("cos", "sin"), tables or (), strict=False))}
    given = {"x": x, **more, "scale": scale, "bias": bias}
    feeds = {name: array for name, array in given.items() if array is not None}
    places = [name for name in given if name != "second" or second is not None]
    names = [name if name in feeds else "" for name in places]
    while not names[-1]:
        names.pop()
    outputs = ["y", "sum"] if spec.kind == "SkipRMSNorm" else ["y"]
    attributes: dict[str, Any] = dict(spec.attributes())
    node = helper.make_node(spec.kind, names, outputs, "a norm", domain=DOMAIN, **attributes)

    def declared(name: str, array: Array) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, element_type(array.dtype), array.shape)

    graph = helper.make_graph(
        [node],
        "norm",
        [declared(*item) for item in feeds.items()],
        [declared(o, x) for o in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def main(request: Request, say: Say) -> None:
    """Try the library, in the process that ``run_probe`` starts."""
    ort = onnxruntime()
    say("version", version=ort.__version__)
    with Trying(say, "register") as registering:
        options = session_options(request["library"], threads=1)
    for dtype, spec in _cases() if registering.passed else ():
        words = ", ".join(f"{k} {v}" for k, v in spec.non_default().items()) or "defaults"
        with Trying(say, f"{spec.kind} {type_name(dtype)}: {words}") as trying:
            trying.detail = _compared(ort, options, dtype, spec)
    say("end")


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


def _compared(ort: Any, options: Any, dtype: int, spec: NormSpec) -> str:
    """Run one norm of odd sizes, with an infinity in it, against the reference."""
    random = np.random.default_rng(0)
    shape, stored = (3, 111), numpy_dtype(dtype)
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
    got = run_session(ort.InferenceSession(model.SerializeToString(), options), feeds)
    expected = reference_exact(spec, x, scale, bias, **named)
    pair = expected if isinstance(expected, tuple) else (expected,)
    ulp = max(float(ulp_distance(a, b).max()) for a, b in zip(got.values(), pair, strict=True))
    if not ulp <= _MAX_ULP.get(dtype, 1):
        raise FailedCheckError(f"{ulp:g} ulp from the reference")
    return f"{ulp:g} ulp from the reference"
