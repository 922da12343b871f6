"""The CPU kernels of the operator in ONNX Runtime: found and registered.

The library has the operator's own names, so ONNX Runtime takes it instead of the function bodies of
a ``portable`` file; without it the same file runs its bodies.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from rmsnorm_export.op.dtypes import Array, element_type
from rmsnorm_export.op.native import operator_name
from rmsnorm_export.op.spec import (
    CODE_TYPES,
    DOMAIN,
    FLOAT,
    QUANTIZE,
    NormSpec,
    Quantize,
)
from rmsnorm_export.runtime.session import session_options as plain_options
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.tensorrt.plugin.libraries import onnxruntime_library, open_library


def session_options(
    library: StrPath | None = None,
    *,
    cuda: bool = False,
    threads: int = 0,
    cache: StrPath | None = None,
) -> Any:
    """``onnxruntime.SessionOptions`` with the operator's kernels registered.

    Args:
        library: of ``rx.plugin.build(runtime="onnxruntime")``; None: of the wheel or the build.
        cuda: of None: the library with the CUDA kernels as well, for sessions with
            ``providers=["CUDAExecutionProvider", "CPUExecutionProvider"]``.
        threads: of one operator; 0 lets ONNX Runtime choose.
        cache: folder of the builds; by default that of ``build``.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, is older than 1.17 or cannot load the
            library, or nothing is built.
        InputError: ``library`` is none of ONNX Runtime, changed, or cut short.
    """
    if library is None:
        chosen = onnxruntime_library(cuda=cuda, cache=cache)
    else:
        chosen = open_library(library, "register").path
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
            outputs["scales"] = (FLOAT, (*x.shape[:-1], 1))
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
