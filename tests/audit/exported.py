"""Models without an RMSNorm as exporters write them, and what may become of such files."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import onnx
import torch
import transformers
from onnx import helper, numpy_helper

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64
}  # fmt: skip
_WHISPER = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "max_source_positions": 50, "num_mel_bins": 16, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
_IDS, _IMAGE = torch.arange(12)[None], torch.ones(1, 3, 32, 32)
MODELS: dict[str, tuple[type[Any], Any, tuple[torch.Tensor, ...]]] = {
    "bert": (transformers.BertModel, transformers.BertConfig(vocab_size=60, **SMALL), (_IDS,)),
    "vit": (
        transformers.ViTModel, transformers.ViTConfig(image_size=32, patch_size=8, **SMALL),
        (_IMAGE,),
    ),
    "resnet": (
        transformers.ResNetModel,
        transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1]),
        (_IMAGE,),
    ),
    "whisper": (
        transformers.WhisperModel, transformers.WhisperConfig(**_WHISPER),
        (torch.ones(1, 16, 100), _IDS),
    ),
}  # fmt: skip


class _First(torch.nn.Module):
    """The first output of a model, called by position."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, first: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        more = {} if ids is None else {"decoder_input_ids": ids, "use_cache": False}
        output: torch.Tensor = self.model(first, return_dict=False, **more)[0]
        return output


def exported(name: str, dtype: torch.dtype, *, dynamo: bool) -> onnx.ModelProto:
    """Return the ONNX model of a small model of transformers with random weights."""
    architecture, config, arguments = MODELS[name]
    torch.manual_seed(0)
    module = _First(architecture(config)).eval().to(dtype)
    inputs = tuple(a.to(dtype) if a.is_floating_point() else a for a in arguments)
    if dynamo:
        program = torch.onnx.export(module, inputs, dynamo=True, verbose=False)
        assert program is not None
        return program.model_proto
    file = io.BytesIO()
    torch.onnx.export(module, inputs, file, dynamo=False, opset_version=14)
    return onnx.load_from_string(file.getvalue())


class Changed:
    """A model in which norms and softmax are written out, and values disguised.

    Args:
        model: not changed.
        seed: of what is drawn.
    """

    def __init__(self, model: onnx.ModelProto, seed: int) -> None:
        self.model, self._rng, self._count = onnx.ModelProto(), random.Random(seed), 0
        self.model.CopyFrom(model)
        inferred = onnx.shape_inference.infer_shapes(model).graph
        values = [*inferred.value_info, *inferred.input, *inferred.output]
        self._types = {value.name: value.type.tensor_type.elem_type for value in values}
        self._axes_are_inputs = model.opset_import[0].version >= 18
        nodes = [*self.model.graph.node]
        self._nodes: list[onnx.NodeProto] = []
        for node in nodes:
            self._change(node)
        del self.model.graph.node[:]
        self.model.graph.node.extend(self._nodes)

    def _change(self, node: onnx.NodeProto) -> None:
        if node.op_type == "LayerNormalization":
            self._norm(node)
        elif node.op_type == "Softmax":
            self._softmax(node)
        else:
            disguised = node.op_type in ("Add", "Mul", "Div", "Sub", "Sqrt", "ReduceMean", "MatMul")
            output = node.output[0]
            if disguised and self._types.get(output) in (1, 10) and self._rng.random() < 0.3:
                node.output[0] = f"{output}/before"
                self._types[node.output[0]] = self._types[output]
                self._nodes.append(node)
                self._disguise(node.output[0], output)
            else:
                self._nodes.append(node)

    def _op(self, op: str, *inputs: str | float, output: str = "", **attributes: object) -> str:
        dtype = next(self._types[v] for v in inputs if isinstance(v, str))
        names = [v if isinstance(v, str) else self._constant(v, dtype) for v in inputs]
        self._count += 1
        output = output or f"changed_{self._count}"
        self._types[output] = dtype
        self._nodes.append(helper.make_node(op, names, [output], **attributes))
        return output

    def _constant(self, value: object, dtype: int) -> str:
        self._count += 1
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(dtype))
        name = f"number_{self._count}"
        self.model.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def _reduce(self, op: str, value: str) -> str:
        if not self._axes_are_inputs:
            return self._op(op, value, axes=[-1])
        return self._op(op, value, self._constant([-1], onnx.TensorProto.INT64))

    def _disguise(self, value: str, output: str) -> None:
        way = self._rng.randrange(3)
        if way == 0:
            self._op("Neg", self._op("Neg", value), output=output)
        elif way == 1:
            self._op("Mul", self._op("Mul", value, 4.0), 0.25, output=output)
        else:
            parts = (self._op("Mul", value, number) for number in (3.0, 2.0))
            self._op("Sub", *parts, output=output)

    def _norm(self, node: onnx.NodeProto) -> None:
        x, weight, *bias = node.input
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        centred = self._op("Sub", x, self._reduce("ReduceMean", x))
        square = self._op("Mul", centred, centred) if self._rng.random() < 0.5 else self._op(
            "Exp", self._op("Mul", self._op("Log", self._op("Abs", centred)), 2.0)
        )  # fmt: skip
        stable = self._op("Add", self._reduce("ReduceMean", square), float(epsilon))
        inverse = self._op("Pow", stable, -0.5) if self._rng.random() < 0.5 else self._op(
            "Exp", self._op("Mul", self._op("Log", stable), -0.5)
        )  # fmt: skip
        scaled = self._op("Mul", self._op("Mul", centred, inverse), weight)
        self._op("Add", scaled, *bias or (0.0,), output=node.output[0])

    def _softmax(self, node: onnx.NodeProto) -> None:
        powers = self._op("Exp", node.input[0])
        self._op("Div", powers, self._reduce("ReduceSum", powers), output=node.output[0])
