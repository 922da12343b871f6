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
from rmsnorm_export.op.dtypes import Array, numpy_dtype, type_name
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import (
    BFLOAT16,
    DOMAIN,
    DOUBLE,
    FLOAT,
    FLOAT16,
    PLUGIN_NAMESPACE,
    PLUGIN_VERSION,
    Kind,
    NormSpec,
)
from rmsnorm_export.runtime.metrics import ulp_distance
from rmsnorm_export.runtime.session import has_cuda_nodes, onnxruntime, run_session
from rmsnorm_export.runtime.support import CPU, CUDA
from rmsnorm_export.tensorrt.plugin.libraries import session_options

_TYPES = (FLOAT, FLOAT16, BFLOAT16, DOUBLE)
_MAX_ULP = {FLOAT: 3, DOUBLE: 8}
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
                checks.append({"name": name, "passed": False, "detail": _why(error)})
    except Exception as error:
        checks.append({"name": "load", "passed": False, "detail": _why(error)})
    return {"checks": checks}


def _why(error: Exception) -> str:
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def _functions(request: Mapping[str, str]) -> Iterator[_Trial]:
    """Load the C functions as PyTorch's operators do, and ask for every operator."""
    functions = abi.functions(Path(request["library"]))

    def ask(kind: Kind) -> str:
        half = abi.TYPES["float16"]
        problem = abi.Problem(n=256, x=half, scale=half, bias=half, y=half, has_scale=True)
        problem.set_norm(NormSpec(kind=kind))
        if refused := functions.rmsnorm_refusal(ctypes.byref(problem)):
            raise ValueError(refused.decode())
        return ""

    for kind in get_args(Kind):
        yield kind, functools.partial(ask, kind)


def _creators(request: Mapping[str, str]) -> Iterator[_Trial]:
    """Load the library as programs do that use this runtime, and use its creators from Python."""
    trt = importlib.import_module(request["runtime"])
    logger = trt.Logger(trt.Logger.ERROR)
    registry = trt.get_plugin_registry()
    if request["style"] == "load_library":
        loaded = registry.load_library(request["library"])
    else:
        loaded = ctypes.CDLL(request["library"])
    if loaded is None:
        raise ValueError("the registry's load_library returned nothing")

    def creator(kind: Kind, name: str) -> str:
        found = registry.get_creator(name, PLUGIN_VERSION, PLUGIN_NAMESPACE)
        if found is None:
            raise ValueError(f"no creator is of the namespace {PLUGIN_NAMESPACE}")
        values: dict[str, Any] = dict(NormSpec(kind=kind).attributes())
        if name.startswith("Quantized"):
            values["quantize"] = "int8_per_row"
        fields = tuple(field.name for field in found.field_names)
        if fields != tuple(values):
            raise ValueError(f"its fields are {fields}, the attributes {tuple(values)}")
        made = create_plugin(trt, found, values)
        if made is None:
            raise ValueError("it refuses the operator's defaults")
        core = made.get_capability_interface(trt.PluginCapabilityType.CORE)
        if (core.plugin_name, core.plugin_namespace) != (name, PLUGIN_NAMESPACE):
            raise ValueError(f"the plugin says that it is {core.plugin_name}")
        for wrong in ({"epsilon": -1.0}, {"axis": 0}, {"epsilon": 1}, {"of_the_future": 0}):
            if create_plugin(trt, found, values | wrong) is not None:
                raise ValueError(f"it accepts {wrong}")
        return f"{len(fields)} fields, those of the operator"

    for kind in get_args(Kind):
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
    for dtype, kind in itertools.product(_TYPES, get_args(Kind)):
        name = f"{kind} {type_name(dtype)} ({providers[0]})"
        yield name, functools.partial(_compared, ort, options, providers, kind, dtype)


def _compared(ort: Any, options: Any, providers: list[str], kind: Kind, dtype: int) -> str:
    """Run one norm against the reference; rows of even length, as CUDA turns no others."""
    random, stored = np.random.default_rng(0), numpy_dtype(dtype)
    spec = NormSpec(kind=kind, epsilon=2.0**-16, rotary_dim=40 * (kind == "RotaryRMSNorm"))
    x, second = (random.normal(0, 2, (3, 112)).astype(stored) for _ in range(2))
    x[1, 7] = np.inf
    scale, bias = (random.normal(1, 1, (112,)).astype(stored) for _ in range(2))
    cos, sin = (random.normal(0, 1, (1, spec.rotary_dim)).astype(stored) for _ in range(2))
    more: dict[Kind, dict[str, Array]] = {
        "RMSNorm": {},
        "SkipRMSNorm": {"residual": second},
        "GatedRMSNorm": {"gate": second},
        "RotaryRMSNorm": {"cos": cos, "sin": sin},
    }
    named = more[kind]
    feeds = {"x": x, **named, "scale": scale, "bias": bias}
    outputs = ("y", "sum") if kind == "SkipRMSNorm" else ("y",)
    attributes: dict[str, Any] = dict(spec.attributes())
    node = helper.make_node(kind, [*feeds], outputs, domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node],
        "norm",
        [helper.make_tensor_value_info(k, dtype, array.shape) for k, array in feeds.items()],
        [helper.make_tensor_value_info(name, dtype, x.shape) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    results = run_session(session, feeds)
    exact = reference_exact(spec, x, scale, bias, **named)
    pair = exact if isinstance(exact, tuple) else (exact,)
    ulp = max(_ulp(a, b, providers[0]) for a, b in zip(results.values(), pair, strict=True))
    if not ulp <= _MAX_ULP.get(dtype, 1):
        raise ValueError(f"{ulp:g} ulp from the reference")
    return f"{ulp:g} ulp from the reference"


def _ulp(result: Array, exact: Array, provider: str) -> float:
    """In ulp of the result; on CUDA of the greatest of its row, as sums there have other orders."""
    apart = ulp_distance(result, exact)
    if provider == CUDA:
        wide = exact.astype(np.float64)
        greatest = np.abs(np.nan_to_num(wide, posinf=0, neginf=0)).max(axis=-1, keepdims=True)
        unit = np.spacing(greatest.astype(exact.dtype)).astype(np.float64)
        apart = np.where(np.isfinite(wide), np.abs(result.astype(np.float64) - wide) / unit, apart)
    return float(apart.max())
