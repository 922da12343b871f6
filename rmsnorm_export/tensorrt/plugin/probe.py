"""A library at work in a runtime, in the process that ``check`` starts."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping

import numpy as np
import onnx.parser

from rmsnorm_export.lower.plugin import creator_names
from rmsnorm_export.op import spec as op
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.printable import one_line
from rmsnorm_export.runtime.metrics import ulp_error
from rmsnorm_export.runtime.session import (
    onnxruntime,
    place_of_kernels,
    run_session,
    session_options,
)
from rmsnorm_export.runtime.support import CPU, CUDA
from rmsnorm_export.system.libraries import loadable

_NORM = f"""
<ir_version: 8, opset_import: ["": 17, "{op.DOMAIN}": 1]>
norm (float[3, 112] x, float[112] scale) => (float[3, 112] y) {{
    y = {op.DOMAIN}.RMSNorm <epsilon = 1e-5> (x, scale)
}}"""
_MAX_ULP = 3
"""From the reference."""


def probe(request: Mapping[str, str]) -> dict[str, object]:
    """Load a library as programs do that use the runtime, and try it.

    Returns:
        Whether it has ``passed``, and the ``detail``: what was found, or what the runtime says.
    """
    trial = _onnxruntime if request["style"] == "register" else _tensorrt
    try:
        return {"passed": True, "detail": trial(request)}
    except Exception as error:
        return {"passed": False, "detail": one_line(f"{type(error).__name__}: {error}", 600)}


def _tensorrt(request: Mapping[str, str]) -> str:
    trt = importlib.import_module(request["runtime"])
    logger = trt.Logger(trt.Logger.ERROR)
    registry, library = trt.get_plugin_registry(), loadable(request["library"])
    if request["style"] == "dlopen":
        ctypes.CDLL(library)
    elif registry.load_library(library) is None:
        raise ValueError("the registry's load_library returned nothing")
    names = creator_names()
    identity = op.PLUGIN_VERSION, op.PLUGIN_NAMESPACE
    if missing := sorted(name for name in names if registry.get_creator(name, *identity) is None):
        raise ValueError(f"the registry has no creator of {', '.join(missing)}")
    del logger  # it has to live until here
    return f"{len(names)} creators are registered"


def _onnxruntime(request: Mapping[str, str]) -> str:
    library, random = request["library"], np.random.default_rng(0)
    x, scale = (random.normal(1, 2, shape).astype(np.float32) for shape in ((3, 112), (112,)))
    providers = [CUDA, CPU] if place_of_kernels(library)[0] == "cuda" else [CPU]
    model = onnx.parser.parse_model(_NORM).SerializeToString()
    options = session_options(optimize=True, threads=1, kernels=library)
    session = onnxruntime().InferenceSession(model, options, providers=providers)
    result = run_session(session, {"x": x, "scale": scale})["y"]
    exact = np.asarray(reference_exact(op.NormSpec(epsilon=1e-5), x, scale), np.float64)
    device = session.get_providers()[0]
    # Sums have other orders on CUDA: the unit is that of the greatest number of a row.
    unit = exact if device == CPU else exact * 0 + np.abs(exact).max(axis=-1, keepdims=True)
    ulp = float(ulp_error(result, exact, unit).max())
    if not ulp <= _MAX_ULP:
        raise ValueError(f"a norm in float32 ({device}) is {ulp:g} ulp from the reference")
    return f"a norm in float32 ({device}) is {ulp:g} ulp from the reference"
