"""The functions that take a model or a folder of graphs, as users call them.

What each does is in the rooms below; here they are put together. ``| Any`` stands for what a folder
gives, which who names one knows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.errors import UsageError
from rmsnorm_export.options import takes
from rmsnorm_export.rewrite.options import HealthOptions, OptimizeOptions
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.tensorrt.engine.options import BuildOptions
from rmsnorm_export.torch_options import ExportOptions

if TYPE_CHECKING:
    import torch

    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.compare.verify import Model
    from rmsnorm_export.decoder.bundle import Components
    from rmsnorm_export.graph.load import Source
    from rmsnorm_export.rewrite.result import Report, Result
    from rmsnorm_export.tensorrt.engine.result import EngineResult
    from rmsnorm_export.torch.export.convert import ExportResult


@takes(OptimizeOptions)
def optimize(source: Source, options: OptimizeOptions) -> Result | Any:
    """Make every RMSNorm of a model one node.

    Args:
        source: path of an .onnx file, its bytes, an ``onnx.ModelProto`` or an ``onnx_ir.Model``;
            or of a folder of graphs, e.g. of prefill and decode, that an exporter of decoders has
            written. Never changed.

    Returns:
        The new model and the report; of a folder a result that has ``results`` and ``reports`` by
        the name of each graph, and saves a folder.

    Raises:
        InputError: the model cannot be read, or not be raised to the opset, or the runtime cannot
            run it.
        UsageError: an option has no such value.
        BackendMissingError: ``prove`` without ONNX Runtime.
    """
    from rmsnorm_export.decoder.bundle import tokenizer_beside
    from rmsnorm_export.decoder.finish import finish
    from rmsnorm_export.decoder.text import text_for
    from rmsnorm_export.rewrite.optimize import optimize_model

    if isinstance(source, str | Path) and os.path.isdir(source):
        from rmsnorm_export.decoder.folders import optimize_folder

        return optimize_folder(source, options)
    text = text_for(options, tokenizer_beside(source) if options.quantize else None)
    return finish(optimize_model(source, options), options, text=text)


@takes(HealthOptions)
def inspect(source: Source, options: HealthOptions) -> Report | Any:
    """List the RMSNorms of a model, and what `optimize` would do with each; changes nothing.

    Args:
        source: as for `optimize`; of a folder the result has ``reports`` by the name of each graph.
    """
    from rmsnorm_export.rewrite.optimize import inspect_model

    if isinstance(source, str | Path) and os.path.isdir(source):
        from rmsnorm_export.decoder.folders import inspect_folder

        return inspect_folder(source, options)
    return inspect_model(source, options)


@takes(VerifyOptions)
def verify(a: Model, b: Model, options: VerifyOptions) -> Verification:
    """Run two models on the same inputs and compare every output of ``a`` with ``b``'s.

    A model is an ONNX file (needed above 2 GB), its bytes, ``onnx.ModelProto`` or
    ``onnx_ir.Model``; a ``torch.nn.Module``, ``ExportedProgram`` or ``.pt2`` file, a Hugging Face
    folder, a ``config.json`` or ``module:factory``, whose code runs; or an engine of TensorRT or
    TensorRT-RTX. ONNX models run in ONNX Runtime, on the CPU, unless a backend is
    given: ``a`` without its graph optimization, for it fuses norms itself, some of them wrongly,
    ``b`` with it. Two folders of graphs, such as ``export_generation``
    makes, are compared component by component. Where two backends compute with unlike digits, as
    with TF32, the default bound is wider, and each output says why
    (``OutputComparison.tolerance``).

    Args:
        a: the reference.
        b: the model to check, with the inputs and outputs of ``a`` by name; those of a PyTorch
            module are taken in order.

    Returns:
        The comparison; it does not raise when a bound fails, nor where a backend has no kernel for
        a model, or lacks an operator of it: the verdict is ``not run`` then.

    Raises:
        InputError: a model cannot be read or is not well-formed, its external data is missing or
            outside its folder, the inputs do not fit the model, or an engine was made by another
            version or for another GPU.
        UsageError: a negative bound, ``shapes`` together with ``inputs``, a backend that does not
            run such a model, or the two take different inputs.
        VerificationError: a backend rejects or cannot run a model, or the two have different
            outputs, or types or shapes of these.
        BackendMissingError: a package that a backend needs, or the GPU, is not there; known before
            anything is run.
    """
    from rmsnorm_export.compare.verify import verify_models
    from rmsnorm_export.decoder.bundle import bundle_at

    if options.generate is not None:
        from rmsnorm_export.decoder.generation import verify_export

        return verify_export(a, b, options)
    folders = [bundle for bundle in (bundle_at(a), bundle_at(b)) if bundle is not None]
    if len(folders) == 2:
        from rmsnorm_export.decoder.folders import verify_folders

        return verify_folders(folders[0], folders[1], options)
    if folders:
        what = "A folder of graphs is compared with another one, or with PyTorch token by token."
        fix = "give two folders; or a model of transformers and its export, with --generate N"
        raise UsageError(what, found="one of the two models is a folder of graphs", fix=fix)
    return verify_models(a, b, options)


@takes(BuildOptions)
def build_engine(model: Source, path: StrPath, options: BuildOptions) -> EngineResult | Components:
    """Build an engine from an ONNX model, and say what became of every RMSNorm in it.

    The backend runs in a process of its own: when it crashes, this raises an error. The engine and
    its record ``PATH.json`` appear whole or not at all.

    Args:
        model: path of an .onnx file, which the parser reads itself, external data with it; or
            bytes, ``onnx.ModelProto`` or ``onnx_ir.Model`` without external data; or of a folder of
            graphs, as for ``optimize_folder``. Never changed.
        path: of the engine; of a folder's graphs, that of a folder for ``prefill.engine``,
            ``decode.engine`` and their records. There ranges go by the names of dimensions, so that
            what is one size in several graphs is one range in their profiles.

    Returns:
        The engine and its record; of a folder, one for each component.

    Raises:
        UsageError: an option does not fit the model or the backend, or the output exists.
        InputError: the model cannot be read, parsed or built, or the output not be written.
        BackendMissingError: the backend or, with ``require``, the plugin is not there.
        RequirementError: ``plugin="require"``, and a norm of the domain became none.
    """
    from rmsnorm_export.tensorrt.engine.build import build_model

    if isinstance(model, str | os.PathLike) and os.path.isdir(model):
        from rmsnorm_export.decoder.folders import build_folder

        return build_folder(model, path, options)
    return build_model(model, path, options)


@takes(ExportOptions)
def export(
    module: torch.nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any],
    path: str | os.PathLike[str],
    options: ExportOptions,
) -> ExportResult:
    """Export a module to ONNX, with every RMSNorm as one node named after its module.

    The graph is that of ``torch.onnx.export(dynamo=True)``, in inference mode. Norms may be
    ``torch.nn.RMSNorm``, the operators of ``torch.ops.rmsnorm_export`` or written by hand; each
    keeps the rounding order that it has in PyTorch.

    Args:
        module: what to export, or a program of ``torch.export.export``; left as it is.
        args: example inputs, positional; ignored for a program.
        path: the .onnx file to make, whole or not at all. Weights over 2 GiB go to ``PATH.data``.

    Returns:
        What was written, with the report.

    Raises:
        UsageError: an argument that cannot be used: its name and what to change are in the error.
        InputError: the module cannot be exported, or the place cannot be written.
        BackendMissingError: PyTorch or onnxscript is not installed.
    """
    from rmsnorm_export.decoder.finish import finish, with_weights_as_read
    from rmsnorm_export.decoder.text import text_for
    from rmsnorm_export.graph.save import check_output
    from rmsnorm_export.torch.export.convert import WRITING, ExportResult, convert, tell

    check_output(path, force=options.force)
    text = text_for(options, None)
    result, log = convert(module, args, options)
    (result,) = with_weights_as_read([finish(result, options, text=text)], options.target)
    tell(options.progress, WRITING)
    saved = result.save(path, weights=options.weights, force=options.force)
    return ExportResult(saved.path, result.model, result.report, saved, log)
