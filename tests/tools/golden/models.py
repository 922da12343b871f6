"""The models of the net, by name: generated, hostile, collected from tests, and exported."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec

TESTS = Path(__file__).parents[2]
COLLECTED = Path(__file__).parent / "collected.tar.xz"
DRAWN = Path(__file__).parent / "drawn.json"
"""Norms with every option drawn at once, beside those that differ in one.

A list for each model: what its graph and each of its norms have that is not the default of
``tests/spellings``. Stored, so that a new option or value changes none of them.
"""

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


Makers = Iterator[tuple[str, Callable[[], Any]]]
"""By name what makes a case, with its ``model``, when that is asked for."""


def models(asked: Callable[[str], bool]) -> Iterator[Model]:
    """Yield those whose names are asked for, of all but the exported models.

    Hostile files exist until the next one is asked for.
    """
    for name, make in itertools.chain(_spellings(), _drawn(), _look_alikes(), _lowered()):
        if asked(name):
            model = make().model
            yield _of_proto(name, ir.to_proto(model) if isinstance(model, ir.Model) else model)
    yield from _collected(asked)
    yield from _hostile(asked)


def _of_proto(name: str, proto: onnx.ModelProto, **options: Any) -> Model:
    return Model(name, proto, proto.SerializeToString(deterministic=True), options)


def _spellings() -> Makers:
    from spellings.choices import FRAME_OPTIONS, SPELLING_OPTIONS, shown, single
    from spellings.place import build

    for option, values in {**FRAME_OPTIONS, **SPELLING_OPTIONS}.items():
        for value in values:
            spelling, frame = single(option, value)
            name = f"spelling/{option}={shown(value)}"
            yield name, functools.partial(build, spelling, frame)
            if option == "dtype" or frame.dtype != "float32":
                continue
            if option != "rounding":
                spelling = dataclasses.replace(spelling, rounding="llama")
            half = dataclasses.replace(frame, dtype="float16")
            yield f"{name} f16", functools.partial(build, spelling, half)


def _drawn() -> Makers:
    from spellings.case import Case
    from spellings.choices import FRAME_OPTIONS, SPELLING_OPTIONS, Frame, Spelling
    from spellings.place import build

    def chosen(stored: dict[str, Any], options: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        lists = {k: type(options[k][0]) for k, value in stored.items() if isinstance(value, list)}
        return {k: lists[k](value) if k in lists else value for k, value in stored.items()}

    def make(graph: dict[str, Any], *norms: dict[str, Any]) -> Case:
        chain = [Spelling(**chosen(norm, SPELLING_OPTIONS)) for norm in norms]
        return build(chain, Frame(**chosen(graph, FRAME_OPTIONS)))

    for number, stored in enumerate(json.loads(DRAWN.read_text(encoding="utf-8"))):
        yield f"drawn/{number}", functools.partial(make, *stored)


def _look_alikes() -> Makers:
    from spellings.look_alikes import LOOK_ALIKES

    for name, look_alike in LOOK_ALIKES.items():
        yield f"alike/{name}", look_alike.build
        later = functools.partial(look_alike.build, 23, "node", value_infos=False)
        yield f"alike/{name} 23", later


def _lowered() -> Makers:
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
            yield name, functools.partial(build, source, symbolic=way != "plain")


def _collected(asked: Callable[[str], bool]) -> Iterator[Model]:
    """Yield what the tests of one day gave to ``optimize``: a PAX archive, options as comments."""
    with tarfile.open(COLLECTED, "r:xz") as archive:
        for member in archive:
            if ENDLESS in member.name or not asked(member.name):
                continue
            options = json.loads(member.pax_headers["comment"])
            if "constant_initializers" in options:  # which optimize had that day
                continue
            stream = archive.extractfile(member)
            assert stream is not None
            yield _of_proto(member.name, onnx.load_from_string(stream.read()), **options)


def _hostile(asked: Callable[[str], bool]) -> Iterator[Model]:
    from hostile.registry import HOSTILE

    for name, case in HOSTILE.items():
        if not asked(f"hostile/{name}"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = case.make(Path(folder))
            yield Model(f"hostile/{name}", path, name.encode())


def exports(asked: Callable[[str], bool]) -> Iterator[Model]:
    """Yield the exports that are quick to make: norm classes, and a few architectures."""
    from tests.tools.norms import norm_exports
    from toolbox.corpus import architectures

    norms = (
        export
        for dtype in ("float32", "float16")
        for export in norm_exports(only=f"-{dtype}-torchscript17")
        if not export.key.startswith(FOLDED)
    )
    whole = (
        architectures.export_architecture(name, dtype)
        for name, dtype in itertools.product(("llama", "gemma3", "qwen3"), architectures.TYPES)
    )
    for part, files in (("norm", norms), ("architecture", whole)):
        for export in files:
            name = f"{part}/{export.key}"
            if export.path is not None and asked(name):
                yield _of_proto(name, without_paths(onnx.load(export.path)))


def without_paths(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Remove what an exporter noted of its machine and process."""
    for part in (proto.graph, *proto.functions):
        for node in part.node:
            node.doc_string = ""
            props = {p.key: re.sub(" at 0x[0-9a-f]+", "", p.value) for p in node.metadata_props}
            props.pop("pkg.torch.onnx.stack_trace", None)
            onnx.helper.set_model_props(node, props)
    return proto
