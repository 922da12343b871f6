"""A library at work in a runtime, in the process that ``check`` starts."""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
from onnx import helper

from rmsnorm_export.lower.portable import creator_names
from rmsnorm_export.op import abi
from rmsnorm_export.op import spec as op
from rmsnorm_export.op.dtypes import Array, numpy_dtype, type_name
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.runtime.metrics import ulp_error
from rmsnorm_export.runtime.session import has_cuda_nodes, onnxruntime, run_session
from rmsnorm_export.runtime.support import CPU, CUDA
from rmsnorm_export.tensorrt.plugin.libraries import session_options

_TYPES = (op.FLOAT, op.FLOAT16, op.BFLOAT16, op.DOUBLE)
_MAX_ULP = {op.FLOAT: 3, op.DOUBLE: 8}
"""From the reference, for sums of another order and the sigmoid; of a half type 1."""

_Trial = tuple[str, Callable[[], str]]
"""Name of a check and what makes it: it returns a remark, or raises."""


def probe(request: Mapping[str, str]) -> dict[str, Any]:
    """Try a library; every check with its name, whether it passed, and a remark."""
    trials = {"register": _onnxruntime_nodes, "functions": _functions}.get(
        request["style"], _creators
    )
    checks = []
    try:
        for name, trial in trials(request):
            try:
                checks.append({"name": name, "passed": True, "detail": trial()})
            except Exception as error:
                checks.append({"name": name, "passed": False, "detail": repr(error)})
    except Exception as error:
        checks.append({"name": "load", "passed": False, "detail": repr(error)})
    return {"checks": checks}


def _functions(request: Mapping[str, str]) -> Iterator[_Trial]:
    """Load the C functions as PyTorch's operators do, and ask for every operator."""
    functions = abi.functions(Path(request["library"]))

    def ask(kind: op.Kind) -> str:
        half = abi.TYPES["float16"]
        problem = abi.Problem(n=256, x=half, scale=half, bias=half, y=half, has_scale=True)
        problem.set_norm(op.NormSpec(kind=kind))
        if refused := functions.rmsnorm_refusal(ctypes.byref(problem)):
            raise ValueError(refused.decode())
        return ""

    for kind in get_args(op.Kind):
        yield kind, functools.partial(ask, kind)


def _creators(request: Mapping[str, str]) -> Iterator[_Trial]:
    """Load the library as programs do that use this runtime, and use its creators from Python."""
    trt = importlib.import_module(request["runtime"])
    logger = trt.Logger(trt.Logger.ERROR)
    registry = trt.get_plugin_registry()
    if request["style"] == "dlopen":
        ctypes.CDLL(request["library"])
    elif registry.load_library(request["library"]) is None:
        raise ValueError("the registry's load_library returned nothing")

    def creator(kind: op.Kind, name: str) -> str:
        creator = registry.get_creator(name, op.PLUGIN_VERSION, op.PLUGIN_NAMESPACE)
        if creator is None:
            raise ValueError(f"no creator is of the namespace {op.PLUGIN_NAMESPACE}")
        own = op.NormSpec(kind=kind).attributes()
        values: dict[str, Any] = {name: own[name] for name in own if name in op.IN_KERNELS}
        if name.startswith("Quantized"):
            values["quantize"] = "int8_per_row"
        fields = tuple(field.name for field in creator.field_names)
        if fields != tuple(values):
            raise ValueError(f"its fields are {fields}, the attributes {tuple(values)}")
        if create_plugin(trt, creator, values) is None:
            raise ValueError("it refuses the operator's defaults")
        for wrong in ({"epsilon": -1.0}, {"axis": 0}, {"epsilon": 1}, {"of_the_future": 0}):
            if create_plugin(trt, creator, values | wrong) is not None:
                raise ValueError(f"it accepts {wrong}")
        return f"{len(fields)} fields, those of the operator"

    for kind in get_args(op.Kind):
        for name in sorted(creator_names(kind)):
            yield f"create {name}", functools.partial(creator, kind, name)
    del logger  # it has to live until here


