"""Seeds by hand: norms in the spelling of torch.onnx.export."""

from __future__ import annotations

import numpy as np
import onnx

from tests.tools.fuzz.feeds import signature_of
from tests.tools.fuzz.mutants import Seed

_CHAIN = """
    xf = Cast <to = {stash}> (x)
    two = Constant <value = {wide} {{2.0}}> ()
    square = Pow (xf, two)
    axes = Constant <value_ints = [-1]> ()
    mean = ReduceMean <keepdims = 1> (square, axes)
    epsilon = Constant <value = {wide} {{0.001}}> ()
    sum = Add (mean, epsilon)
    root = Sqrt (sum)
    inverse = Reciprocal (root)
    row = Mul (xf, inverse)
"""
_LLAMA = "rounded = Cast <to = {own}> (row)  y = Mul (weight, rounded)"
_GEMMA = "wf = Cast <to = {stash}> (weight)  scaled = Mul (row, wf)  y = Cast <to = {own}> (scaled)"

ROW = 12


def norm(order: str = "llama", dtype: str = "float16", opset: int = 18) -> Seed:
    """One norm of rows of ``ROW`` elements, batch and sequence dynamic."""
    own = {"float16": 10, "bfloat16": 16, "float": 1, "double": 11}[dtype]
    stash, wide = (11, "double") if dtype == "double" else (1, "float")
    body = (_CHAIN + {"llama": _LLAMA, "gemma": _GEMMA}[order]).format(
        own=own, stash=stash, wide=wide
    )
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
        graph ({dtype}[batch, sequence, {ROW}] x) => ({dtype}[batch, sequence, {ROW}] y)
        {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    kind = onnx.helper.tensor_dtype_to_np_dtype(own)
    weight = np.linspace(0.5, 2.5, ROW).astype(kind)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    return Seed(f"{order} {dtype}", model, signature_of(model), 1)
