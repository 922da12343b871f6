"""The models of the net, by name: generated, hostile, collected from tests, and exported."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec

TESTS = Path(__file__).parents[2]
COLLECTED = Path(__file__).parent / "collected.tar.xz"
DRAWN = 200
"""Norms with every option drawn at once, beside those that differ in one."""

ENDLESS = "functions_that_call_functions_are_walked_once"
"""Collected models that the target onnx, which inlines functions, makes exponentially larger."""

FOLDED = "ConditionalDetrFrozenBatchNorm2d"
"""A norm that the exporter computes: its last bits are those of one run."""

for _folder in (TESTS, TESTS / "lower"):  # the tests import one another from there
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))


@dataclasses.dataclass(frozen=True)
class Model:
    """A source of ``optimize``.

    Attributes:
        name: unique, ``PART/CASE``.
        source: what ``optimize`` is given.
        data: the bytes that say whether it is the same source.
        options: of every run.
    """

    name: str
    source: Any
    data: bytes
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def models() -> Iterator[Model]:
    """Yield all but the exported models; hostile files exist until the next one is asked for."""
    for name, proto in itertools.chain(_spellings(), _look_alikes(), _lowered()):
        yield _of_proto(name, proto)
    yield from _collected()
    yield from _hostile()


def _of_proto(name: str, proto: onnx.ModelProto, **options: Any) -> Model:
    return Model(name, proto, proto.SerializeToString(deterministic=True), options)


def _spellings() -> Iterator[tuple[str, onnx.ModelProto]]:
    from spellings.choices import FRAME_OPTIONS, SPELLING_OPTIONS, Frame, Spelling, single
    from spellings.place import build

    for option, values in {**FRAME_OPTIONS, **SPELLING_OPTIONS}.items():
        for value in values:
            label = "+".join(sorted(value)) or "none" if isinstance(value, frozenset) else value
            spelling, frame = single(option, value)
            yield f"spelling/{option}={label}", build(spelling, frame).model
            if option == "dtype" or frame.dtype != "float32":
                continue
            if option != "rounding":
                spelling = dataclasses.replace(spelling, rounding="llama")
            half = dataclasses.replace(frame, dtype="float16")
            yield f"spelling/{option}={label} f16", build(spelling, half).model
    draw = random.Random(32)

    def drawn(options: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        return {name: draw.choice(values) for name, values in options.items()}

    for number in range(DRAWN):
        chain = [Spelling(**drawn(SPELLING_OPTIONS)) for _ in range(1 + number % 3)]
        yield f"drawn/{number}", build(chain, Frame(**drawn(FRAME_OPTIONS), seed=number)).model


def _look_alikes() -> Iterator[tuple[str, onnx.ModelProto]]:
    from spellings.look_alikes import LOOK_ALIKES

    for name, look_alike in LOOK_ALIKES.items():
        yield f"alike/{name}", look_alike.build().model
        yield f"alike/{name} 23", look_alike.build(23, "node", value_infos=False).model


def _lowered() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the source graphs of the lowerings, in a spread of types and forms."""
    from source_graphs import Source, build

    gain = np.linspace(0.5, 1.5, 24)
    forms: dict[str, dict[str, Any]] = {
        "weightless": {},
        "gain": {"gain": gain},
        "gain f32": {"gain": gain, "gain_dtype": FLOAT},
        "bias": {"gain": gain, "bias": gain - 1},
        "opset 17": {"gain": gain, "opset": 17},
    }
    types = {"f32": FLOAT, "f16": FLOAT16, "bf16": BFLOAT16, "f64": DOUBLE}
    for (kind, dtype), (form, fields), residual in itertools.product(
        types.items(), forms.items(), (False, True)
    ):
        for way in ("plain", "late", "rstd") if dtype in (FLOAT16, BFLOAT16) else ("plain",):
            stash, late, rstd = DOUBLE if dtype == DOUBLE else FLOAT, way == "late", way == "rstd"
            spec = NormSpec(epsilon=1e-3, stash_type=stash, scale_before_cast=late, round_rstd=rstd)
            source = Source(dtype=dtype, shape=(2, 3, 24), spec=spec, residual=residual, **fields)
            name = f"lower/{kind} {form} {way}{' residual' if residual else ''}"
            yield name, ir.to_proto(build(source, symbolic=way != "plain").model)


def _collected() -> Iterator[Model]:
    """Yield what the tests of one day gave to ``optimize``: a PAX archive, options as comments."""
    with tarfile.open(COLLECTED, "r:xz") as archive:
        for member in archive:
            if ENDLESS in member.name:
                continue
            options = json.loads(member.pax_headers["comment"])
            if "constant_initializers" in options:  # which optimize had that day
                continue
            stream = archive.extractfile(member)
            assert stream is not None
            yield _of_proto(member.name, onnx.load_from_string(stream.read()), **options)


def _hostile() -> Iterator[Model]:
    from hostile_models import HOSTILE

    for name, case in HOSTILE.items():
        with tempfile.TemporaryDirectory() as folder:
            path = case.make(Path(folder))
            yield Model(f"hostile/{name}", path, name.encode())


def exports() -> Iterator[Model]:
    """Yield the exports that are quick to make: norm classes, and a few architectures."""
    from tests.tools.corpus import architectures, exporters

    for dtype, exporter in (("float32", "torchscript17"), ("float16", "torchscript17")):
        for export in exporters.norm_exports(only=f"-{dtype}-{exporter}"):
            if export.path is not None and not export.key.startswith(FOLDED):
                yield _of_proto(f"norm/{export.key}", without_paths(onnx.load(export.path)))
    for name, dtype in itertools.product(("llama", "gemma3", "qwen3"), architectures.TYPES):
        export = architectures.export_architecture(name, dtype)
        if export.path is not None:
            yield _of_proto(f"architecture/{export.key}", without_paths(onnx.load(export.path)))


def without_paths(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Remove what an exporter noted of its machine and process."""
    for part in (proto.graph, *proto.functions):
        for node in part.node:
            node.doc_string = ""
            props = {p.key: re.sub(" at 0x[0-9a-f]+", "", p.value) for p in node.metadata_props}
            props.pop("pkg.torch.onnx.stack_trace", None)
            onnx.helper.set_model_props(node, props)
    return proto
