"""Weights of products in few bits, in blocks, after the norms are one node."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import first_line
from rmsnorm_export.proof.comparison import (
    Prepare,
    WrongError,
    changed_by_others,
    compare_with,
    run_reference,
)
from rmsnorm_export.quantize.products import LEVEL, quantize_products
from rmsnorm_export.quantize.result import QUANTIZED_RTOL, Quantization, Quantize

_BITS = {"int4": 4, "int8": 8}


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """What a quantization costs.

    Attributes:
        compared: in words, or "" where nothing was compared.
        problem: what is more than is allowed, or "".
        unknown: why nothing was compared, or "".
        fails: it is the quantized model that does not run.
    """

    compared: str = ""
    problem: str = ""
    unknown: str = ""
    fails: bool = False


Measure = Callable[[ir.Model], Callable[[ir.Model], Loss]]
"""Runs a model, and returns what compares another one with it."""


def on_random_inputs(kind: Quantize, *, seed: int = 0, prepare: Prepare = lambda _: {}) -> Measure:
    """Return what compares two models on random inputs, all outputs within ``QUANTIZED_RTOL``.

    Args:
        kind: of the quantization.
        seed: of the inputs.
        prepare: turns random inputs into meaningful ones.
    """

    def measure(model: ir.Model) -> Callable[[ir.Model], Loss]:
        reference = run_reference(model, seed=seed, prepare=prepare)

        def compare(quantized: ir.Model) -> Loss:
            try:
                outcome = compare_with(reference, quantized, rtol=QUANTIZED_RTOL[kind])
            except WrongError as error:
                return Loss(problem=f"{error} (random inputs)")
            same = f", {outcome.same} of {outcome.rows} rows keep their largest element"
            words = f"{outcome.words()}{same} (random inputs)" if outcome.outputs else ""
            return Loss(words, unknown=outcome.unknown, fails=outcome.after_fails)

        return compare

    return measure


def quantize(
    model: ir.Model,
    kind: Quantize,
    *,
    measure: Measure | None = None,
    rounded: bool = True,
) -> tuple[ir.Model, Quantization]:
    """Return the model with the weights of its products quantized, and what that costs.

    Activations are rounded to int8 where what that loses, with the weights, is allowed. The model
    is returned where too much is lost without that as well, and says so.

    Args:
        model: whose norms are one node; left as it is.
        kind: int4 or int8: MatMulNBits of as many bits, in blocks with a scale each.
        measure: what compares the two; None: `on_random_inputs`.
        rounded: activations may be rounded.

    Raises:
        InputError: the model has no product, or ONNX Runtime fails to quantize or to run it.
    """
    from onnxscript import optimizer

    counts = (0, 0)

    def change(copy: ir.Model) -> ir.Model:
        nonlocal counts
        with _quiet():
            optimizer.optimize(copy)  # a weight that is computed of others is no constant
            counts = quantize_products(copy, _BITS[kind])
        return copy

    compare = (measure or on_random_inputs(kind))(model)
    try:
        quantized = changed_by_others(model, change)
    except (TypeError, ValueError, RuntimeError) as error:  # of ONNX Runtime
        raise InputError(
            f"ONNX Runtime's quantizer to {kind} fails on this model.",
            found=f"{type(error).__name__}: {first_line(error)}",
            fix="omit --quantize, or update onnxruntime",
        ) from error
    products, kept = counts
    loss = compare(quantized) if rounded else None
    rounds = [node for node in quantized.graph.all_nodes() if LEVEL in node.attributes]
    if loss is None or (loss.problem and rounds):
        for node in rounds:
            node.attributes.pop(LEVEL)
        loss, rounds = compare(quantized), []
    if loss.fails or not products:
        raise InputError(
            f"The model cannot be quantized to {kind}.",
            found=loss.unknown or _no_product(model),
            fix="omit --quantize, or update onnxruntime" if products else "omit --quantize",
        )
    return quantized, Quantization(
        kind=kind,
        products=products,
        activations="in int8" if rounds else "as they are",
        kept=kept,
        bytes_before=_weight_bytes(model),
        bytes_after=_weight_bytes(quantized),
        problem=loss.problem,
        compared=loss.compared,
        not_compared=loss.unknown,
    )


def _no_product(model: ir.Model) -> str:
    reason = "it has no product of a matrix of weights in float32 or float16"
    if any(value.is_initializer() for value in model.graph.inputs):
        reason += "; weights that are inputs as well may be replaced by callers "
        reason += "(onnx_ir's RemoveInitializersFromInputsPass makes them constant)"
    return reason


def _weight_bytes(model: ir.Model) -> int:
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the quantizers from logging, and from configuring the root logger on import."""
    handler, silenced = logging.NullHandler(), logging.root.manager.disable
    logging.root.addHandler(handler)
    logging.disable()
    try:
        yield
    finally:
        logging.disable(silenced)
        logging.root.removeHandler(handler)
