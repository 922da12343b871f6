"""Weights of products in few bits, in blocks, after the norms are one node."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Collection, Iterator

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.options import Progress
from rmsnorm_export.printable import first_line
from rmsnorm_export.proof import comparison
from rmsnorm_export.quantize.left import MOST_TRIALS, Group, Loss, left_out
from rmsnorm_export.quantize.products import quantize_products, weights_of
from rmsnorm_export.quantize.result import QUANTIZED_RTOL, Quantization, Quantize
from rmsnorm_export.runtime.session import LEVEL

_BITS = {"int4": 4, "int8": 8}


Measure = Callable[[ir.Model], Callable[[ir.Model], Loss]]
"""Runs a model, and returns what compares another one with it."""


def on_random_inputs(
    kind: Quantize, *, seed: int = 0, prepare: comparison.Prepare = lambda _: {}
) -> Measure:
    """Return what compares two models on random inputs, all outputs within ``QUANTIZED_RTOL``.

    Args:
        kind: of the quantization.
        seed: of the inputs.
        prepare: turns random inputs into meaningful ones.
    """

    def measure(model: ir.Model) -> Callable[[ir.Model], Loss]:
        reference = comparison.run_reference(model, seed=seed, prepare=prepare)

        def compare(quantized: ir.Model) -> Loss:
            most, problem = QUANTIZED_RTOL[kind], ""
            try:
                outcome = comparison.compare_with(reference, quantized, rtol=math.inf)
            except comparison.WrongError as error:
                return Loss(problem=f"{error} (random inputs)", amount=math.inf)
            same = f", {outcome.same} of {outcome.rows} rows keep their largest element"
            words = f"{outcome.words()}{same} (random inputs)" if outcome.outputs else ""
            if outcome.share > most:
                problem = comparison.too_far(outcome.worst, outcome.share, most)
                words, problem = "", f"{problem} (random inputs)"
            return Loss(words, problem, outcome.unknown, outcome.after_fails, outcome.share)

        return compare

    return measure


def quantize(
    model: ir.Model,
    kind: Quantize,
    *,
    measure: Measure | None = None,
    rounded: bool = True,
    progress: Progress | None = None,
) -> tuple[ir.Model, Quantization]:
    """Return the model with the weights of its products quantized, and what that costs.

    Where that is more than is allowed, weights are left out, those of the largest measured loss
    first; then activations are left as they are. The model is returned where nothing helps as well,
    and says so.

    Args:
        model: whose norms are one node; left as it is.
        kind: int4 or int8: MatMulNBits of as many bits, in blocks with a scale each.
        measure: what compares the two; None: `on_random_inputs`.
        rounded: activations may be rounded to int8.
        progress: called before each comparison.

    Raises:
        InputError: the model has no product, or ONNX Runtime fails to quantize or to run it.
    """
    from onnxscript import optimizer

    def fold(copy: ir.Model) -> ir.Model:
        with _quiet():
            optimizer.optimize(copy)  # a weight that is computed of others is no constant
        return copy

    compare = (measure or on_random_inputs(kind))(model)
    try:
        trials = _Trials(comparison.changed_by_others(model, fold), kind, compare, progress)
        found = trials.allowed(rounds=rounded)
        if found.loss.problem and found.rounds:
            unrounded = trials.allowed(rounds=False)
            found = found if unrounded.loss.problem else unrounded
    except (TypeError, ValueError, RuntimeError) as error:  # of ONNX Runtime
        raise InputError(
            f"ONNX Runtime's quantizer to {kind} fails on this model.",
            found=f"{type(error).__name__}: {first_line(error)}",
            fix="omit --quantize, or update onnxruntime",
        ) from error
    if found.loss.fails or not found.products:
        raise InputError(
            f"The model cannot be quantized to {kind}.",
            found=found.loss.unknown if found.products else _no_product(model),
            fix="omit --quantize, or update onnxruntime" if found.products else "omit --quantize",
        )
    return found.model, Quantization(
        kind=kind,
        products=found.products,
        activations="in int8" if found.rounds else "as they are",
        kept=found.kept,
        bytes_before=_weight_bytes(model),
        bytes_after=_weight_bytes(found.model),
        problem=found.loss.problem,
        compared=found.loss.compared,
        not_compared=found.loss.unknown,
        left={group.words(_transposed(model)): group.loss for group in found.left},
    )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """A quantization, and what it loses."""

    model: ir.Model
    loss: Loss
    products: int
    kept: int
    left: tuple[Group, ...] = ()

    @property
    def rounds(self) -> bool:
        """Return whether activations are rounded, which is not so in float16."""
        return any(LEVEL in node.attributes for node in self.model.graph.all_nodes())


class _Trials:
    """Quantizations of a model."""

    def __init__(
        self,
        model: ir.Model,
        kind: Quantize,
        compare: Callable[[ir.Model], Loss],
        progress: Progress | None,
    ) -> None:
        self._model, self._compare, self._progress = model, compare, progress
        self._bits, self._sizes = _BITS[kind], weights_of(model)
        self._done = 0

    def allowed(self, *, rounds: bool) -> _Trial:
        """Return one that loses what is allowed; where there is none, that of all weights."""
        whole = self._quantized(self._sizes, (), rounds=rounds)
        if whole.loss.allowed or whole.loss.fails:
            return whole

        def lose(names: Collection[str], left: Collection[str]) -> Loss:
            return self._quantized(names, left, rounds=rounds).loss

        groups = tuple(left_out(self._sizes, lose))
        if not groups:
            return whole
        left = {name for group in groups for name in group.names}
        names = [name for name in self._sizes if name not in left]
        return dataclasses.replace(self._quantized(names, left, rounds=rounds), left=groups)

    def _quantized(self, names: Collection[str], left: Collection[str], *, rounds: bool) -> _Trial:
        """Quantize some weights; of int4, those that are left have 8 bits."""
        if self._progress is not None:
            words = f"quantizing to {self._bits} bits, and measuring the loss"
            self._progress(words, min(self._done, MOST_TRIALS), MOST_TRIALS if self._done else 1)
            self._done += 1
        bits = dict.fromkeys(names, self._bits) | dict.fromkeys(left if self._bits == 4 else (), 8)
        counts = (0, 0)

        def change(copy: ir.Model) -> ir.Model:
            nonlocal counts
            with _quiet():
                counts = quantize_products(copy, bits, rounds=rounds)
            return copy

        model = comparison.changed_by_others(self._model, change)
        return _Trial(model, self._compare(model), *counts)


def _transposed(model: ir.Model) -> dict[str, str]:
    """Map the transposes of weights to these, by name: folded, they have names of their own."""
    nodes = (node for node in model.graph.all_nodes() if node.op_type == "Transpose")
    pairs = ((node.outputs[0].name, node.inputs[0]) for node in nodes)
    return {str(name): str(x.name) for name, x in pairs if x is not None and x.is_initializer()}


def _no_product(model: ir.Model) -> str:
    if all(value.producer() is None for value in model.graph.outputs):
        return "the graph computes no output"
    reason = "it has no product of a matrix of weights in float32 or float16"
    if any(node.op_type == "MatMulNBits" for node in model.graph.all_nodes()):
        reason += "; others have weights in few bits already"
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
