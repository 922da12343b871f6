"""A decoder of any size whose weights are holes in one sparse file: large, yet nothing on disk."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

BFLOAT16 = TensorProto.BFLOAT16


def make_sparse_llm(
    folder: Path,
    layers: int = 126,
    hidden: int = 16384,
    intermediate: int = 53248,
    *,
    value_info: bool = True,
    name: str = "llm.onnx",
    data: str = "llm.data",
) -> Path:
    """Write a bf16 decoder with ``2 * layers + 1`` RMSNorms in the TorchDynamo spelling.

    The defaults have the layers and widths of a 405-billion-parameter model; its 795 GB of external
    weights are one file of ``truncate``, gains included, at increasing offsets. A layer is: norm,
    two projections, residual, norm, gated feed-forward, residual (27 + 4 nodes).

    Args:
        folder: existing folder for both files.
        layers, hidden, intermediate: sizes.
        value_info: write the shape of every intermediate value.
        name, data: file names.

    Returns:
        The path of the model file.
    """
    decoder = _Decoder(hidden, data, value_info)
    decoder.fill(layers, intermediate)
    with (folder / data).open("wb") as file:
        file.truncate(decoder.offset)
    model = helper.make_model(
        decoder.graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]
    )
    (folder / name).write_bytes(model.SerializeToString())
    return folder / name


def norm_count(layers: int) -> int:
    """RMSNorms in a decoder of ``make_sparse_llm``."""
    return 2 * layers + 1


class _Decoder:
    def __init__(self, hidden: int, data: str, value_info: bool) -> None:
        self.hidden, self.data, self.value_info, self.offset = hidden, data, value_info, 0
        self.graph = onnx.GraphProto(name="decoder")

    def fill(self, layers: int, intermediate: int) -> None:
        constants = {"two": np.float32(2), "axes": np.int64([-1]), "epsilon": np.float32(1e-5)}
        for key, constant in constants.items():
            tensor = onnx.numpy_helper.from_array(np.asarray(constant), key)
            self.graph.initializer.append(tensor)
        self.graph.input.append(self._info("x", BFLOAT16, self.hidden))
        value = "x"
        for index in range(layers):
            value = self._layer(value, f"layers.{index}", intermediate)
        value = self._norm(value, "norm")
        del self.graph.value_info[-1:]
        self.graph.output.append(self._info(value, BFLOAT16, self.hidden))

    def _layer(self, x: str, name: str, intermediate: int) -> str:
        hidden = self.hidden
        normal = self._norm(x, f"{name}.input_norm")
        mixed = self._linear(normal, f"{name}.attention.q", hidden, hidden)
        mixed = self._linear(mixed, f"{name}.attention.o", hidden, hidden)
        x = self._node("Add", [x, mixed], f"{name}.residual_1", hidden)
        normal = self._norm(x, f"{name}.post_norm")
        gate = self._linear(normal, f"{name}.mlp.gate", hidden, intermediate)
        up = self._linear(normal, f"{name}.mlp.up", hidden, intermediate)
        sigmoid = self._node("Sigmoid", [gate], f"{name}.mlp.sigmoid", intermediate)
        silu = self._node("Mul", [gate, sigmoid], f"{name}.mlp.silu", intermediate)
        product = self._node("Mul", [silu, up], f"{name}.mlp.product", intermediate)
        down = self._linear(product, f"{name}.mlp.down", intermediate, hidden)
        return self._node("Add", [x, down], f"{name}.residual_2", hidden)

    def _norm(self, x: str, name: str) -> str:
        """f32 inside, rounded to bf16, then scaled: the LLaMA order."""
        single = TensorProto.FLOAT
        wide = self._node("Cast", [x], f"{name}.wide", self.hidden, single, to=single)
        square = self._node("Pow", [wide, "two"], f"{name}.square", self.hidden, single)
        mean = self._node("ReduceMean", [square, "axes"], f"{name}.mean", 1, single, keepdims=1)
        stable = self._node("Add", [mean, "epsilon"], f"{name}.stable", 1, single)
        root = self._node("Sqrt", [stable], f"{name}.root", 1, single)
        inverse = self._node("Reciprocal", [root], f"{name}.inverse", 1, single)
        normal = self._node("Mul", [wide, inverse], f"{name}.normal", self.hidden, single)
        narrow = self._node("Cast", [normal], f"{name}.narrow", self.hidden, to=BFLOAT16)
        gain = self._weight(f"{name}.weight", [self.hidden])
        return self._node("Mul", [gain, narrow], name, self.hidden)

    def _linear(self, x: str, name: str, rows: int, columns: int) -> str:
        weight = self._weight(f"{name}.weight", [rows, columns])
        return self._node("MatMul", [x, weight], name, columns)

    def _weight(self, name: str, dims: list[int]) -> str:
        length = 2 * math.prod(dims)
        tensor = self.graph.initializer.add(name=name, data_type=BFLOAT16, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": self.data, "offset": self.offset, "length": length}.items():
            tensor.external_data.add(key=key, value=str(value))
        self.offset += length
        return name

    def _node(
        self,
        op: str,
        inputs: list[str],
        output: str,
        width: int,
        dtype: int = BFLOAT16,
        **attributes: int,
    ) -> str:
        self.graph.node.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        if self.value_info:
            self.graph.value_info.append(self._info(output, dtype, width))
        return output

    @staticmethod
    def _info(name: str, dtype: int, width: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, ["batch", "sequence", width])
