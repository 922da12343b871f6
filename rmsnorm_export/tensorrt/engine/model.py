"""What must be known of the model before a backend sees it: inputs, identity, norms, pitfalls."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.load import LoadedModel, Source, load_model, no_gc
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.op.native import DEFAULT_DOMAINS, RMS_NORMALIZATION, SIMPLIFIED
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.recognize.scan import recognize
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.input_sizes import Declared, InputSizes
from rmsnorm_export.runtime.inputs import declared_tensor, given_inputs, type_name_of
from rmsnorm_export.runtime.sizes import RANGES, Dims, Shapes, ShapesByName
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import refusals_as
from rmsnorm_export.tensorrt.engine.result import (
    DataFile,
    EngineProfile,
    InputRange,
    ModelIdentity,
)
from rmsnorm_export.tensorrt.engine.sites import EngineSite, engine_sites

_NORM_NODES = (RMS_NORMALIZATION, SIMPLIFIED)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class EngineModel:
    """A model that is ready to be built: the file that the parser reads, the inputs that are no
    initializers, the norms, whether it has nodes of its ``own`` domain for a plugin, and what is
    ``aliased``: outputs that have the memory of an input."""

    path: Path
    identity: ModelIdentity
    inputs: tuple[Declared, ...]
    sites: tuple[EngineSite, ...]
    own: bool
    aliased: dict[str, str]
    notes: tuple[str, ...]


@contextlib.contextmanager
def open_model(source: Source) -> Iterator[EngineModel]:
    """Read and check a model; in a block, because a model that is no file becomes one for it.

    Args:
        source: path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``. External data is read by the
            parser from its files, never here, so only a path may have some.

    Raises:
        InputError: the model cannot be read, lacks external data, or has a norm whose scale
            TensorRT's parser would round.
        UsageError: external data without a path.
    """
    with no_gc():
        loaded = load_model(source)
    with loaded.file() as path:
        yield _examine(loaded, path)


def _examine(loaded: LoadedModel, path: Path) -> EngineModel:
    with no_gc():
        recognized = recognize(loaded.model)
        _refuse_mixed(loaded.model, recognized.types)
        notes = [*loaded.notes, *_doubles(loaded.model)]
        sites = engine_sites(loaded.model, recognized.matches)
    return EngineModel(
        path=path,
        identity=ModelIdentity(
            name="memory" if loaded.path is None else path.name,
            bytes=path.stat().st_size,
            sha256=sha256_of(path),
            data=_data_files(path.parent, loaded.external),
        ),
        inputs=tuple(declared_tensor(value) for value in given_inputs(loaded.model)),
        sites=sites,
        aliased=_aliased(loaded.model.graph),
        own=any(node.domain == DOMAIN for graph in all_graphs(loaded.model) for node in graph),
        notes=tuple(notes),
    )


def _aliased(graph: ir.Graph) -> dict[str, str]:
    """Return the inputs whose memory outputs have: caches that TensorRT updates in place."""
    return {
        str(node.outputs[0].name): str(node.inputs[0].name)
        for node in graph
        if node.op_type == "TensorScatter"
        and node.domain in DEFAULT_DOMAINS
        and node.inputs[0] is not None
        and node.inputs[0].is_graph_input()
        and node.outputs[0].is_graph_output()
    }


def reading_external_data(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Raise an ``InputError`` for what the file system refuses in a block."""
    return refusals_as(
        "External data of the model cannot be read.",
        folder,
        fix="put the file beside the model, as it was when the model was saved",
    )


def _data_files(folder: Path, locations: tuple[str, ...]) -> tuple[DataFile, ...]:
    with reading_external_data(folder):
        files = [(folder / place).stat() for place in locations]
        hashes = [sha256_of(folder / place) for place in locations]
    return tuple(
        DataFile(place, state.st_size, state.st_mtime_ns, sha256)
        for place, state, sha256 in zip(locations, files, hashes, strict=True)
    )


def _refuse_mixed(model: ir.Model, types: Types) -> None:
    """Refuse a scale wider than x: the operator multiplies in its type, the parser in that of x.

    Seen in the network that TensorRT-RTX 1.7.1 makes of f16 x and f32 scale (semantics of
    RMSNormalization-23: ``Cast(normalised, scale type) * scale``).
    """
    mixed = []
    for graph in all_graphs(model):
        for node in graph:
            if node.domain in DEFAULT_DOMAINS and node.op_type in _NORM_NODES:
                x, scale = (*node.inputs, None, None)[:2]
                a = None if x is None else types.dtype(x)
                b = None if scale is None else types.dtype(scale)
                if a is not None and b is not None and a != b:
                    mixed.append((node, a, b))
    if not mixed:
        return
    node, a, b = mixed[0]
    which = f"x {type_name_of(a)}, scale {type_name_of(b)}"
    more = f", and {len(mixed) - 1} more" if len(mixed) > 1 else ""
    raise InputError(
        "A norm has x and scale of two types; TensorRT's parser would round the scale to that of"
        " x.",
        found=f"{short(node.op_type)} {quoted(node.name or '')}: {which}{more}",
        fix="export below opset 23 and use optimize --target portable or onnx, which write the"
        " casts out; or Cast x to the type of the scale in front of the node",
    )


def _doubles(model: ir.Model) -> Iterator[str]:
    graph = model.graph
    wide = [v for v in (*graph.inputs, *graph.outputs) if v.dtype == ir.DataType.DOUBLE]
    wide += [v for v in graph.initializers.values() if v.dtype == ir.DataType.DOUBLE]
    if wide:
        yield (
            f"float64 is computed in float32: TensorRT has no other type for"
            f" {quoted(wide[0].name or '')}"
            + (f" and {len(wide) - 1} more values" if len(wide) > 1 else "")
        )


def make_profiles(
    inputs: Sequence[Declared], shapes: Shapes | None, dims: Dims | None = None
) -> tuple[EngineProfile, ...]:
    """Return the optimization profiles that are asked for.

    Args:
        inputs: of the model.
        shapes: of one profile, as text or by input; or a sequence of these, one for each profile.
        dims: sizes by name of a dimension, which all profiles have; see ``runtime.sizes``.

    Raises:
        UsageError: an input or dimension that the model does not have, or one with dynamic sizes
            that has no range; a rank or a fixed size that differs; sizes out of order; a dimension
            that has two ranges.
    """
    each: Sequence[str | ShapesByName | None]
    each = [shapes] if shapes is None or isinstance(shapes, str | Mapping) else shapes or [None]
    sizes = InputSizes(inputs, RANGES)
    profiles = []
    for one in each:
        points = [at for _, at in sizes.points(one, dims)]  # smallest, usual, largest
        ranges = (
            InputRange(item.name, item.dtype, *(at[item.name] for at in points)) for item in inputs
        )
        profiles.append(EngineProfile(tuple(ranges)))
    return tuple(profiles)
