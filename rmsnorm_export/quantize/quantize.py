"""Weights of products in few bits, by ONNX Runtime's quantizers, after the norms are one node."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.save import save_model
from rmsnorm_export.printable import first_line
from rmsnorm_export.proof.comparison import (
    Comparison,
    Prepare,
    WrongError,
    changed_by_others,
    compare_with,
    run_reference,
)
from rmsnorm_export.quantize.result import QUANTIZED_RTOL, Quantization, Quantize

_BLOCK = 32
"""Weights that share a scale in int4, as in onnxruntime-genai's builder."""
_BY_INT8 = 4
"""``accuracy_level`` of float32: products of int4 in int8, 1.5 times as fast and no further off. In
float16 ONNX Runtime 1.31 computes wrong numbers by it where its optimizer is off."""
_PRODUCTS = {"int4": "MatMulNBits", "int8": "MatMulInteger"}


def quantize(
    model: ir.Model, kind: Quantize, *, seed: int, prepare: Prepare = lambda _: {}
) -> tuple[ir.Model, Quantization]:
    """Return the model with the weights of its products quantized, and what that costs.

    Model and result are run on the same random inputs; it is returned where it is off by more
    than ``QUANTIZED_RTOL``, too, and says so.

    Args:
        model: whose norms are one node; left as it is.
        kind: int4: MatMulNBits, in blocks of 32 with a scale and a zero point each; int8: weights
            by column and activations as they come.
        seed: of the inputs.
        prepare: turns random inputs into meaningful ones.

    Raises:
        InputError: the quantizer fails, takes no product, or ONNX Runtime does not run the result.
    """
    from onnxscript import optimizer

    def change(copy: ir.Model) -> ir.Model:
        optimizer.optimize(copy)  # the quantizers take no weight that a Transpose reads
        return _quantized(copy, kind)

    quantized = changed_by_others(model, change)
    names = [node.op_type for node in quantized.graph.all_nodes()]
    outcome, problem = Comparison(), ""
    try:
        reference = run_reference(model, seed=seed, prepare=prepare)
        outcome = compare_with(reference, quantized, rtol=QUANTIZED_RTOL[kind])
    except WrongError as error:
        problem = str(error)
    products = names.count(_PRODUCTS[kind])
    if outcome.after_fails or not products:
        raise InputError(
            f"The model cannot be quantized to {kind}.",
            found=outcome.unknown or _no_product(model),
            fix="omit --quantize",
        )
    same = f", {outcome.same} of {outcome.rows} rows keep their largest element"
    return quantized, Quantization(
        kind=kind,
        products=products,
        kept=names.count("MatMul"),
        bytes_before=_weight_bytes(model),
        bytes_after=_weight_bytes(quantized),
        problem=problem,
        compared=outcome.words() and outcome.words() + same,
        not_compared=outcome.unknown,
    )


def _no_product(model: ir.Model) -> str:
    reason = "it has no product of a matrix of weights in float32 (for int4: or half precision)"
    if any(value.is_initializer() for value in model.graph.inputs):
        reason += "; weights that are inputs as well may be replaced by callers "
        reason += "(onnx_ir's RemoveInitializersFromInputsPass makes them constant)"
    return reason


def _quantized(model: ir.Model, kind: Quantize) -> ir.Model:
    """Run the quantizer, which works on files.

    Raises:
        InputError: it fails.
    """
    with tempfile.TemporaryDirectory(prefix="rmsnorm-export-quantize-") as folder, _quiet():
        import onnx
        from onnxruntime.quantization import QuantType, matmul_nbits_quantizer, quantize_dynamic

        source, place = Path(folder, "float.onnx"), Path(folder, "quantized.onnx")
        save_model(model, source)
        types = {value.dtype for value in model.graph.initializers.values()}
        try:
            if kind == "int8":
                quantize_dynamic(
                    source,
                    place,
                    op_types_to_quantize=["MatMul"],
                    weight_type=QuantType.QInt8,
                    per_channel=True,
                    use_external_data_format=True,
                )
            else:
                by_blocks = matmul_nbits_quantizer.MatMulNBitsQuantizer(
                    onnx.load(source),
                    block_size=_BLOCK,
                    is_symmetric=False,
                    accuracy_level=None if ir.DataType.FLOAT16 in types else _BY_INT8,
                )
                by_blocks.model.replace_gemm_with_matmul()  # as that of int8 does
                by_blocks.process()
                by_blocks.model.save_model_to_file(str(place), use_external_data_format=True)
            return ir.external_data.load_to_model(ir.load(place))
        except Exception as error:  # whatever another package raises
            raise InputError(
                f"ONNX Runtime's quantizer to {kind} fails on this model.",
                found=f"{type(error).__name__}: {first_line(error)}",
                fix="omit --quantize, or update onnxruntime",
            ) from error


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
