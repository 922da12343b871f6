"""What is mutated: exports of the norm classes of transformers and torch, and any folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

import rmsnorm_export as rx
from tests.tools.fuzz.feeds import signature_of
from tests.tools.fuzz.intervals import Array
from tests.tools.fuzz.mutants import Seed


def corpus_seeds(only: str = "") -> Iterator[Seed]:
    """Every norm class, RMSNorm or not, by three exporters in three types; made
    when first asked for, which needs torch and transformers."""
    from tests.tools.corpus.exporters import norm_exports

    for export in norm_exports(only=only, rmsnorm=None):
        if export.path is None:
            continue
        model = onnx.load(export.path)
        names = [value.name for value in model.graph.input]
        examples = dict(zip(names, export.inputs(), strict=True))
        yield Seed(export.key, model, signature_of(model, examples), export.expected)
        if export.dtype == "float32" and export.norm.is_rmsnorm:
            yield in_float64(export.key, model, examples)


def architecture_seeds(names: Sequence[str]) -> Iterator[Seed]:
    """Tiny whole models of the corpus (llama, mamba2, ...) in two types, by TorchDynamo and by the
    exporter of transformers. Intervals grow with every layer: float64 tells most here."""
    from tests.tools.corpus import architectures

    for name in names:
        arch = architectures.architecture(name)
        for dtype in ("float32", "float16"):
            export = architectures.export_architecture(arch, dtype)
            examples = export.inputs()
            for by, path in (
                ("dynamo", export.path),
                ("transformers", _by_transformers(arch, dtype)),
            ):
                if path is None:
                    continue
                model = onnx.load(path)
                given = {value.name: examples["input_ids"] for value in model.graph.input}
                signature = signature_of(model, given)
                yield Seed(f"{name}-{dtype}-{by}", model, signature, export.expected_norms)


def _by_transformers(arch: Any, dtype: str) -> Path | None:
    """None where that exporter is not installed, or cannot."""
    from tests.tools.corpus import cache
    from tests.tools.lib.quiet import quiet

    def fill(folder: Path) -> None:
        from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

        module, (tokens,) = arch.make(dtype)
        config = OnnxConfig(dynamic=True, opset_version=18)
        try:
            with quiet():
                made = OnnxExporter().export(module.model, {"input_ids": tokens}, config=config)
            onnx.save(ir.to_proto(made.program), folder / "model.onnx")
        except Exception as error:  # the reason is the entry
            (folder / "reason.txt").write_text(f"{type(error).__name__}: {error}")

    key = f"{arch.name} {dtype} {cache.source_hash('architectures', 'build')}"
    try:
        path = cache.entry("transformers", f"{arch.name}-{dtype}", key, fill) / "model.onnx"
    except ImportError:
        return None
    return path if path.exists() else None


def in_float64(name: str, model: onnx.ModelProto, examples: dict[str, Array]) -> Seed:
    """A float32 export with every float32 in it a float64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    graph = wide.graph
    del graph.value_info[:]
    float32, float64 = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE

    def widened(tensor: onnx.TensorProto) -> onnx.TensorProto:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        return onnx.numpy_helper.from_array(array, tensor.name)

    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == float32:
            value.type.tensor_type.elem_type = float64
    for tensor in graph.initializer:
        if tensor.data_type == float32:
            tensor.CopyFrom(widened(tensor))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.t.data_type == float32:
                attribute.t.CopyFrom(widened(attribute.t))
            elif attribute.name == "value_float":
                tensor = helper.make_tensor("", float64, [], [attribute.f])
                attribute.CopyFrom(helper.make_attribute("value", tensor))
            elif attribute.name in ("to", "stash_type") and attribute.i == float32:
                attribute.i = float64
    arrays = {k: a.astype(np.float64) if a.dtype == np.float32 else a for k, a in examples.items()}
    return Seed(f"{name} in float64", wide, signature_of(wide, arrays), 1)


def folder_seeds(folder: Path) -> Iterator[Seed]:
    """Every .onnx file of a folder; its inputs have sizes that the file says, or 2 and 3."""
    for path in sorted(folder.glob("*.onnx")):
        model = onnx.load(path)
        report = rx.optimize(model, numerics="upcast").report
        norms = len(report.fused) + len(report.kept)
        yield Seed(path.stem, model, signature_of(model, invented(model)), norms)


def invented(model: onnx.ModelProto) -> dict[str, Array]:
    """An example of every input, from the declared type and dimensions alone."""
    stored = {tensor.name for tensor in model.graph.initializer}
    sizes: dict[str, int] = {}
    out = {}
    for value in model.graph.input:
        if value.name in stored:
            continue
        shape = []
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value"):
                shape.append(dim.dim_value)
            else:
                shape.append(sizes.setdefault(dim.dim_param or "", 2 + len(sizes)))
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        out[value.name] = np.ones(shape, kind)
    return out
