"""``build_engine``: from an ONNX file to an engine and the record of the fate of its norms."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.errors import InputError, RequirementError, UsageError
from rmsnorm_export.graph.load import LoadedModel, Source, load_model, no_gc
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.graph.save import check_output
from rmsnorm_export.op.native import RMS_NORMALIZATION, SIMPLIFIED
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.printable import one_line, plural, quoted, short
from rmsnorm_export.recognize.scan import recognize
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.records import to_json
from rmsnorm_export.runtime.inputs import declared_tensor, graph_inputs, type_name_of
from rmsnorm_export.runtime.sizes import size_profiles
from rmsnorm_export.system.files import StrPath, Transaction, refusals_as
from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.system.provenance import utc_now
from rmsnorm_export.system.reading import sha256_of
from rmsnorm_export.tensorrt.engine import backends, norms
from rmsnorm_export.tensorrt.engine.options import BuildOptions, plan_plugin
from rmsnorm_export.tensorrt.engine.result import EngineRecord, EngineResult, sidecar_path

_NORM_NODES = (RMS_NORMALIZATION, SIMPLIFIED)


_PLACE = re.compile(r"^[\w.]+\.[ch]pp:\d+: ")
"""Source file and line in front of a message."""

_NAMED = 5
"""Norms that an error names."""


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[tuple[LoadedModel, Path]]:
    """Read a model, and provide its file; in a block: one that has none gets one for it.

    Args:
        source: path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``. External data is read by the
            parser from its files, never here, so only a path may have some.

    Raises:
        InputError: the model cannot be read, or lacks external data.
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
        yield loaded, path


def _norms_of(model: ir.Model) -> tuple[norms.EngineSite, ...]:
    """Return the norms of a model, none of which the parser would compute otherwise."""
    with no_gc():
        recognized = recognize(model)
        _refuse_mixed(model, recognized.types)
        return norms.engine_sites(model, recognized.matches)


def _notes(graph: ir.Graph) -> Iterator[str]:
    edges = (*graph.inputs, *graph.outputs, *graph.initializers.values())
    if any(value.dtype == ir.DataType.DOUBLE for value in edges):
        yield "float64 is computed in float32: TensorRT has no other type for it"


def _refuse_mixed(model: ir.Model, types: Types) -> None:
    """Refuse a scale wider than x: the operator multiplies in its type, the parser in that of x.

    Seen in the network that TensorRT-RTX 1.7.1 makes of f16 x and f32 scale (semantics of
    RMSNormalization-23: ``Cast(normalised, scale type) * scale``).
    """
    for node in (node for graph in all_graphs(model) for node in graph):
        if node.domain or node.op_type not in _NORM_NODES:
            continue
        x, scale = (None if v is None else types.dtype(v) for v in (*node.inputs, None, None)[:2])
        if x is not None and scale is not None and x != scale:
            what = "TensorRT's parser would round the scale of a norm to the type of x."
            types_ = f"x {type_name_of(x)}, scale {type_name_of(scale)}"
            fix = "export below opset 23 and use optimize --target portable or onnx, which write "
            fix += "the casts out; or Cast x to the type of the scale in front of the node"
            found = f"{short(node.op_type)} {quoted(node.name or '')}: {types_}"
            raise InputError(what, found=found, fix=fix)


def build_model(model: Source, path: StrPath, options: BuildOptions) -> EngineResult:
    """Build the engine of one model; arguments and errors as for ``build_engine``."""
    target, sidecar = _outputs(model, path, options)
    info, why = backends.choose(options.backend)
    fix = "check the folder, its permissions and its free space; nothing was changed"
    with (
        _opened(model) as (loaded, file),
        refusals_as("The engine cannot be written.", target, fix=fix),
        Transaction() as files,
    ):
        sites, inputs = _norms_of(loaded.model), graph_inputs(loaded.model)
        profiles = size_profiles(inputs, options.shapes, options.dims)
        own = any(n.domain == DOMAIN for graph in all_graphs(loaded.model) for n in graph)
        library, reason = plan_plugin(options.plugin, info, own=own)
        temporary = files.temp(target)
        request = options.flags() | {
            "model": str(file),
            "engine": str(temporary),
            "profiles": profiles,
            "plugin": str(library or ""),
            "inspect": backends.gpu_visible(),
        }
        answer = backends.run_backend("build", request, info)
        if answer.result is None:
            raise backends.failure(answer, info, file.name, "cannot build the engine.")
        built = answer.result
        if "refused" in built:
            raise backends.refused(built["refused"], answer, info)
        layers, layers_from = norms.layers_of(built["inspected"], built["layers"])
        layers = norms.by_profile(layers, len(profiles))
        record = EngineRecord(
            engine=target.name,
            bytes=temporary.stat().st_size,
            sha256=sha256_of(temporary),
            model=file.name,
            model_sha256=sha256_of(file),
            backend=info.name,
            version=built["version"],
            versions=versions_of(),
            gpus=backends.gpus(),
            built=utc_now(),
            seconds=round(answer.seconds, 3),
            inputs=tuple(inputs.values()),
            outputs=tuple(map(declared_tensor, loaded.model.graph.outputs)),
            profiles=profiles,
            flags=options.flags(),
            plugin="" if library is None else library.name,
            plugin_reason=reason,
            norms=norms.find_norms(sites, layers),
            layers=layers,
            layers_from=layers_from,
            messages=_messages(built["warnings"]),
            notes=(f"backend {info.name}: {why}", *loaded.notes, *_notes(loaded.model.graph)),
        )
        if options.plugin == "require":
            require_plugin(record)
        beside = files.temp(sidecar, [to_json(record).encode()])
        files.publish(beside, sidecar, replace=options.force)
        files.publish(temporary, target, replace=options.force, last=True)
    return EngineResult(target, sidecar, record)


def _outputs(model: Source, path: StrPath, options: BuildOptions) -> tuple[Path, Path]:
    """Return the paths of engine and record, of which neither is the model, with force or not."""
    origin = model if isinstance(model, str | os.PathLike) else None
    target = check_output(path, force=options.force)
    sidecar = check_output(sidecar_path(target), force=options.force)
    for one in (target, sidecar):
        if origin and one.exists() and os.path.samefile(origin, one):
            what, fix = "The output is the input file.", "choose another"
            raise UsageError(what, found=short(str(one), 300), fix=fix)
    return target, sidecar


def _messages(warnings: Iterable[str]) -> tuple[str, ...]:
    """Return the first warnings without their place in the source, each once."""
    texts = (one_line(_PLACE.sub("", text.strip()), 600) for text in warnings)
    return tuple(dict.fromkeys(texts))[:50]


def require_plugin(record: EngineRecord) -> None:
    """Raise ``RequirementError`` where a norm that could be a plugin layer is known to be none."""
    missed = [n for n in record.norms if n.form == "node" and n.how in ("fused", "unfused")]
    if missed:
        what = f"{plural(len(missed), 'norm')} became no plugin layer; nothing was written."
        found = "; ".join(f"{short(norm.name)} is {norm.how}" for norm in missed[:_NAMED])
        fix = "build it anew with rmsnorm-export plugin build --force, or use --plugin auto"
        raise RequirementError(what, found=found, fix=fix)
