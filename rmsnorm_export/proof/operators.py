"""NumPy kernels of the ONNX operators that norms are made of, rounded once per operator.

Half types are computed in float32 and rounded once: 24 >= 2 * 11 + 2 bits make that the correctly
rounded result of +, -, *, / and the square root (Figueroa 1995). A reduction is one operator: its
sum is not rounded on the way. Whatever is not here goes to ``onnx.reference``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx

from rmsnorm_export.errors import InputError
from rmsnorm_export.op.dtypes import Array, element_type
from rmsnorm_export.op.native import (
    MICROSOFT_DOMAIN,
    RMS_NORMALIZATION,
    SIMPLIFIED,
    SKIP_SIMPLIFIED,
)
from rmsnorm_export.op.reference import reference_exact, reference_float64
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.recognize.native import standard_spec
from rmsnorm_export.runtime.metrics import BFLOAT16_DTYPE

Attributes: TypeAlias = Mapping[str, Any]
Inputs: TypeAlias = Sequence[Array | None]
Kernel: TypeAlias = Callable[[Inputs, Attributes], Sequence[Array | None]]

_HALF = (np.dtype(np.float16), BFLOAT16_DTYPE)


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return ``array`` in ``dtype``, rounded to nearest even; FP8 saturates, as in a Cast."""
    if dtype == ml_dtypes.float8_e4m3fn:
        array = np.clip(array, -448.0, 448.0)
    return array.astype(dtype, copy=False)


def kernel_of(domain: str, op_type: str) -> Kernel | None:
    """Return the kernel of an operator, None where there is none here."""
    kernels = {} if domain else _KERNELS
    return _skip_rms_normalization if (domain, op_type) == _SKIP else kernels.get(op_type)


def run_reference(
    node: onnx.NodeProto, opset: int, inputs: Mapping[str, Array]
) -> list[Array | None]:
    """Run one node of the default domain by ``onnx.reference``; None for an output without name.

    Raises:
        InputError: ``onnx.reference`` does not know the operator or cannot run it so.
    """
    try:
        evaluator = _evaluator(node.SerializeToString(deterministic=True), opset)
        arrays = iter(evaluator.run(None, dict(inputs)))
        return [next(arrays) if name else None for name in node.output]
    # Kernels there raise whatever their NumPy code raises.
    except Exception as error:
        raise cannot_evaluate(
            node.op_type,
            f"{type(error).__name__}: {error}",
            "verify the model as a whole in ONNX Runtime instead",
        ) from error


@functools.lru_cache(64)
def _evaluator(content: bytes, opset: int) -> Any:
    from onnx.reference import ReferenceEvaluator

    node = onnx.NodeProto.FromString(content)
    inputs, outputs = (
        [onnx.helper.make_empty_tensor_value_info(name) for name in names if name]
        for names in (node.input, node.output)
    )
    graph = onnx.helper.make_graph([node], "node", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model)


def cannot_evaluate(operator: str, found: str, fix: str) -> InputError:
    """Return the error of an operator that NumPy does not compute."""
    return InputError(f"The operator {operator} cannot be evaluated.", found=found, fix=fix)


def _present(array: Array | None) -> Array:
    if array is None:
        raise cannot_evaluate("of a node", "an omitted input", "give all inputs that ONNX asks for")
    return array


def _wide(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype in _HALF else array


def _elementwise(function: Callable[..., Array]) -> Kernel:
    """Make a kernel of equal input types; the result has the type of the first input."""

    def kernel(inputs: Inputs, _: Attributes) -> Sequence[Array]:
        arrays = [_present(array) for array in inputs]
        result = function(*(_wide(array) for array in arrays))
        return [cast(np.asarray(result), arrays[0].dtype)]

    return kernel


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":  # ONNX truncates towards zero, NumPy's // does not
        return np.asarray(np.trunc(np.true_divide(a, b)).astype(a.dtype))
    return np.asarray(a / b)


_POWERS: dict[float, Callable[[Array], Array]] = {
    2.0: np.square,
    0.5: np.sqrt,
    -0.5: lambda array: np.asarray(1 / np.sqrt(array)),
}


def _power(inputs: Inputs, _: Attributes) -> Sequence[Array]:
    base, exponent = _present(inputs[0]), _present(inputs[1])
    kind = np.float64 if base.dtype == np.float64 else np.float32
    power = None
    if exponent.size == 1 and exponent.ndim <= base.ndim:
        power = _POWERS.get(float(exponent.reshape(())))
    wide = _wide(base)
    result = np.power(wide, exponent.astype(kind)) if power is None else power(wide)
    return [cast(np.asarray(result), base.dtype)]


def _sigmoid(z: Array) -> Array:
    # exp of a number <= 0 only: no overflow, full relative accuracy on both sides.
    small = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, 1 / (1 + small), small / (1 + small)).astype(z.dtype))


