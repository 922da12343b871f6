"""One node of each operator that is not ONNX's, as ONNX Runtime takes it.

The cases are in ``contrib_cases.json``. An input is written ``f32 2x3x8``, with ``=`` and numbers
where random ones will not do. Behind ``!`` it is a constant, which has no names for its sizes.
``""`` is absent.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

TYPES = {
    "f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32, "i16": np.int16,
    "i8": np.int8, "u8": np.uint8, "u4": ml_dtypes.uint4, "i4": ml_dtypes.int4, "b": np.bool_,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """A node: its operator, inputs, attributes, and how many outputs are named."""

    op: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    outputs: int = 1
    domain: str = "com.microsoft"

    def __str__(self) -> str:
        return f"{self.op}({', '.join(self.inputs)}) {self.attributes or ''}"

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs that are there, by name."""
        rng = np.random.default_rng(0)
        arrays = {}
        for index, text in enumerate(self.inputs):
            if not text:
                continue
            text, _, number = text.removeprefix("!").partition("=")
            kind, *sizes = text.split()
            shape = tuple(map(int, sizes[0].split("x"))) if sizes else ()
            told = [int(part) for part in number.split("+") if part]
            made = np.resize(told, shape) if told else rng.uniform(0, 2, shape)
            arrays[f"i{index}"] = np.asarray(made).astype(TYPES[kind])
        return arrays

    def model(self, *, symbols: bool = False) -> tuple[onnx.ModelProto, dict[str, int]]:
        """The model, and the sizes of the names in it: with ``symbols`` of every size of an input
        that is no constant."""
        sizes: dict[str, int] = {}
        inputs, constants = [], []
        for name, array in self.arrays().items():
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            if self.inputs[int(name[1:])].startswith("!"):
                constants.append(onnx.numpy_helper.from_array(array, name))
                continue
            named = {f"{name}_{axis}": size for axis, size in enumerate(array.shape)}
            sizes |= named
            shape = list(named) if symbols else array.shape
            inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        names = [f"i{index}" if text else "" for index, text in enumerate(self.inputs)]
        outputs = [f"y{index}" for index in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attributes)
        ends = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph([node], "g", inputs, ends, constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(self.domain or "ai.onnx.ml", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), sizes


CASES = [
    Case(**{**row, "inputs": tuple(row["inputs"].split(", "))})
    for row in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
]