def create_plugin(trt: Any, creator: Any, values: Mapping[str, Any]) -> Any:
    """Make a plugin as the parser does: INT32 of an int, CHAR with the closing NUL of a string."""
    kinds, fields, arrays = trt.PluginFieldType, [], []  # a field does not keep its array alive
    for name, value in values.items():
        if isinstance(value, str):
            data, kind = np.frombuffer(value.encode() + b"\0", np.int8), kinds.CHAR
        elif isinstance(value, int):
            data, kind = np.array([value], np.int32), kinds.INT32
        else:
            data, kind = np.array([value], np.float32), kinds.FLOAT32
        arrays.append(data)
        fields.append(trt.PluginField(name, data, kind))
    try:
        return creator.create_plugin(
            "check", trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD
        )
    except (RuntimeError, ValueError, TypeError):  # a refusal, in some versions of the bindings
        return None


def _onnxruntime_nodes(request: Mapping[str, str]) -> Iterator[_Trial]:
    """Register the library with ONNX Runtime, and compute norms with it, on CUDA where it has."""
    ort, options = onnxruntime(), session_options(request["library"], threads=1)
    cuda = has_cuda_nodes(request["library"]) and CUDA in ort.get_available_providers()
    providers: list[str] = [CUDA, CPU] if cuda else [CPU]
    for dtype, kind in itertools.product(_TYPES, get_args(op.Kind)):
        model, feeds, exact = _norm_case(kind, dtype)
        open_session = functools.partial(ort.InferenceSession, model, options, providers=providers)
        trial = functools.partial(_compared, open_session, feeds, exact, _MAX_ULP.get(dtype, 1))
        yield f"{kind} {type_name(dtype)} ({providers[0]})", trial


def _norm_case(kind: op.Kind, dtype: int) -> tuple[bytes, dict[str, Array], dict[str, Array]]:
    """Make one norm, its inputs and its exact outputs; rows are even, as CUDA turns no others."""
    random, stored = np.random.default_rng(0), numpy_dtype(dtype)
    spec = op.NormSpec(kind=kind, epsilon=2.0**-16, rotary_dim=40 * (kind == "RotaryRMSNorm"))
    x, second = (random.normal(0, 2, (3, 112)).astype(stored) for _ in range(2))
    x[1, 7] = np.inf
    scale, bias = (random.normal(1, 1, (112,)).astype(stored) for _ in range(2))
    cos, sin = (random.normal(0, 1, (1, spec.rotary_dim)).astype(stored) for _ in range(2))
    more: dict[op.Kind, dict[str, Array]] = {
        "RMSNorm": {},
        "SkipRMSNorm": {"residual": second},
        "GatedRMSNorm": {"gate": second},
        "RotaryRMSNorm": {"cos": cos, "sin": sin},
    }
    feeds = {"x": x, **more[kind], "scale": scale, "bias": bias}
    exact = reference_exact(spec, x, scale, bias, **more[kind])
    outputs = dict(zip(("y", "sum"), exact if isinstance(exact, tuple) else (exact,), strict=False))
    attributes: dict[str, Any] = dict(spec.written())
    graph = helper.make_graph(
        [helper.make_node(kind, [*feeds], [*outputs], domain=op.DOMAIN, **attributes)],
        "norm",
        [helper.make_tensor_value_info(k, dtype, array.shape) for k, array in feeds.items()],
        [helper.make_tensor_value_info(k, dtype, x.shape) for k in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(op.DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model.SerializeToString(), feeds, outputs


def _compared(
    open_session: Callable[[], Any], feeds: dict[str, Array], exact: dict[str, Array], most: float
) -> str:
    session = open_session()
    on_cuda, ulp = CUDA in session.get_providers(), 0.0
    for name, result in run_session(session, feeds).items():
        wide = exact[name].astype(np.float64)
        # Sums have other orders on CUDA: the unit is that of the greatest number of a row.
        row = np.abs(np.nan_to_num(wide, posinf=0, neginf=0)).max(axis=-1, keepdims=True)
        unit = np.broadcast_to(row, wide.shape) if on_cuda else None
        ulp = max(ulp, float(ulp_error(result, wide, unit).max()))
    if not ulp <= most:
        raise ValueError(f"{ulp:g} ulp from the reference")
    return f"{ulp:g} ulp from the reference"
