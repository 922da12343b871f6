"""The model before a backend sees it: inputs, norms, pitfalls."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.load import LoadedModel, Source, load_model, no_gc
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.op.native import DEFAULT_DOMAINS, RMS_NORMALIZATION, SIMPLIFIED
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.recognize.scan import recognize
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.inputs import declared_tensor, graph_inputs, type_name_of
from rmsnorm_export.runtime.sizes import Declared, Dims, Shapes, size_profiles
from rmsnorm_export.tensorrt.engine.result import EngineProfile, InputRange
from rmsnorm_export.tensorrt.engine.sites import EngineSite, engine_sites

_NORM_NODES = (RMS_NORMALIZATION, SIMPLIFIED)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class EngineModel:
    """A model that is ready to be built.

    Attributes:
        path: the file that the parser reads.
        inputs, outputs: those inputs that are no initializers, and all outputs.
        sites: its norms.
        own: it has nodes of the domain rmsnorm_export, for a plugin.
        notes: what the user may want to know.
    """

    path: Path
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    sites: tuple[EngineSite, ...]
    own: bool
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
    if loaded.path is None and loaded.external:
        what, fix = "A model with external data must be given as a file.", "save it, give its path"
        raise UsageError(what, found=f"data in {quoted(loaded.external[0])}", fix=fix)
    with tempfile.TemporaryDirectory(prefix="rmsnorm-model-") as folder:
        path = loaded.path or Path(folder, "model.onnx")
        if loaded.path is None:
            path.write_bytes(loaded.to_bytes())
        yield _examine(loaded, path)


def _examine(loaded: LoadedModel, path: Path) -> EngineModel:
    graph = loaded.model.graph
    with no_gc():
        recognized = recognize(loaded.model)
        _refuse_mixed(loaded.model, recognized.types)
        sites = engine_sites(loaded.model, recognized.matches)
    notes = list(loaded.notes)
    edges = (*graph.inputs, *graph.outputs, *graph.initializers.values())
    if any(value.dtype == ir.DataType.DOUBLE for value in edges):
        notes.append("float64 is computed in float32: TensorRT has no other type for it")
    return EngineModel(
        path=path,
        inputs=tuple(graph_inputs(loaded.model).values()),
        outputs=tuple(map(declared_tensor, graph.outputs)),
        sites=sites,
        own=any(node.domain == DOMAIN for graph in all_graphs(loaded.model) for node in graph),
        notes=tuple(notes),
    )


def _refuse_mixed(model: ir.Model, types: Types) -> None:
    """Refuse a scale wider than x: the operator multiplies in its type, the parser in that of x.

    Seen in the network that TensorRT-RTX 1.7.1 makes of f16 x and f32 scale (semantics of
    RMSNormalization-23: ``Cast(normalised, scale type) * scale``).
    """
    for node in (node for graph in all_graphs(model) for node in graph):
        if node.domain not in DEFAULT_DOMAINS or node.op_type not in _NORM_NODES:
            continue
        x, scale = (None if v is None else types.dtype(v) for v in (*node.inputs, None, None)[:2])
        if x is not None and scale is not None and x != scale:
            what = "TensorRT's parser would round the scale of a norm to the type of x."
            types_ = f"x {type_name_of(x)}, scale {type_name_of(scale)}"
            fix = "export below opset 23 and use optimize --target portable or onnx, which write "
            fix += "the casts out; or Cast x to the type of the scale in front of the node"
            found = f"{short(node.op_type)} {quoted(node.name or '')}: {types_}"
            raise InputError(what, found=found, fix=fix)


def make_profiles(
    inputs: Sequence[Declared], shapes: Shapes | None, dims: Dims | None = None
) -> tuple[EngineProfile, ...]:
    """Return the optimization profiles that are asked for.

    Args:
        inputs: of the model.
        shapes: of one profile, as text or by input; or a sequence of these, one for each profile.
        dims: sizes by name of a dimension, which all profiles have; see ``runtime.sizes``.

    Raises:
        UsageError: the sizes do not fit, see ``size_points``.
    """
    profiles = []
    for points in size_profiles({item.name: item for item in inputs}, shapes, dims):
        ranges = (
            InputRange(item.name, item.dtype, *(at[item.name] for at in points)) for item in inputs
        )
        profiles.append(EngineProfile(tuple(ranges)))
    return tuple(profiles)