def _reduction(function: Callable[[Array, tuple[int, ...] | None, bool], Array]) -> Kernel:
    """Make a kernel that rounds once: as in the operator, no sum is rounded on the way."""

    def kernel(inputs: Inputs, attributes: Attributes) -> Sequence[Array]:
        array, axes = _present(inputs[0]), attributes.get("axes")
        if axes is None and len(inputs) > 1 and inputs[1] is not None:
            axes = inputs[1].reshape(-1).tolist()
        over: tuple[int, ...] | None = None
        if axes:
            over = tuple(int(axis) % array.ndim for axis in axes)
        elif attributes.get("noop_with_empty_axes", 0):
            over = ()
        keep = bool(attributes.get("keepdims", 1))
        wide = array if array.dtype.kind in "iu" else array.astype(np.float64)
        return [cast(np.asarray(function(wide, over, keep)), array.dtype)]

    return kernel


def _square_sum(array: Array, axes: tuple[int, ...] | None, keep: bool) -> Array:
    return np.asarray(np.square(array).sum(axis=axes, keepdims=keep))


def _lp_normalization(inputs: Inputs, attributes: Attributes) -> Sequence[Array]:
    array = _present(inputs[0])
    wide, axis = _wide(array), int(attributes.get("axis", -1))
    if int(attributes.get("p", 2)) == 1:
        norm = np.abs(wide).sum(axis=axis, keepdims=True)
    else:
        norm = np.sqrt(_square_sum(wide, (axis,), True))
    # A row of zeros stays zero: observed in ONNX Runtime 1.31.
    return [cast(np.where(norm == 0, 0, wide / norm).astype(wide.dtype), array.dtype)]


def _norm(spec: NormSpec, x: Array, scale: Array | None) -> Array:
    """Evaluate the operator's reference; a float64 row has nothing to round."""
    if x.dtype == np.float64:
        spec = dataclasses.replace(spec, epsilon=float(np.float32(spec.epsilon)))
        return np.asarray(reference_float64(spec, x, scale))
    return np.asarray(reference_exact(spec, x, scale))


def _rms_normalization(op_type: str) -> Kernel:
    """Make the kernel of RMSNormalization or SimplifiedLayerNormalization."""

    def kernel(inputs: Inputs, attributes: Attributes) -> Sequence[Array]:
        x, scale = _present(inputs[0]), _present(inputs[1])
        spec = standard_spec(op_type, attributes, x.ndim, element_type(x.dtype))
        if scale.shape != x.shape[spec.axis :] and scale.size > 1:
            # ai.onnx allows any scale that broadcasts; the reference wants one element per feature.
            y = _norm(spec, x, None)
            return [cast(_wide(y) * _wide(scale), y.dtype)]
        return [_norm(spec, x, scale)]

    return kernel


def _skip_rms_normalization(inputs: Inputs, attributes: Attributes) -> Sequence[Array | None]:
    """The row is the float32 sum, not yet rounded; only the fourth output is the rounded sum."""
    x, skip, scale = (_present(array) for array in inputs[:3])
    bias = inputs[3] if len(inputs) > 3 else None
    total = _wide(x) + _wide(skip)
    if bias is not None:
        total = total + _wide(bias)
    spec = NormSpec(epsilon=float(attributes.get("epsilon", 1e-12)), axis=-1)
    return [cast(_norm(spec, total, _wide(scale)), x.dtype), None, None, cast(total, x.dtype)]


def _scaled(op_type: str) -> Kernel:
    """Make the kernel of QuantizeLinear or DequantizeLinear, whose older versions differ in the
    types that they take alone."""

    def kernel(inputs: Inputs, attributes: Attributes) -> Sequence[Array | None]:
        feeds = {f"i{index}": _present(array) for index, array in enumerate(inputs)}
        node = onnx.helper.make_node(op_type, list(feeds), ["y"], **attributes)
        return run_reference(node, 21, feeds)

    return kernel


def _cumulative_sum(inputs: Inputs, attributes: Attributes) -> Sequence[Array | None]:
    """ONNX Runtime takes an axis in a vector as well, which ``onnx.reference`` refuses."""
    feeds = {"x": _present(inputs[0]), "axis": _present(inputs[1]).reshape(())}
    return run_reference(onnx.helper.make_node("CumSum", [*feeds], ["y"], **attributes), 14, feeds)


def _compress(inputs: Inputs, attributes: Attributes) -> Sequence[Array]:
    array, condition = (_present(one) for one in inputs)
    return [np.compress(condition, array, attributes.get("axis"))]


_SKIP = (MICROSOFT_DOMAIN, SKIP_SIMPLIFIED)
_KERNELS: dict[str, Kernel] = {
    "Add": _elementwise(np.add),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "Div": _elementwise(_divide),
    "Sqrt": _elementwise(np.sqrt),
    "Reciprocal": _elementwise(np.reciprocal),
    "Sigmoid": _elementwise(_sigmoid),
    "Pow": _power,
    "ReduceMean": _reduction(lambda a, axes, keep: a.mean(axis=axes, keepdims=keep)),
    "ReduceSum": _reduction(lambda a, axes, keep: a.sum(axis=axes, keepdims=keep)),
    "ReduceSumSquare": _reduction(_square_sum),
    "ReduceL2": _reduction(lambda a, axes, keep: np.sqrt(_square_sum(a, axes, keep))),
    **{op_type: _scaled(op_type) for op_type in ("QuantizeLinear", "DequantizeLinear")},
    "CumSum": _cumulative_sum,
    "Compress": _compress,
    "LpNormalization": _lp_normalization,
    **{op_type: _rms_normalization(op_type) for op_type in (RMS_NORMALIZATION, SIMPLIFIED)},
}
